"""`crewlet seat pause` and `crewlet seat resume`."""

import getpass
import re
import time
import uuid
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import TIMEOUT_S, CommandFailed, NodeClient, NodeRefused, NodeSilent
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import clean, instant, print_json, print_table
from crewlet.cli.run import tell
from crewlet.cli.sending import segment
from crewlet.node.limits import MAX_PAUSE_S

_ATTEMPTS = 5
_REST_S = 1.0
_LEAST_S = 0.1
_UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86400}

HandleArgument = Annotated[str | None, typer.Argument(metavar="HANDLE", help="The seat's handle.", show_default=False)]
UnitOption = Annotated[
    str | None, typer.Option("--unit", metavar="NAME", help="All seats of this unit and of those inside it, at once.")
]


def pause_seat(
    handle: HandleArgument = None,
    unit: UnitOption = None,
    stop_running: Annotated[
        bool, typer.Option("--stop-running", help="End the turn that runs; its mail is finished with.")
    ] = False,
    reason: Annotated[
        str | None, typer.Option("--reason", metavar="TEXT", help="Why; one line for people.", show_default=False)
    ] = None,
    until: Annotated[
        str | None,
        typer.Option(
            "--until", metavar="TIME", help="When it ends by itself: 2030-01-31T18:00 or +90m, +2h, +1d; or never."
        ),
    ] = None,
    change: Annotated[
        bool, typer.Option("--change", help="Change the pause that the seat is under; the rest of it stays.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Hold a seat's mail back, wherever the seat runs or moves, until it is resumed. A running turn ends first."""
    path = _path(handle, unit, "pause")
    if change and handle is None:
        raise typer.BadParameter("only the pause of one seat can be changed", param_hint="--change")
    wish = _wish(reason, until, stop_running=stop_running)
    if change and not wish:
        problem = "say what to change: --reason, --until or --stop-running"
        raise typer.BadParameter(problem, param_hint="--change")
    client = NodeClient.find(url, config)
    if change:
        wish = _changed(_standing(client, handle or ""), wish)
    answer = _post(client, path, {"by": _who(), **wish}, {"Idempotency-Key": str(uuid.uuid4())})
    rows: list[dict[str, Any]] = answer["seats"] if unit is not None else [answer]
    if output is Output.json:
        print_json(answer)
    else:
        _print(rows, "It has no seats.")
    if any(stop_running and not row["pause"]["stop_running"] for row in rows):
        sentence = "A seat that was paused before goes on with its turn; change its pause by its handle."
        raise typer.Exit(tell(sentence, FAILED))


def resume_seat(
    handle: HandleArgument = None,
    unit: UnitOption = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Let a paused seat take its mail again."""
    path = _path(handle, unit, "resume")
    answer = _post(NodeClient.find(url, config), path, {"by": _who()}, {})
    rows: list[dict[str, Any]] = answer["seats"] if unit is not None else [answer]
    if output is Output.json:
        print_json(answer)
    else:
        _print(rows, "It has no seats.")
    if any(row.get("pause") for row in rows):
        raise typer.Exit(FAILED)


def pause_words(pause: dict[str, Any]) -> str:
    """A pause on one line, with the number of messages that it holds back."""
    held = pause.get("messages_held")
    return f"{'?' if held is None else held} held, {_words(pause)}"


def _words(pause: dict[str, Any]) -> str:
    words = [f"since {instant(pause['since'])}"]
    if pause.get("until"):
        words.append(f"until {instant(pause['until'])}")
    if pause.get("by"):
        words.append(f"by {pause['by']}")
    if pause.get("reason"):
        words.append(pause["reason"])
    return clean(", ".join(words))


def _print(rows: list[dict[str, Any]], empty: str) -> None:
    print_table(
        ("SEAT", "CHANGED", "MESSAGES", "PAUSED"),
        [
            (
                row["handle"],
                "yes" if row["is_changed"] else "no",
                row.get("messages_held"),
                _words(row["pause"]) if row.get("pause") else "no",
            )
            for row in rows
        ],
        empty=empty,
    )


def _path(handle: str | None, unit: str | None, verb: str) -> str:
    if (handle is None) == (unit is None):
        raise typer.BadParameter("name a seat, or a unit with --unit, and not both", param_hint="HANDLE")
    kind, name = ("seats", handle) if unit is None else ("units", unit)
    return f"/{kind}/{segment(name or '', 'HANDLE' if unit is None else '--unit')}/{verb}"


def _one_line(text: str, name: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter("this is not UTF-8 text", param_hint=name) from None
    if len(text) > 200 or not text.isprintable():
        raise typer.BadParameter("write one line of at most 200 characters", param_hint=name)
    return text


def _who() -> str:
    try:
        name = getpass.getuser()
    except (KeyError, OSError):
        return ""
    return name if name.isprintable() and len(name) <= 200 else ""


def _wish(reason: str | None, until: str | None, *, stop_running: bool) -> dict[str, Any]:
    """What was written of a pause, for the API; nothing of what was left out."""
    return {
        **({} if reason is None else {"reason": _one_line(reason, "--reason")}),
        **({} if until is None else _end(until)),
        **({"stop_running": True} if stop_running else {}),
    }


def _end(until: str) -> dict[str, Any]:
    """When a pause is to end, for the API. A time without a zone is of this machine's zone."""
    if until == "never":
        return {"until": None}
    if span := re.fullmatch(r"\+(\d{1,6})([smhd])", until):
        for_s = int(span[1]) * _UNITS_S[span[2]]
        if not 0 < for_s <= MAX_PAUSE_S:
            most = f"{MAX_PAUSE_S // _UNITS_S['d']:g} days"
            raise typer.BadParameter(f"a pause lasts longer than nothing and at most {most}", param_hint="--until")
        return {"for_s": for_s}
    try:
        return {"until": datetime.fromisoformat(until).astimezone(UTC).isoformat()}
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            "write a time like 2030-01-31T18:00, a span like +90m, +2h or +1d, or never", param_hint="--until"
        ) from None


def _standing(client: NodeClient, handle: str) -> dict[str, Any]:
    seat = client.get(f"/query/seats/{segment(handle, 'HANDLE')}")["seat"]
    if not seat.get("pause"):
        raise CommandFailed(f"{handle} is not paused, so there is nothing to change.")
    return seat["pause"]


def _changed(standing: dict[str, Any], wish: dict[str, Any]) -> dict[str, Any]:
    """A standing pause with what was written in place of its own, for the API."""
    kept = {name: standing[name] for name in ("reason", "stop_running") if name in standing}
    if "for_s" not in wish and standing.get("until"):
        kept["until"] = standing["until"]
    return {**kept, **wish, "instead_of": standing["id"]}


def _post(client: NodeClient, path: str, body: dict[str, Any], headers: dict[str, str]) -> Any:
    """Ask, and ask the same again while the answer is missing and there is time: a pause under one key, and a resume,
    are done once.
    """
    until = time.monotonic() + TIMEOUT_S
    for attempt in range(1, _ATTEMPTS + 1):
        has_more = attempt < _ATTEMPTS
        try:
            return client.post(path, body, headers, timeout_s=max(until - time.monotonic(), _LEAST_S))
        except NodeSilent as silent:
            if not silent.was_sent:
                raise
            if not has_more or time.monotonic() + _REST_S >= until:
                unknown = "Whether it was done is not known: `crewlet seat list` shows the pauses."
                raise CommandFailed(f"{silent} {unknown}", word=silent.word) from silent
        except NodeRefused as refusal:
            if refusal.status != 503 or not has_more or time.monotonic() + _REST_S >= until:
                raise
        time.sleep(_REST_S)
    raise AssertionError
