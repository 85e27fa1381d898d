"""Why a seat's mail waits, whichever node is asked."""

import asyncio
import re

import pytest
from node_rig import Fleet

from crewlet.company.model import Seat
from crewlet.node.assembly import Node
from crewlet.node.mailstatus import SeatMail
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Fence, Runner, Turn, TurnResult


class _Unready:
    """A runner that keeps an agent which cannot be started."""

    kind = "standing"
    is_ready = False
    trouble: str | None = "worker_not_ready: No module named 'desk'"

    def start(self, fence: Fence, on_change: object) -> None:
        del fence, on_change

    async def end(self) -> None:
        return

    async def run(self, turn: Turn) -> TurnResult:
        raise AssertionError(turn)


class _Waiting:
    """A runner whose turns wait for something outside."""

    kind = "waiting"

    def __init__(self, what: str, until: asyncio.Event) -> None:
        self.what, self.until = what, until

    async def run(self, turn: Turn) -> TurnResult:
        turn.waiting(self.what)
        await self.until.wait()
        return TurnResult("delivered")


class _Desk(Fleet):
    is_unready = False
    waits_for = ""
    goes_on = asyncio.Event()

    def runner(self, seat: Seat, node: str) -> Runner:
        if self.waits_for:
            return _Waiting(self.waits_for, self.goes_on)
        return _Unready() if self.is_unready else super().runner(seat, node)

    async def pair(self) -> tuple[Node, Node]:
        """The node that holds the one seat, and another."""
        first = await self.node("n1")
        return first, await self.node("n2")


async def seen(nodes: tuple[Node, Node]) -> list[SeatMail]:
    return [await node.commands.seat_mail("a") for node in nodes]


@in_virtual_time
async def test_both_nodes_tell_why_an_agent_is_not_ready() -> None:
    desk = _Desk(("a",))
    desk.is_unready = True
    nodes = await desk.pair()
    await desk.send("a", "one")
    for mail in await seen(nodes):
        assert (mail.node, mail.waiting, mail.held, mail.is_held_known) == ("n1", 1, "agent_not_ready", True)
        assert mail.why == "a is not ready: worker_not_ready: No module named 'desk'"
    await desk.close()


@in_virtual_time
async def test_both_nodes_tell_since_when_a_seat_is_at_work_and_in_which_turn() -> None:
    desk = _Desk(("a",), turn_s=200)
    nodes = await desk.pair()
    await desk.send("a", "one")
    await desk.until(nodes[0].seats.running_turns, "it is worked")
    (turn_id,) = nodes[0].seats.running_turns().values()
    began = desk.clock.now().isoformat(timespec="seconds")
    await desk.clock.sleep(120)
    for mail in await seen(nodes):
        assert mail.why.startswith(f"a has been at work since {began[:15]}")
        assert f"`crewlet turn show {turn_id}` on n1" in mail.why
    await desk.until(lambda: not nodes[0].seats.running_turns(), "it is done")
    assert [mail.why for mail in await seen(nodes)] == ["", ""]
    await desk.close()


@in_virtual_time
async def test_both_nodes_tell_what_the_turn_of_a_seat_waits_for() -> None:
    desk = _Desk(("a",))
    desk.waits_for = "waiting for its provider, next try in 8 s: openai:m: Connection error."
    nodes = await desk.pair()
    await desk.send("a", "one")
    await desk.until(nodes[0].seats.waiting, "it waits")
    for mail in await seen(nodes):
        assert " and is waiting for its provider, next try in 8 s: openai:m: Connection error; `crewlet" in mail.why
    desk.goes_on.set()
    await desk.close()


@in_virtual_time
async def test_both_nodes_tell_why_the_last_turn_broke_until_one_has_not() -> None:
    desk = _Desk(("a",))
    nodes = await desk.pair()
    desk.break_next = "program_failed: it exited with code 3"
    await desk.send("a", "one")
    await desk.until(lambda: not desk.break_next and not nodes[0].seats.running_turns(), "it broke")
    for mail in await seen(nodes):
        assert (mail.in_hand, mail.held, mail.last_error) == (1, "", "program_failed: it exited with code 3")
    await desk.until(lambda: desk.finished("one"), "it came back")
    assert [mail.last_error for mail in await seen(nodes)] == ["", ""]
    await desk.close()


@in_virtual_time
async def test_a_seat_that_nobody_holds_is_told_as_that(monkeypatch: pytest.MonkeyPatch) -> None:
    desk = _Desk(("a",))
    monkeypatch.setattr("crewlet.node.seat.SeatRuntime.on_acquire", _refuse)
    node = await desk.node("n1")
    await desk.send("a", "one")
    await desk.clock.sleep(5)
    mail = await node.commands.seat_mail("a")
    assert mail.node is None and re.match(
        r"a: no node holds it; one takes it at its next pass.* \(free since 2030-\S+\)$", mail.why
    )
    await desk.close()


async def _refuse(*args: object) -> None:
    raise RuntimeError(args)


@in_virtual_time
async def test_a_holder_that_says_nothing_leaves_it_open_what_it_does() -> None:
    desk = _Desk(("a",))
    nodes = await desk.pair()
    monkeyed = nodes[1]
    desk.signals = type(desk.signals)()
    monkeyed._seat_work._signals = desk.signals  # pyright: ignore[reportPrivateUsage]
    mail = await monkeyed.commands.seat_mail("a")
    assert (mail.node, mail.why, mail.is_held_known) == ("n1", "", False)
    await desk.close()
