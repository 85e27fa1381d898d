"""Mail on a broker that the settings name no more is not forgotten in silence."""

from pathlib import Path

from crewlet.node.formerstreams import left_behind, note_stream
from crewlet.node.settings import Settings, parse_settings

NATS = "coordination: {type: embedded-kv}\nstream: {type: nats, url: 'nats://user:secret@one:4333'}"


def settings(folder: Path, text: str) -> Settings:
    return parse_settings(text, folder / "crewlet.yaml", environ={})


def worked_with(folder: Path, text: str) -> None:
    made = settings(folder, text)
    made.node.data_dir.mkdir(exist_ok=True)
    note_stream(made)
    if made.stream.store_dir is not None:
        (made.stream.store_dir / "jetstream").mkdir(parents=True, exist_ok=True)


def test_an_external_broker_is_told_of_until_its_line_is_taken_out(tmp_path: Path) -> None:
    worked_with(tmp_path, NATS)
    assert not list(left_behind(settings(tmp_path, NATS)))
    for _ in range(2):
        worked_with(tmp_path, "")
        (said,) = left_behind(settings(tmp_path, ""))
        assert "the broker at one:4333 before" in said and "secret" not in said
    (tmp_path / ".crewlet" / "streams").write_text("")
    assert not list(left_behind(settings(tmp_path, "")))


def test_a_store_that_moved_is_told_of_until_it_is_moved_away(tmp_path: Path) -> None:
    old, new = "stream: {store_dir: old}", "stream: {store_dir: new}"
    worked_with(tmp_path, old)
    worked_with(tmp_path, new)
    (said,) = left_behind(settings(tmp_path, new))
    assert said.startswith(f"{tmp_path}/old has the mail")
    (tmp_path / "old").rename(tmp_path / "away")
    assert not list(left_behind(settings(tmp_path, new)))


def test_a_broker_in_memory_leaves_nothing_and_is_not_noted(tmp_path: Path) -> None:
    worked_with(tmp_path, 'stream: {store_dir: ""}')
    assert not (tmp_path / ".crewlet" / "streams").exists()


def test_who_goes_back_to_a_broker_is_told_of_the_other(tmp_path: Path) -> None:
    for text in (NATS, "", NATS):
        worked_with(tmp_path, text)
    (said,) = left_behind(settings(tmp_path, NATS))
    assert said.startswith(f"{tmp_path}/.crewlet/broker has the mail")
