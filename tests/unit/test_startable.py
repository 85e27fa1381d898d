"""A seat whose program or key is missing: its mail waits, at no cost of a delivery, until what is missing appears."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
import structlog
from dispatch_desk import Desk
from node_rig import Fleet

from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import CommandRunner, LlmModel, LlmRunner, Seat
from crewlet.kit import logcontext
from crewlet.mail import topics
from crewlet.node.assembly import Node
from crewlet.node.troubles import told
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.runners import CommandTurns, LlmTurns
from crewlet.turns.runners.llm import ModelBroke
from crewlet.turns.runners.startable import Startable
from crewlet.turns.turn import Runner, StandingRunner, Turn, TurnResult


@dataclass
class _Disk(Programs):
    """Where the program is, or is not. `is_broken`: it is there, and yet does not start."""

    is_there: bool = True
    is_broken: bool = False
    looks: int = 0
    starts: int = 0

    async def look(self, spec: ProgramSpec) -> None:
        self.looks += 1
        if not self.is_there:
            raise ProgramNotStarted(f"{spec.argv[0]} was not found")

    async def spawn(self, spec: ProgramSpec) -> Program:
        self.starts += 1
        if self.is_broken or not self.is_there:
            raise ProgramNotStarted(f"{spec.argv[0]} did not start")
        raise _Started


class _Started(Exception):
    """As far as these programs go."""


class _Turns(CommandTurns):
    """Turns that are over once their program has started."""

    async def run(self, turn: Turn) -> TurnResult:
        try:
            return await super().run(turn)
        except _Started:
            self._startable.started()
            return TurnResult("delivered")


class _Desk(Fleet):
    def __post_init__(self) -> None:
        super().__post_init__()
        self.disk = _Disk()

    async def open(self) -> Node:
        return await self.node("n1")

    def runner(self, seat: Seat, node: str) -> Runner:
        command = Seat(seat.handle, runner=CommandRunner(("agent",)))
        return _Turns(command, self.disk, clock=self.clock, base_env={})

    async def unsettled(self) -> int:
        backlog = await next(iter(self.nodes.values())).commands.outbox.mail.waiting(topics.inbox("a"))
        assert backlog is not None
        return backlog.waiting + backlog.in_hand


def _trouble(node: Node) -> str:
    health = node.health()
    found = told(unproven_s={}, held_back=health.held_back or {}, waiting={}, last_error=health.last_error or {})
    return found.get("a", "")


def test_a_command_seat_keeps_an_eye_on_its_program() -> None:
    seat = Seat("a", runner=CommandRunner(("agent",)))
    assert isinstance(CommandTurns(seat, _Disk(), clock=SystemClock(), base_env={}), StandingRunner)


@in_virtual_time
async def test_mail_waits_for_a_missing_program_for_nothing_and_is_worked_once_it_appears() -> None:
    desk = _Desk(("a",))
    desk.disk.is_there = False
    node = await desk.open()
    await desk.send("a", "one")
    await desk.clock.sleep(2 * 3600)
    assert desk.disk.starts == 0 and await desk.unsettled() == 1
    assert _trouble(node) == "not ready, its mail waits: agent was not found"
    desk.disk.is_there = True
    await desk.until(lambda: desk.disk.starts == 1, "it is worked")
    await desk.until(lambda: _trouble(node) == "", "nothing is wrong any more")
    await desk.close()


@in_virtual_time
async def test_a_program_that_vanishes_breaks_no_turn_and_holds_the_mail() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    await desk.send("a", "one")
    await desk.until(lambda: desk.disk.starts == 1, "it is worked")
    desk.disk.is_there = False
    await desk.send("a", "two")
    await desk.clock.sleep(3600)
    assert desk.disk.starts == 2 and await desk.unsettled() == 1
    assert _trouble(node) == "not ready, its mail waits: agent was not found"
    desk.disk.is_there = True
    await desk.until(lambda: desk.disk.starts == 3, "it is worked")
    assert await desk.unsettled() == 0
    await desk.close()


@in_virtual_time
async def test_a_program_that_is_there_and_does_not_start_is_tried_more_and_more_rarely() -> None:
    desk = _Desk(("a",))
    desk.disk.is_broken = True
    node = await desk.open()
    await desk.send("a", "one")
    await desk.clock.sleep(8 * 3600)
    assert 12 <= desk.disk.starts <= 20 and await desk.unsettled() == 1
    assert _trouble(node) == "not ready, its mail waits: agent did not start"
    desk.disk.is_broken = False
    await desk.clock.sleep(3700)
    assert await desk.unsettled() == 0
    await desk.close()


@in_virtual_time
async def test_nothing_is_looked_for_after_the_tenure() -> None:
    desk = _Desk(("a",))
    desk.disk.is_there = False
    await desk.open()
    await desk.clock.sleep(10)
    await desk.close()
    looks = desk.disk.looks
    await desk.clock.sleep(1000)
    assert desk.disk.looks == looks > 1


async def _at_once(function: Any, *args: Any) -> Any:
    """There are no threads in virtual time."""
    return function(*args)


class _Engine:
    """An engine whose turns are over at once."""

    def __init__(self) -> None:
        self.ran: list[str] = []

    async def run(self, turn: Turn) -> TurnResult:
        self.ran += [event.id for event in turn.mail]
        return TurnResult("delivered")


class _LlmTurns(LlmTurns):
    desk: "_LlmDesk"

    async def run(self, turn: Turn) -> TurnResult:
        self.desk.handed += 1
        return await super().run(turn)

    def _open(self) -> Any:
        self.desk.opened += 1
        if self.desk.is_unknown:
            raise ModelBroke("model_unknown", "opnai:x: nobody knows it")
        return self.desk.engine


class _LlmDesk(_Desk):
    """`is_unknown`: that nobody knows the model is found out only by asking for it."""

    is_unknown = False
    opened = handed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.env: dict[str, str] = {}
        self.engine = _Engine()

    def runner(self, seat: Seat, node: str) -> Runner:
        reader = Seat(seat.handle, runner=LlmRunner(LlmModel("openai:x"), (LlmModel("openai:y", api_key="KEY"),)))
        turns = _LlmTurns(reader, clock=self.clock, entropy=SystemEntropy(), variable=self.env.get)
        turns.desk = self
        return turns


@in_virtual_time
async def test_mail_waits_for_a_missing_key_for_nothing_and_is_worked_once_it_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    desk = _LlmDesk(("a",))
    node = await desk.open()
    await desk.send("a", "one")
    await desk.clock.sleep(2 * 3600)
    assert desk.opened == 0 and await desk.unsettled() == 1
    assert node.health().held_back == {"a": "agent_not_ready"}
    assert (
        _trouble(node) == "not ready, its mail waits: key_missing: openai:y: the variable KEY is not set on this node"
    )
    desk.env["KEY"] = "sk"
    await desk.until(lambda: desk.engine.ran == ["one"], "it is worked")
    await desk.until(lambda: _trouble(node) == "", "nothing is wrong any more")
    await desk.close()


@in_virtual_time
async def test_a_model_that_nobody_knows_costs_one_hand_over_and_then_its_mail_waits_until_it_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(asyncio, "to_thread", _at_once)
    desk = _LlmDesk(("a",))
    desk.env["KEY"], desk.is_unknown = "sk", True
    node = await desk.open()
    await desk.send("a", "one")
    await desk.clock.sleep(2 * 3600)
    assert desk.handed == 1 and desk.opened > 100 and await desk.unsettled() == 1
    assert _trouble(node) == "not ready, its mail waits: model_unknown: opnai:x: nobody knows it"
    desk.is_unknown = False
    await desk.until(lambda: desk.engine.ran == ["one"], "it is worked")
    await desk.close()


@pytest.mark.parametrize(
    ("held_back", "errors", "says"),
    [
        ("agent_not_ready", {}, "not ready, its mail waits: it is being started"),
        ("agent_not_ready, seat_paused", {"a": "x"}, "not ready, its mail waits: x; held back: seat_paused"),
        ("seat_paused", {"a": "x"}, "held back: seat_paused; last error: x"),
    ],
)
def test_why_a_seat_is_not_ready_is_told_apart_from_its_last_error(
    held_back: str, errors: dict[str, str], says: str
) -> None:
    assert told(unproven_s={}, held_back={"a": held_back}, waiting={}, last_error=errors) == {"a": says}


@in_virtual_time
async def test_what_is_looked_for_after_a_turn_is_logged_without_the_names_of_that_turn() -> None:
    desk = Desk()
    looks = 0

    async def look() -> None:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise ProgramNotStarted("it is not there")

    startable = Startable("alice", clock=desk.clock)
    startable.start(look, desk.new_fence(7), lambda: None)
    with structlog.testing.capture_logs(processors=[logcontext.merge]) as logs:
        await desk.clock.sleep(1.0)
        with logcontext.bound({"turn_id": "t1"}):
            startable.failed("it was not there")
        await desk.clock.sleep(60.0)
    assert [line["event"] for line in logs] == ["program_not_startable", "program_startable"]
    assert not any("turn_id" in line for line in logs)
    await startable.end()
