"""Defects of the dispatch itself: mail whose turn has run does not come back for them."""

from typing import Any, cast

import pytest
from dispatch_desk import BrokenCells, Desk, Remembering, mails

from crewlet.ports.cells import Cells, WriteResult
from crewlet.ports.history import Happening, TurnEnded
from crewlet.ports.mail import Ack
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Turn, TurnBroke, TurnResult


class Breaking(Remembering):
    """A history with a defect: once, when a turn has ended."""

    is_broken = True

    def note(self, happening: Happening) -> None:
        if self.is_broken and isinstance(happening, TurnEnded):
            self.is_broken = False
            raise RuntimeError("boom")
        super().note(happening)


@pytest.mark.parametrize("reaches", [False, True])
def test_a_defect_beside_a_turn_that_broke_ends_its_mail_as_a_panic_of_the_turn_would(reaches: bool) -> None:
    async def script(turn: Turn) -> TurnResult:
        if reaches:
            turn.reach("a call")
        raise TurnBroke("coughed")

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        desk.history = Breaking()
        await desk.open()
        assert await desk.handle_mail(*mails("a")) == Ack()
        completion = await desk.completion("a")
        assert completion is not None and completion.outcome == "failed" and "boom" in completion.detail
        assert {"dispatch_panicked", "turn.guard_breach", "turn_trigger_skipped"} <= set(desk.events())
        assert await desk.handle_mail(*mails("a")) == Ack()
        assert desk.ran == [["a"]]

    case()


@in_virtual_time
async def test_a_defect_beside_a_turn_that_ended_well_leaves_it_ended_well() -> None:
    desk = Desk()
    desk.history = Breaking()
    await desk.open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "delivered"
    assert "dispatch_panicked" in desk.events() and "turn_trigger_skipped" not in desk.events()


@pytest.mark.parametrize("is_broken", [False, True])
def test_a_ledger_with_a_defect_cannot_bring_mail_back_whose_turn_has_ended(is_broken: bool) -> None:
    class Defect(BrokenCells):
        async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
            raise RuntimeError("boom")

    async def script(turn: Turn) -> TurnResult:
        turn.reach("a call")
        if is_broken:
            raise TurnBroke("coughed")
        return TurnResult("delivered")

    @in_virtual_time
    async def case() -> None:
        desk = await Desk(script).open(cast("Cells", Defect()))
        assert await desk.handle_mail(*mails("a")) == Ack()
        assert "turn_unrecorded" in desk.events()
        assert ("turn_trigger_skipped" in desk.events()) is is_broken

    case()
