"""Turns that follow each other while their records are on their way, and what they know of the ledger meanwhile."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from dispatch_desk import Desk, Script, mails

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.ledger import LEDGER_BUCKET
from crewlet.ports.cells import Cells, Entry, WriteResult
from crewlet.ports.mail import Ack, Settling
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.record import TurnNote
from crewlet.turns.turn import Turn, TurnResult


class SlowLedger:
    """A ledger bucket that answers reads, and writes when it is let."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells
        self.may_write = asyncio.Event()
        self.reads: list[str] = []

    async def has_none(self, keys: Sequence[str]) -> bool:
        return False

    async def read(self, key: str) -> Entry | None:
        self.reads.append(key.partition(".")[2])
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        await self.may_write.wait()
        return await self._cells.create(key, value)


async def slow_desk(script: Script | None = None) -> tuple[Desk, SlowLedger]:
    desk = Desk(script)
    ledger = SlowLedger(await LocalCells(desk.clock).open(LEDGER_BUCKET))
    return await desk.open(cast("Cells", ledger)), ledger


@in_virtual_time
async def test_the_next_turn_does_not_wait_for_the_record_but_the_ack_does() -> None:
    desk, ledger = await slow_desk()
    batch = mails("a", "b")
    desk.dispatch.preview(batch)
    first, second = [await desk.dispatch([each]) for each in batch]
    assert desk.ran == [["a"], ["b"]]
    assert ledger.reads == ["a", "b"]
    assert isinstance(first, Settling) and isinstance(second, Settling)
    await desk.clock.sleep(1.0)
    assert not first.outcome.done() and not second.outcome.done()
    assert desk.dispatch.is_busy
    ledger.may_write.set()
    assert (await first.outcome, await second.outcome) == (Ack(), Ack())
    assert await desk.completion("a") is not None and await desk.completion("b") is not None
    await desk.clock.sleep(0.0)
    assert not desk.dispatch.is_busy


@in_virtual_time
async def test_what_was_read_ahead_is_read_again_after_a_second_and_then_waits_for_the_records() -> None:
    desk, ledger = await slow_desk()
    batch = mails("a", "b")
    desk.dispatch.preview(batch)
    assert isinstance(await desk.dispatch(batch[:1]), Settling)
    await desk.clock.sleep(1.5)
    second = asyncio.create_task(desk.dispatch(batch[1:]))
    await desk.clock.sleep(5.0)
    assert desk.ran == [["a"]]
    ledger.may_write.set()
    answer = await second
    assert (await answer.outcome if isinstance(answer, Settling) else answer) == Ack()
    assert desk.ran == [["a"], ["b"]]
    assert ledger.reads == ["a", "b", "b"]


@in_virtual_time
async def test_a_trigger_that_lies_twice_in_a_batch_runs_once() -> None:
    desk, ledger = await slow_desk()
    batch = mails("a", "a")
    desk.dispatch.preview(batch)
    first = await desk.dispatch(batch[:1])
    second = asyncio.create_task(desk.dispatch(batch[1:]))
    await desk.clock.sleep(0.5)
    assert not second.done()
    ledger.may_write.set()
    assert isinstance(first, Settling) and await first.outcome == Ack()
    assert await second == Ack()
    assert desk.ran == [["a"]]


@in_virtual_time
async def test_a_trigger_found_finished_ahead_is_not_run() -> None:
    desk, ledger = await slow_desk()
    ledger.may_write.set()
    assert await desk.handle_mail(*mails("b")) == Ack()
    batch = mails("a", "b")
    desk.dispatch.preview(batch)
    assert await desk.answer(batch[:1]) == Ack()
    assert await desk.dispatch(batch[1:]) == Ack()
    assert desk.ran == [["b"], ["a"]]


@in_virtual_time
async def test_a_turn_that_ends_in_the_step_in_which_it_is_cancelled_is_recorded_whole() -> None:
    async def script(turn: Turn) -> TurnResult:
        turn.reach("an outside call")
        assert desk.fence is not None
        desk.fence.close("lease_lost")  # asks this very turn to end, which has nothing left to wait for
        return TurnResult("delivered")

    desk, ledger = await slow_desk(script)
    answer = await desk.dispatch(mails("a"))
    await desk.clock.sleep(0.5)
    ledger.may_write.set()
    assert isinstance(answer, Settling) and await answer.outcome == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "delivered"


@in_virtual_time
async def test_a_turn_that_is_to_end_before_it_begins_is_not_run() -> None:
    desk, ledger = await slow_desk()
    ledger.may_write.set()
    loop = asyncio.get_running_loop()

    def stop_soon(_: TurnNote) -> None:
        loop.call_soon(desk.dispatch.stop, "not this one")

    desk.watcher = stop_soon
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert desk.ran == [] and completion is not None and completion.outcome == "stopped"


@in_virtual_time
async def test_a_handler_that_is_cancelled_as_its_turn_has_ended_leaves_the_record_to_be_written() -> None:
    desk, ledger = await slow_desk()
    handling = asyncio.create_task(desk.handle_mail(*mails("a")))
    while not desk.ran:
        await asyncio.sleep(0)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert desk.dispatch.is_busy
    ledger.may_write.set()
    await desk.dispatch.recorded()
    assert await desk.completion("a") is not None
