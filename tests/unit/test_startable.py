"""A `command` seat whose program is missing: its mail waits, at no cost of a delivery, until the program appears."""

from dataclasses import dataclass

import pytest
from node_rig import Fleet

from crewlet.adapters.system.clock import SystemClock
from crewlet.company.model import CommandRunner, Seat
from crewlet.mail import topics
from crewlet.node.assembly import Node
from crewlet.node.troubles import told
from crewlet.ports.programs import Program, ProgramNotStarted, Programs, ProgramSpec
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.runners import CommandTurns
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
            assert self._startable is not None
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
    found = told(unproven_s={}, held_back=health.held_back or {}, waiting={}, last_errors=health.last_errors or {})
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
    await desk.clock.sleep(24 * 3600)
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
    assert told(unproven_s={}, held_back={"a": held_back}, waiting={}, last_errors=errors) == {"a": says}
