"""Bugs of admission: whether a seat goes on after it was stopped, and only then."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from contextlib import ExitStack
from typing import Any

from crewlet.mail.consuming import Consumer
from crewlet.node.seat import SeatRuntime
from crewlet.seats.admission import Admission
from crewlet.seats.host import SeatHost
from crewlet.testing.sim.mutants.planting import plant, put


@plant("deaf after deferral")
def _deaf(stack: ExitStack) -> None:
    def note(self: Admission) -> None:
        return

    put(stack, Admission, "note_deferral", note)


@plant("never admitted again")
def _never_again(stack: ExitStack) -> None:
    def renew(self: Admission, *, is_busy: bool) -> bool:
        original(self, is_busy=is_busy)
        return False

    original = put(stack, Admission, "renew", renew)


@plant("renewals not told to the inbox")
def _not_told(stack: ExitStack) -> None:
    def on_renewed(self: SeatRuntime, term: Any, good_until: float) -> None:
        return

    put(stack, SeatRuntime, "on_renewed", on_renewed)


@plant("starts without asking")
def _starts_without_asking(stack: ExitStack) -> None:
    def may_start(self: SeatHost, handle: str) -> int | None:
        tenure = self._context.tenures.get(handle)
        return None if tenure is None else tenure.term.epoch

    put(stack, SeatHost, "may_start", may_start)


@plant("quiesce forgotten at a deferral")
def _no_quiesce(stack: ExitStack) -> None:
    async def answer(self: Consumer, partition: Any, handling: Any) -> Any:
        was = self._is_quiesced
        outcome = await original(self, partition, handling)
        self._is_quiesced = was
        return outcome

    original = put(stack, Consumer, "_answer", answer)
