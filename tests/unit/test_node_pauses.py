"""Pauses on whole nodes: wherever a paused seat goes, its mail waits."""

from typing import cast

import pytest
from node_rig import TTL_S, Fleet

from crewlet.mail import topics
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.ports.cells import BucketSpec, Cells, CellStore
from crewlet.testing.faults import FaultyCells
from crewlet.testing.virtual import in_virtual_time


class _Wires:
    """The store as one node reaches it, its pauses over a wire that can be cut."""

    def __init__(self, fleet: Fleet) -> None:
        self._store = fleet.store
        self.pauses: list[FaultyCells] = []
        fleet.store_of = lambda name: cast("CellStore", self)

    def cut(self) -> None:
        self.pauses[-1].cut()

    async def open(self, spec: BucketSpec) -> Cells:
        cells = await self._store.open(spec)
        if spec.name != PAUSES_BUCKET.name:
            return cells
        self.pauses.append(FaultyCells(cells))
        return self.pauses[-1]


async def _people(fleet: Fleet) -> Pauses:
    return Pauses(await fleet.store.open(PAUSES_BUCKET))


@pytest.mark.proves("HO-01")
@in_virtual_time
async def test_a_paused_seat_that_moves_runs_nothing_there_and_its_mail_in_order_once_it_is_resumed() -> None:
    fleet = Fleet(("a", "b"))
    first = await fleet.node("n1")
    people = await _people(fleet)
    await people.pause(["a"], Wish("p1"))
    await fleet.until(lambda: "seat_paused" in (first.health().held_back or {}).get("a", ""), "n1 holds it")
    second = await fleet.node("n2")
    await fleet.stop("n1")
    await fleet.until(lambda: fleet.holder("a") == "n2", "it moved")
    for message in ("w1", "w2"):
        await fleet.send("a", message)
    await fleet.send("b", "other")
    await fleet.until(lambda: fleet.finished("other"), "a seat that is not paused runs")
    await fleet.clock.sleep(3 * TTL_S)
    assert [run for run in fleet.runs if run.seat == "a"] == []
    assert second.health().held_back == {"a": "seat_paused"}
    backlog = await second.commands.outbox.mail.waiting(topics.inbox("a"))
    assert backlog is not None and (backlog.waiting, backlog.in_hand) == (2, 0)
    await people.resume({"a": "p1"})
    await fleet.until(lambda: fleet.finished("w2"), "it runs")
    assert [(run.node, run.triggers) for run in fleet.runs if run.seat == "a"] == [("n2", ("w1",)), ("n2", ("w2",))]
    assert second.health().held_back is None
    await fleet.close()


@pytest.mark.proves("IN-01")
@in_virtual_time
async def test_a_node_that_has_not_read_the_pauses_holds_its_inboxes_until_it_has() -> None:
    fleet = Fleet(("a", "b"))
    wires = _Wires(fleet)
    people = await _people(fleet)
    await people.pause(["a"], Wish("p1"))
    fleet.before_start = wires.cut
    node = await fleet.node("n1")
    for seat in "ab":
        await fleet.send(seat, f"to-{seat}")
    await fleet.clock.sleep(5 * TTL_S)
    assert fleet.runs == []
    assert node.health().held_back == {"a": "pauses_unread", "b": "pauses_unread"}
    wires.pauses[0].heal()
    await fleet.until(lambda: fleet.finished("to-b"), "it reads and runs")
    assert node.health().held_back == {"a": "seat_paused"}
    await fleet.clock.sleep(TTL_S)
    assert [run.seat for run in fleet.runs] == ["b"]
    await fleet.close()


@in_virtual_time
async def test_a_seat_that_comes_while_the_pauses_cannot_be_read_is_held_though_this_node_read_them_once() -> None:
    fleet = Fleet(("a",))
    wires = _Wires(fleet)
    await fleet.node("n1")
    node = await fleet.node("n2")
    await fleet.clock.sleep(1)
    wires.pauses[1].cut()
    people = await _people(fleet)
    await people.pause(["a"], Wish("p1"))
    await fleet.stop("n1")
    await fleet.until(lambda: fleet.holder("a") == "n2", "it moved")
    await fleet.send("a", "one")
    await fleet.clock.sleep(2 * TTL_S)
    assert fleet.runs == []
    wires.pauses[1].heal()
    await fleet.until(lambda: node.health().held_back == {"a": "seat_paused"}, "it has read them")
    await people.resume({"a": "p1"})
    await fleet.until(lambda: fleet.finished("one"), "it runs")
    await fleet.close()


@in_virtual_time
async def test_a_node_that_cannot_reach_the_pauses_any_more_goes_on_as_it_knew_them() -> None:
    fleet = Fleet(("a", "b"))
    wires = _Wires(fleet)
    node = await fleet.node("n1")
    people = await _people(fleet)
    await people.pause(["a"], Wish("p1"))
    await fleet.until(lambda: node.health().held_back == {"a": "seat_paused"}, "it holds it")
    wires.pauses[0].cut()
    for seat in "ab":
        await fleet.send(seat, f"to-{seat}")
    await fleet.until(lambda: fleet.finished("to-b"), "what ran goes on")
    await fleet.clock.sleep(10 * TTL_S)
    assert [run.seat for run in fleet.runs] == ["b"]
    await fleet.close()


@in_virtual_time
async def test_a_pause_lets_the_running_turn_end_unless_it_asks_for_its_stop() -> None:
    fleet = Fleet(("a",), turn_s=20)
    node = await fleet.node("n1")
    people = await _people(fleet)
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "it runs")
    await people.pause(["a"], Wish("p1"))
    await fleet.until(lambda: fleet.finished("one"), "it ends by itself")
    await fleet.send("a", "two")
    await fleet.clock.sleep(2 * TTL_S)
    assert len(fleet.runs) == 1
    await people.resume({"a": "p1"})
    await fleet.until(lambda: len(fleet.runs) == 2, "two runs")
    await people.pause(["a"], Wish("p2"))
    await fleet.clock.sleep(2)
    assert node.health().in_flight == 1
    await people.pause(["a"], Wish("p3", by="ada", reason="wrong customer", stop_running=True), instead_of="p2")
    await fleet.until(lambda: node.health().in_flight == 0, "it is stopped")
    outcome = await node.commands.mail_outcome("a", "two")
    assert (outcome.outcome, outcome.detail) == ("stopped", "paused by ada: wrong customer")
    await people.resume({"a": "p3"})
    await fleet.clock.sleep(3 * TTL_S)
    assert len(fleet.runs) == 2 and fleet.runs[1].ended_at is None
    await fleet.send("a", "three")
    await fleet.until(lambda: fleet.finished("three"), "the next mail runs")
    await fleet.close()


@in_virtual_time
async def test_a_pause_that_ends_by_itself_opens_the_inbox_again() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    people = await _people(fleet)
    await people.pause(["a"], Wish("p1", for_s=1000))
    await fleet.until(lambda: node.health().held_back, "it holds it")
    await fleet.send("a", "one")
    await fleet.clock.sleep(900)
    assert fleet.runs == []
    await fleet.until(lambda: fleet.finished("one"), "it runs", bound_s=102)
    await fleet.close()
