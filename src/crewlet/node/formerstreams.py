"""Which brokers a node worked with, so that mail and epochs left on another one are not forgotten in silence.

The list is a text file in the data directory, the present one last. Nothing is decided by it.
"""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from crewlet.node.settings_model import Settings

_FILE = "streams"


def note_stream(settings: Settings) -> None:
    """Put the present broker last.

    Raises:
        OSError: the file cannot be written.
    """
    known, present = _known(settings), _name(settings)
    if present is None or known[-1:] == [present]:
        return
    lines = [*(name for name in known if name != present), present]
    file = _file(settings)
    fresh = file.with_name(f"{_FILE}.new")
    fresh.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    fresh.replace(file)


def left_behind(settings: Settings) -> Iterator[str]:
    """What of a company's mail the settings no longer reach, a sentence each."""
    present = _name(settings)
    stores = {settings.node.data_dir / "broker": ""}
    for name in _known(settings):
        kind, _, place = name.partition(" ")
        if name == present:
            continue
        if kind == "embedded":
            stores[Path(place)] = ""
        elif kind == "nats":
            yield (
                f"this node worked with the broker at {place} before, and the settings name another: mail, ledger, "
                "dead letters and the epochs of other nodes' seats stay there. To work them off, start with it once "
                f"more; then take its line out of {_file(settings)}."
            )
    for store in stores:
        if f"embedded {store}" != present and (store / "jetstream").is_dir():
            yield (
                f"{store} has the mail, ledger and dead letters of an embedded broker, which the settings do not name: "
                "what is in it stays there. To work it off, start with stream.type embedded and this store_dir once "
                "more; then move the folder away."
            )


def _name(settings: Settings) -> str | None:
    """The broker on one line, without what is secret; None for one that keeps nothing."""
    stream = settings.stream
    if stream.type == "nats":
        parts = urlsplit(stream.url)
        return f"nats {parts.hostname}:{parts.port or 4222}"
    return None if stream.store_dir is None else f"embedded {stream.store_dir}"


def _known(settings: Settings) -> list[str]:
    try:
        return _file(settings).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _file(settings: Settings) -> Path:
    return settings.node.data_dir / _FILE
