"""Bugs of pauses."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from typing import Any

from crewlet.mail.pausewatch import PauseWatch
from crewlet.testing.sim.mutants.planting import plant, put
from crewlet.turns.dispatch import SeatDispatch


@plant("pauses heard and not heeded")
def _not_heeded(stack: ExitStack) -> None:
    def see(self: PauseWatch, entry: Any) -> None:
        return

    put(stack, PauseWatch, "_see", see)


@plant("pauses not read at a takeover")
def _not_read(stack: ExitStack) -> None:
    def is_answered(self: PauseWatch, question: int) -> bool:
        return True

    put(stack, PauseWatch, "is_answered", is_answered)


@plant("stopped turn goes on")
def _goes_on(stack: ExitStack) -> None:
    def stop(self: SeatDispatch, reason: str) -> None:
        return

    put(stack, SeatDispatch, "stop", stop)
