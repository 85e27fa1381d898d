"""What becomes of the mail of a turn that has ended while the ledger is away."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from dispatch_desk import Desk, Script, forever, mails, reach_then_wait

from crewlet.ports.cells import Cells, Unknown, WriteResult
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Ack, Defer, Nak
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.guards import GuardBreached
from crewlet.turns.turn import Turn, TurnBroke, TurnResult


@in_virtual_time
async def test_a_finished_turn_is_acked_only_when_its_record_is_there_however_long_the_ledger_is_away() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    away = _AwayFor(desk.cells, desk.clock, 20)
    await desk.open(cast("Cells", away))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert await desk.completion("a") is not None
    assert desk.clock.elapsed() >= away.back_at


@in_virtual_time
async def test_a_finished_turn_whose_fence_closes_before_its_record_is_there_is_deferred() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 10)
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1000)))
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert "turn_unrecorded" in desk.events()


@pytest.mark.parametrize(
    "error",
    [None, Fenced("closed"), TurnBroke("coughed"), Unavailable("nobody"), GuardBreached("stall", "again"), "stopped"],
)
@pytest.mark.parametrize("closes_after_s", [0.0, 1.0, 3.01, 5.0])
def test_nothing_unproven_is_acked_or_given_up_once_the_fence_has_closed_before_the_ledger_answered(
    error: Exception | str | None, closes_after_s: float
) -> None:
    @in_virtual_time
    async def case() -> None:
        async def script(turn: Turn) -> TurnResult:
            assert desk.fence is not None
            if not closes_after_s:
                desk.fence.close("lease_lost")
            if error == "stopped":
                desk.dispatch.stop("enough")
                await asyncio.sleep(0)
            if isinstance(error, Exception):
                raise error
            return TurnResult("delivered")

        desk = await Desk(script).open()
        assert desk.cells is not None
        desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + max(closes_after_s, 1.0))
        await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1000)))
        outcome = await desk.handle_mail(*mails("a"))
        if isinstance(error, TurnBroke | Unavailable) and closes_after_s:
            assert isinstance(outcome, Nak)  # it needs no ledger
        else:
            assert isinstance(outcome, Defer)
        assert "turn_trigger_skipped" not in desk.events()

    case()


@in_virtual_time
async def test_a_record_is_not_tried_again_when_the_fence_has_closed_in_the_pause_before() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    away = _AwayFor(desk.cells, desk.clock, 1000)
    # The first try is given up after 3 s; the fence closes in the pause that follows.
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 3.01)
    await desk.open(cast("Cells", away))
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert away.tries == 1


@in_virtual_time
async def test_a_ledger_that_stays_away_does_not_stop_a_seat_that_cannot_lose_its_lease() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1e6)))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert "turn_unrecorded" in desk.events()


async def _reach_then_break(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    raise TurnBroke("coughed")


async def _reach_then_finish(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    return TurnResult("delivered")


async def _panic_as_it_is_ended(turn: Turn) -> TurnResult:
    try:
        return await forever(turn)
    except asyncio.CancelledError:
        raise RuntimeError("clean-up failed") from None


@pytest.mark.parametrize(
    "script",
    [reach_then_wait, _reach_then_break, _reach_then_finish, _panic_as_it_is_ended],
    ids=lambda it: it.__name__,
)
def test_what_is_certain_is_recorded_after_the_fence_closed_as_soon_as_the_ledger_is_back(script: Script) -> None:
    @in_virtual_time
    async def case() -> None:
        desk = await Desk(script).open()
        assert desk.cells is not None
        away = _AwayFor(desk.cells, desk.clock, 20)
        await desk.open(cast("Cells", away))
        assert desk.fence is not None
        asyncio.get_running_loop().call_later(1, desk.fence.close, "lease_lost")
        assert await desk.handle_mail(*mails("a")) == Ack()
        assert away.tries > 1
        assert await desk.completion("a") is not None
        assert "turn_unrecorded" not in desk.events()

    case()


@in_virtual_time
async def test_a_turn_with_an_effect_is_given_up_without_a_record_when_the_ledger_stays_away() -> None:
    desk = await Desk(_reach_then_break).open()
    assert desk.cells is not None
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 1)
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1e6)))
    assert await desk.handle_mail(*mails("a")) == Ack(), "a re-run would do the same again"
    assert "turn_unrecorded" in desk.events()
    assert desk.clock.elapsed() <= 1070


class _AwayFor:
    """A bucket that answers no write for a while."""

    def __init__(self, cells: Cells, clock: VirtualClock, seconds: float) -> None:
        self._cells = cells
        self._clock = clock
        self.back_at = clock.elapsed() + seconds
        self.tries = 0

    async def has_none(self, keys: Sequence[str]) -> bool:
        return False

    async def read(self, key: str) -> object:
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        how["admit"]()
        self.tries += 1
        if self._clock.elapsed() < self.back_at:
            await self._clock.sleep(3)
            return Unknown("nobody answered")
        return await self._cells.create(key, value, **how)
