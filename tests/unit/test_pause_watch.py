"""What one node knows of the pauses, over a store that misbehaves."""

from random import Random

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.pauses import PAUSES_BUCKET, PAUSES_KEY, Pauses, Wish
from crewlet.mail.pausewatch import PauseWatch
from crewlet.ports.cells import Cells
from crewlet.testing.faults import Fault, Faults, FaultyCells
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until


class _Node:
    """A watch over a wire of its own, and what it told."""

    def __init__(self, cells: FaultyCells, clock: VirtualClock) -> None:
        self.wire = cells
        self.told = 0
        self.watch = PauseWatch(cells, clock, self._tell)

    def _tell(self) -> None:
        self.told += 1

    def paused(self, handle: str = "alice") -> str | None:
        pause = self.watch.of(handle)
        return pause.id if pause is not None else None


class _World:
    """One bucket, people who write it, and nodes that watch it."""

    def __init__(self, clock: VirtualClock, cells: Cells) -> None:
        self.clock = clock
        self.cells = cells
        self.people = Pauses(cells)
        self.nodes: list[_Node] = []

    @classmethod
    async def open(cls) -> "_World":
        clock = VirtualClock()
        return cls(clock, await LocalCells(clock).open(PAUSES_BUCKET))

    def node(self, *, is_started: bool = True) -> _Node:
        node = _Node(FaultyCells(self.cells, sleep=self.clock.sleep), self.clock)
        self.nodes.append(node)
        if is_started:
            node.watch.start()
        return node

    async def close(self) -> None:
        for node in self.nodes:
            await node.watch.stop()


@in_virtual_time
async def test_a_pause_and_its_end_reach_every_node() -> None:
    world = await _World.open()
    nodes = [world.node(), world.node()]
    await world.people.pause(["alice"], Wish("p1"))
    await until(lambda: all(node.paused() == "p1" for node in nodes))
    assert all(node.paused("bob") is None and node.told for node in nodes)
    await world.people.resume({"alice": "p1"})
    await until(lambda: all(node.paused() is None for node in nodes))
    await world.close()


@in_virtual_time
async def test_a_node_that_begins_late_learns_what_stands() -> None:
    world = await _World.open()
    await world.people.pause(["alice"], Wish("p1"))
    node = world.node()
    await until(lambda: node.paused() == "p1")
    await world.close()


@in_virtual_time
async def test_a_question_is_answered_only_by_a_read_that_was_sent_after_it() -> None:
    world = await _World.open()
    node = world.node()
    node.wire.cut()
    first = node.watch.ask()
    await world.clock.sleep(30)
    assert not node.watch.is_answered(first)
    await world.people.pause(["alice"], Wish("p1"))
    node.wire.heal()
    await until(lambda: node.watch.is_answered(first))
    assert node.paused() == "p1"
    second = node.watch.ask()
    assert not node.watch.is_answered(second)
    await until(lambda: node.watch.is_answered(second))
    await world.close()


@in_virtual_time
async def test_a_read_that_is_on_its_way_does_not_answer_a_later_question() -> None:
    world = await _World.open()
    node = world.node()
    await world.clock.sleep(1)
    node.wire.faults = Faults(delay_s=10.0)
    first = node.watch.ask()
    await world.clock.sleep(0.001)
    second = node.watch.ask()
    await until(lambda: node.watch.is_answered(first))
    assert not node.watch.is_answered(second)
    await until(lambda: node.watch.is_answered(second))
    await world.close()


@in_virtual_time
async def test_a_store_that_cannot_be_reached_ends_no_pause_not_even_one_whose_instant_has_come() -> None:
    world = await _World.open()
    await world.people.pause(["alice"], Wish("p1"))
    await world.people.pause(["bob"], Wish("p2", for_s=60))
    node = world.node()
    await until(lambda: node.paused() == "p1" and node.paused("bob") == "p2")
    node.wire.cut()
    await world.clock.sleep(3600)
    assert (node.paused(), node.paused("bob")) == ("p1", "p2")
    node.wire.heal()
    await until(lambda: node.paused("bob") is None)
    assert node.paused() == "p1"
    await world.close()


@in_virtual_time
async def test_a_pause_ends_at_its_instant_by_the_stores_clock_whatever_the_nodes_clock_says() -> None:
    world = await _World.open()
    fast = PauseWatch(world.cells, VirtualClock(rate=1.5), lambda: None)
    slow = PauseWatch(world.cells, VirtualClock(rate=0.7), lambda: None)
    await world.people.pause(["alice"], Wish("p1", for_s=100))
    began = world.clock.elapsed()
    for watch in (fast, slow):
        watch.start()
    for watch in (fast, slow):
        await world.clock.sleep(1)
        assert watch.of("alice") is not None
    ended: dict[PauseWatch, float] = {}
    while len(ended) < 2:
        for watch in (fast, slow):
            if watch.of("alice") is None:
                ended.setdefault(watch, world.clock.elapsed() - began)
        await world.clock.sleep(0.05)
        assert world.clock.elapsed() - began < 1000
    assert ended[fast] >= 100 and ended[slow] >= 100
    assert ended[fast] < 101
    for watch in (fast, slow):
        await watch.stop()


@in_virtual_time
async def test_an_end_that_is_moved_forward_or_back_is_heeded() -> None:
    world = await _World.open()
    node = world.node()
    await world.people.pause(["alice"], Wish("p1", for_s=10_000))
    await until(lambda: node.paused() == "p1")
    await world.people.pause(["alice"], Wish("p2", for_s=5), instead_of="p1")
    await until(lambda: node.paused() == "p2")
    await until(lambda: node.paused() is None, within_s=6)
    await world.close()


@in_virtual_time
async def test_a_member_that_lost_its_quorum_neither_answers_a_question_nor_ends_a_pause() -> None:
    world = await _World.open()
    node = world.node()
    await world.clock.sleep(1)
    await node.wire.go_stale()
    await world.people.pause(["alice"], Wish("p1"))
    await until(lambda: node.paused() == "p1")
    question = node.watch.ask()
    await world.clock.sleep(60)
    assert node.paused() == "p1" and not node.watch.is_answered(question)
    node.wire.heal()
    await until(lambda: node.watch.is_answered(question))
    await world.close()


@in_virtual_time
async def test_a_watch_that_cannot_begin_is_begun_again_and_a_read_that_hangs_keeps_nothing_else_up() -> None:
    world = await _World.open()
    node = world.node(is_started=False)
    node.wire.next("watch", Fault.LOST)
    node.wire.next("watch", Fault.LOST)
    node.wire.next("read", Fault.HANGS)
    node.watch.start()
    question = node.watch.ask()
    await world.people.pause(["alice"], Wish("p1"))
    await until(lambda: node.paused() == "p1")
    assert not node.watch.is_answered(question)
    await world.close()


@in_virtual_time
async def test_a_record_that_was_removed_by_hand_means_that_nothing_is_paused_and_questions_are_answered_again() -> (
    None
):
    world = await _World.open()
    node = world.node()
    await world.people.pause(["alice"], Wish("p1"))
    await until(lambda: node.paused() == "p1")
    entry = await world.cells.read(PAUSES_KEY)
    assert entry is not None
    await world.cells.remove(PAUSES_KEY, expect=entry.revision)
    await until(lambda: node.paused() is None)
    question = node.watch.ask()
    await until(lambda: node.watch.is_answered(question))
    await world.people.pause(["alice"], Wish("p2"))
    await until(lambda: node.paused() == "p2")
    await world.close()


@in_virtual_time
async def test_a_record_that_cannot_be_understood_changes_nothing_and_answers_no_question() -> None:
    world = await _World.open()
    node = world.node()
    await world.people.pause(["alice"], Wish("p1"))
    await until(lambda: node.paused() == "p1")
    entry = await world.cells.read(PAUSES_KEY)
    assert entry is not None
    await world.cells.replace(PAUSES_KEY, b"{", expect=entry.revision)
    question = node.watch.ask()
    await world.clock.sleep(30)
    assert node.paused() == "p1" and not node.watch.is_answered(question)
    await world.close()


@pytest.mark.parametrize("seed", range(5))
@in_virtual_time
async def test_on_a_bad_wire_every_node_is_level_once_it_heals(seed: int) -> None:
    world = await _World.open()
    nodes = [world.node() for _ in range(3)]
    random = Random(seed)
    for node in nodes:
        node.wire.faults = Faults(unavailable=0.4, delay_s=2.0)
    standing = ""
    for number in range(12):
        if standing:
            await world.people.resume({"alice": standing})
            standing = ""
        else:
            standing = f"p{number}"
            await world.people.pause(["alice"], Wish(standing))
        await world.clock.sleep(3 * random.random())
        for node in nodes:
            node.watch.ask()
    for node in nodes:
        node.wire.heal()
    questions = [node.watch.ask() for node in nodes]
    await until(lambda: all(node.watch.is_answered(q) for node, q in zip(nodes, questions, strict=True)))
    assert [node.paused() or "" for node in nodes] == [standing] * 3
    await world.close()
