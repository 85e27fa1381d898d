"""This node's own record of its turns, in a real file."""

import asyncio
import sqlite3
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crewlet.adapters.sqlite import history as module
from crewlet.adapters.sqlite.database import Database, run
from crewlet.adapters.sqlite.history import SqliteHistory
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.errors import Misuse, NotLive, Unavailable
from crewlet.ports.history import (
    CallBegan,
    CallEnded,
    Dispatched,
    Progressed,
    RoundBegan,
    RoundEnded,
    TurnBegan,
    TurnEnded,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return T0 + timedelta(seconds=seconds)


def began(turn_id: str, seconds: float = 0, seat: str = "alice") -> TurnBegan:
    return TurnBegan(turn_id, seat, 3, "llm", "w", ("e1", "e2"), at(seconds))


@asynccontextmanager
async def history_in(path: Path) -> AsyncGenerator[SqliteHistory]:
    database = Database(path)
    await database.open()
    history = SqliteHistory(database)
    try:
        yield history
    finally:
        await history.close()
        await database.close()


async def test_a_turn_is_remembered_whole_across_a_restart(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        history.note(began("t1"))
        history.note(RoundBegan("t1", 1, at(1)))
        history.note(RoundEnded("t1", 1, "m", 100, 20, at(2)))
        await history.keep(CallBegan("t1", 1, "write", "files", True, "key", '{"a":1}', at(3)))
        history.note(CallEnded("t1", 1, False, "done", at(4)))
        history.note(Progressed("t1", "half way", at(5)))
        history.note(TurnEnded("t1", "delivered", "all of it", at(6)))
    async with history_in(tmp_path / "node.db") as history:
        page = await history.turn("t1")
        assert page is not None
        turn, (round_one,), (call,) = page.turn, page.rounds, page.calls
        assert (turn.seat, turn.epoch, turn.triggers, turn.outcome) == ("alice", 3, ("e1", "e2"), "delivered")
        assert (turn.began_at, turn.ended_at, turn.progress, turn.round, turn.tool) == (at(0), at(6), "half way", 1, "")
        assert (round_one.model, round_one.input_tokens, round_one.output_tokens) == ("m", 100, 20)
        assert (call.round, call.tool, call.is_effect, call.key, call.answer) == (1, "write", True, "key", "done")
        assert (call.began_at, call.ended_at) == (at(3), at(4))


async def test_a_running_turn_shows_its_round_its_tool_and_its_last_progress(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        history.note(began("t1"))
        history.note(RoundBegan("t1", 2, at(1)))
        history.note(CallBegan("t1", 1, "search", "web", True, "k", "{}", at(7)))
        (turn,) = await history.turns("alice")
        assert (turn.round, turn.tool, turn.progressed_at, turn.ended_at, turn.outcome) == (
            2,
            "search",
            at(7),
            None,
            "",
        )


async def test_reading_on_brings_new_turns_and_those_that_were_running(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        for number in range(5):
            history.note(began(f"t{number}", number))
            if number != 1:
                history.note(TurnEnded(f"t{number}", "no_action", "", at(number)))
        history.note(began("other", seat="bob"))
        first = await history.turns("alice", limit=2)
        assert [turn.turn_id for turn in first] == ["t3", "t4"]
        history.note(began("t5", 9))
        later = await history.turns("alice", after=first[-1].sequence)
        assert [turn.turn_id for turn in later] == ["t1", "t5"]


async def test_a_turn_is_found_by_a_prefix_that_is_its_alone(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        for turn_id in ("abc", "abd", "ab", "x%y"):
            history.note(began(turn_id))
        found = {prefix: await history.turn(prefix) for prefix in ("abc", "ab", "a", "x", "%", "", "abc_", "zzz")}
        assert {prefix: page.turn.turn_id for prefix, page in found.items() if page is not None} == {
            "abc": "abc",
            "ab": "ab",
            "x": "x%y",
        }


async def test_what_ran_no_turn_is_remembered_with_its_reason(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        history.note(Dispatched("alice", ("e1",), "defer", 'seat "alice" is not owned here', at(1)))
        history.note(Dispatched("bob", ("e2",), "ack", "already finished", at(2)))
        (line,) = await history.dispatches("alice")
        assert (line.triggers, line.answer, line.reason, line.at) == (
            ("e1",),
            "defer",
            'seat "alice" is not owned here',
            at(1),
        )


async def test_forgetting_takes_old_turns_with_all_of_theirs_in_bounded_steps(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with history_in(path) as history:
        for number in range(7):
            history.note(began(f"t{number}", number))
            history.note(RoundBegan(f"t{number}", 1, at(number)))
            history.note(CallBegan(f"t{number}", 1, "t", "", False, "k", "{}", at(number)))
            history.note(TurnEnded(f"t{number}", "failed", "", at(number)))
            history.note(Dispatched("alice", (), "ack", "", at(number)))
        history.note(began("running", 0))
        history.note(Progressed("running", "still at it", at(50)))
        assert [await history.prune(at(5), at_most=8) for _ in range(4)] == [8, 8, 4, 0]
        assert [turn.turn_id for turn in await history.turns("alice")] == ["t5", "t6", "running"]
    with sqlite3.connect(path) as reader:
        counts = [
            reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in ("rounds", "calls", "dispatches")
        ]
    assert counts == [2, 2, 2]


async def test_a_turn_of_many_calls_is_forgotten_in_steps_of_so_many_rows(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with history_in(path) as history:
        history.note(began("long", 1))
        for number in range(1, 41):
            history.note(RoundBegan("long", number, at(1)))
            history.note(CallBegan("long", number, "t", "", False, "k", "{}", at(1)))
        history.note(TurnEnded("long", "delivered", "", at(1)))
        for number in range(3, 0, -1):
            history.note(Dispatched("alice", (f"e{number}",), "ack", "", at(number)))

        def rows() -> int:
            with sqlite3.connect(path) as reader:
                tables = ("turns", "rounds", "calls", "dispatches")
                return sum(reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables)

        kept = [84]
        while gone := await history.prune(at(5), at_most=30):
            kept.append(rows())
            assert kept[-2] - kept[-1] == gone <= 30
        assert kept == [84, 54, 24, 0]


async def test_the_oldest_dispatches_are_forgotten_first(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        for number in (4, 1, 3, 2):
            history.note(Dispatched("alice", (f"e{number}",), "ack", "", at(number)))
        assert await history.prune(at(9), at_most=2) == 2
        assert sorted(line.triggers for line in await history.dispatches("alice")) == [("e3",), ("e4",)]


async def test_a_turn_whose_process_died_is_forgotten_with_its_age(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        history.note(began("died", 1))
        assert await history.prune(at(5)) == 1


async def test_a_text_is_kept_up_to_a_bound(tmp_path: Path) -> None:
    async with history_in(tmp_path / "node.db") as history:
        history.note(began("t1"))
        history.note(CallBegan("t1", 1, "t", "", False, "k", "x" * 10_000, at(1)))
        history.note(CallEnded("t1", 1, False, "y" * 10_000, at(2)))
        page = await history.turn("t1")
        assert page is not None and len(page.calls[0].arguments) == len(page.calls[0].answer) == 2_000


async def test_a_disk_that_is_slow_costs_no_turn_and_what_is_lost_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    async with history_in(tmp_path / "node.db") as history:
        for number in range(30):
            history.note(began(f"t{number}", number))
        assert len(await history.turns("alice")) == 10
    assert capsys.readouterr().out.count("history_lost") == 1


async def test_a_write_that_fails_says_so_only_to_whoever_waits_for_it(tmp_path: Path) -> None:
    path = tmp_path / "node.db"
    async with history_in(path) as history:
        await history.keep(began("t0"))
        with sqlite3.connect(path) as other:
            other.execute("DROP TABLE calls")
            other.commit()
        history.note(CallBegan("t0", 1, "t", "", False, "k", "{}", at(1)))
        assert [turn.turn_id for turn in await history.turns("alice")] == ["t0"]
        with pytest.raises(Unavailable, match="no such table"):
            await history.keep(CallBegan("t0", 2, "t", "", True, "k", "{}", at(1)))


async def test_the_loop_goes_on_while_the_disk_works(tmp_path: Path) -> None:
    database = Database(tmp_path / "node.db")
    await database.open()
    go_on = threading.Event()
    writing = asyncio.ensure_future(database.write(lambda _: go_on.wait(20)))
    await asyncio.sleep(0.05)
    assert await database.read(lambda connection: run(connection, "SELECT 1")) == [(1,)]
    go_on.set()
    assert await writing is True
    await database.close()


async def test_a_closed_database_says_so(tmp_path: Path) -> None:
    database = Database(tmp_path / "node.db")
    await database.open()
    await database.close()
    await database.close()
    with pytest.raises(NotLive):
        await database.read(lambda _: None)


@pytest.mark.parametrize("limit", [0, 1_001])
async def test_a_limit_is_held_to(tmp_path: Path, limit: int) -> None:
    async with history_in(tmp_path / "node.db") as history:
        with pytest.raises(Misuse):
            await history.turns("alice", limit=limit)


async def test_a_file_of_a_newer_build_or_no_database_is_refused_with_its_path(tmp_path: Path) -> None:
    newer, other = tmp_path / "newer.db", tmp_path / "other.db"
    with sqlite3.connect(newer) as connection:
        connection.execute("PRAGMA user_version = 999")
    other.write_text("this is no database, and it is long enough to be read as one " * 20)
    for path, says in (
        (newer, "newer build"),
        (other, "not a database"),
        (tmp_path / "no" / "folder.db", "unable to open"),
    ):
        database = Database(path)
        with pytest.raises(ConfigRefused, match=says) as refusal:
            await database.open()
        assert str(path) in str(refusal.value)
        await database.close()
