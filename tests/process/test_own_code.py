"""The example of seats in the user's own code, as it is shipped."""

import importlib.util
import os
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from process_kit import ENV
from seat_bench import SeatBench

from crewlet.adapters.process import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.company.document import load_company
from crewlet.company.model import CommandRunner, PythonRunner
from crewlet.turns.runners import CommandTurns
from crewlet.turns.turn import TurnResult

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

EXAMPLE = Path(__file__).parents[2] / "src" / "crewlet" / "examples" / "own_code"
PACKAGES = os.environ.get("CREWLET_EXAMPLE_PACKAGES", "")
"""Where `requirements.txt` of the example was installed to."""


@asynccontextmanager
async def _seat(handle: str, *, epoch: int = 7, **env: str) -> AsyncGenerator[SeatBench]:
    seat = load_company(EXAMPLE / "company.yaml").seat(handle)
    assert seat is not None and isinstance(seat.runner, PythonRunner)
    bench = SeatBench(epoch=epoch)
    turns = await bench.start(seat.runner.target, path=EXAMPLE, env={**seat.runner.env, **env})
    try:
        assert turns.trouble is None
        yield bench
    finally:
        await turns.end()


async def test_the_shell_script_ends_with_an_outcome_under_its_term() -> None:
    seat = load_company(EXAMPLE / "company.yaml").seat("lister")
    assert seat is not None and isinstance(seat.runner, CommandRunner)
    bench = SeatBench()
    bench.seat = seat
    turns = CommandTurns(seat, LocalPrograms(), clock=SystemClock(), base_env=ENV)
    result = await turns.run(bench.turn("hi"))
    assert result.outcome == "delivered"
    assert result.detail.endswith("files at epoch 7")


async def test_the_plain_function_counts_and_answers() -> None:
    async with _seat("counter") as bench:
        assert await bench.run("three words here") == TurnResult("delivered", "3 words")
        assert [mail.body for mail in bench.sent] == ["3 words"]


async def test_a_store_outside_refuses_the_owner_of_the_past_and_writes_the_same_work_once(tmp_path: Path) -> None:
    books = str(tmp_path / "books.sqlite")
    async with _seat("clerk", epoch=7, BOOKS=books) as past, _seat("clerk", epoch=8, BOOKS=books) as present:
        assert await past.run("two chairs") == TurnResult("delivered", "entries written: 1")
        assert await past.run("two chairs") == TurnResult("delivered", "entries written: 0")
        assert await present.run("a table", mail_id="e2") == TurnResult("delivered", "entries written: 1")
        late = await past.run("a lamp", mail_id="e3")
    assert late == TurnResult("blocked", "seat:alice is at epoch 8; this write carries 7")
    with sqlite3.connect(books) as store:
        assert store.execute("SELECT text, epoch FROM entries ORDER BY rowid").fetchall() == [
            ("two chairs", 7),
            ("a table", 8),
        ]


@pytest.mark.skipif(
    not PACKAGES and importlib.util.find_spec("langgraph") is None,
    reason="needs the example's requirements: set CREWLET_EXAMPLE_PACKAGES to where they are",
)
async def test_the_graph_of_a_framework_answers_and_is_built_once() -> None:
    async with _seat("thinker", PYTHONPATH=PACKAGES) as bench:
        assert await bench.run("world hello") == TurnResult("delivered", "Hello world")
        assert await bench.run("world hello") == TurnResult("delivered", "Hello world")
        assert [usage.round for usage in bench.spent] == [1, 2, 1, 2]
        assert [mail.body for mail in bench.sent] == ["Hello world"] * 2


@pytest.mark.parametrize("number", [0, 1])
async def test_the_functions_of_the_how_to_run_as_they_are(tmp_path: Path, number: int) -> None:
    page = (EXAMPLE.parents[3] / "docs" / "how-to" / "python-seats.md").read_text()
    (tmp_path / "agents.py").write_text(page.split("```python\n")[number + 1].split("```", 1)[0])
    bench = SeatBench()
    turns = await bench.start("agents:run", path=tmp_path)
    try:
        wanted = (TurnResult("delivered", "answered"), TurnResult("no_action", "nothing for me"))
        assert await bench.run("hi") == wanted[number]
        assert [mail.body for mail in bench.sent] == (["got 2 characters"] if number == 0 else [])
    finally:
        await turns.end()
