"""A person's stop of the running turn."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from dispatch_desk import Desk, mails

from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Ack, Bury, Defer, Outcome
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Turn, TurnBroke, TurnResult


class _Long:
    """A turn that goes on until it is ended, and says how it was."""

    def __init__(self, at_the_end: Callable[[], Awaitable[TurnResult]] | None = None) -> None:
        self.has_ended = False
        self._at_the_end = at_the_end

    async def __call__(self, turn: Turn) -> TurnResult:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.5)  # its program takes a moment to die
            self.has_ended = True
            if self._at_the_end is not None:
                return await self._at_the_end()
            raise
        raise AssertionError


async def _begun(desk: Desk) -> "asyncio.Task[Outcome | Bury]":
    handling = asyncio.create_task(desk.handle_mail(*mails("a", "b")))
    await asyncio.sleep(1)
    assert desk.ran == [["a", "b"]]
    return handling


@in_virtual_time
async def test_a_stopped_turn_is_seen_to_end_recorded_as_stopped_and_acked() -> None:
    turn = _Long()
    desk = await Desk(turn).open()
    handling = await _begun(desk)
    desk.dispatch.stop("paused by ada: wrong customer")
    assert await handling == Ack()
    assert turn.has_ended
    for trigger in "ab":
        completion = await desk.completion(trigger)
        assert completion is not None
        assert (completion.outcome, completion.detail) == ("stopped", "paused by ada: wrong customer")
    assert desk.deferrals == []
    assert "agent_turn_stopped" in desk.events()
    told = [event_type for event_type, _ in desk.published]
    assert told == ["agent_turn_stopped", "turn_completed", "turn_trigger_skipped", "turn_trigger_skipped"]
    assert desk.told("turn_completed")[0]["outcome"] == "stopped"
    assert [note.stage for note in desk.notes] == ["started", "stopped"]
    assert await desk.handle_mail(*mails("a", "b")) == Ack()
    assert len(desk.ran) == 1


@in_virtual_time
async def test_a_stop_said_again_and_again_is_one() -> None:
    desk = await Desk(_Long()).open()
    handling = await _begun(desk)
    for _ in range(5):
        desk.dispatch.stop("paused")
        await asyncio.sleep(0.2)
    assert await handling == Ack()
    assert desk.events().count("agent_turn_stopped") == 1


@in_virtual_time
async def test_who_owns_the_seat_is_asked_first_so_a_stop_of_a_lost_seats_turn_leaves_it_to_the_successor() -> None:
    desk = await Desk(_Long()).open()
    handling = await _begun(desk)
    assert desk.fence is not None
    desk.dispatch.stop("paused")
    desk.fence.close("lease_lost")
    assert isinstance(await handling, Defer)
    assert await desk.completion("a") is None
    assert [note.stage for note in desk.notes] == ["started", "fenced"]


@in_virtual_time
async def test_a_release_that_ends_a_turn_that_a_person_stops_too_defers_it() -> None:
    desk = await Desk(_Long()).open()
    handling = await _begun(desk)
    desk.dispatch.stop("paused")
    await desk.dispatch.cancel("rebalance")
    assert isinstance(await handling, Defer)
    assert await desk.completion("a") is None


@pytest.mark.parametrize("error", [TurnBroke("the program said no more"), Unavailable("nobody answered")])
@in_virtual_time
async def test_a_turn_that_breaks_as_it_is_stopped_was_stopped_and_does_not_come_back(error: Exception) -> None:
    async def breaks() -> TurnResult:
        raise error

    desk = await Desk(_Long(breaks)).open()
    handling = await _begun(desk)
    desk.dispatch.stop("paused")
    assert await handling == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "stopped"


@in_virtual_time
async def test_a_turn_that_breaks_as_it_is_stopped_on_a_seat_that_is_lost_is_the_successors() -> None:
    async def breaks() -> TurnResult:
        assert desk.fence is not None
        desk.fence.close("lease_lost")
        raise TurnBroke("the program said no more")

    desk = await Desk(_Long(breaks)).open()
    handling = await _begun(desk)
    desk.dispatch.stop("paused")
    assert isinstance(await handling, Defer)
    assert await desk.completion("a") is None
    assert desk.published == [] and "agent_turn_stopped" not in desk.events()


@in_virtual_time
async def test_a_turn_that_comes_to_its_outcome_as_it_is_stopped_keeps_it() -> None:
    async def finishes() -> TurnResult:
        return TurnResult("delivered", "just in time")

    desk = await Desk(_Long(finishes)).open()
    handling = await _begun(desk)
    desk.dispatch.stop("paused")
    assert await handling == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "delivered"


@in_virtual_time
async def test_a_stop_with_no_turn_stops_nothing_that_comes_later() -> None:
    desk = await Desk().open()
    desk.dispatch.stop("paused")
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert desk.ran == [["a"]]
