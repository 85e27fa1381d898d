"""What a test can see of a company in memory, without any time passing, and hold against what it expects."""

from collections.abc import Iterable, Sequence
from typing import Any

from crewlet.company.model import Seat
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import UnknownSeat
from crewlet.testing.inmemory.asserting import Posted, ran_once
from crewlet.testing.inmemory.records import Run, ToolCall
from crewlet.testing.inmemory.world import World


class Seen:
    """The company as it is looked at."""

    def __init__(self, world: World) -> None:
        self._world = world

    def mail_to(self, seat: str) -> Sequence[Envelope]:
        """The mail that came to a seat's inbox, oldest first."""
        self._check_seat(seat)
        return [mail for (to, _), mail in self._world.records.mail.items() if to == seat]

    def mail_from(self, seat: str) -> Sequence[Envelope]:
        """The mail that a seat sent, oldest first."""
        self._check_seat(seat)
        return [mail for mail in self._world.records.mail.values() if mail.source == f"seat:{seat}"]

    def posted(self, mail: Envelope) -> Posted:
        """What became of a mail that a seat got, from whomever."""
        return Posted(mail.id, mail.to, self._world.records)

    def runs(self, seat: str) -> Sequence[Run]:
        """The runs of a seat's turns, oldest first, those that were cut short included."""
        self._check_seat(seat)
        return self._world.records.runs_of(seat)

    def calls(self, seat: str) -> Sequence[ToolCall]:
        """The tool calls of a seat that passed the fence, oldest first."""
        return [call for run in self.runs(seat) for call in run.calls]

    def holder(self, seat: str) -> str | None:
        """The node that holds a seat, by the leases; None where nobody does."""
        owner, _ = self._world.records.holders.get(seat, ("", 0))
        return owner.partition(":")[0] or None

    def held_back(self, seat: str) -> str:
        """Why a seat's inbox is not read, for instance `seat_paused`; "" when it is."""
        life = self._world.holder(seat)
        return life.node.seats.held_back().get(seat, "") if life is not None else ""

    def history(self, seat: str) -> str:
        """What happened to a seat, line by line."""
        self._check_seat(seat)
        return self._world.records.history(seat)

    @property
    def seats(self) -> Sequence[str]:
        """The handles of the company's seats."""
        return [seat.handle for seat in self._world.company.seats]

    def assert_ran_once(self, mail: Posted, *, effects: Iterable[Any] | None = None) -> None:
        """Hold a mail's work against what running it once would have done, however often it really ran.

        Args:
            effects: what the test's own fakes have seen of it: one entry an effect.

        Raises:
            AssertionError: it is not finished; a tool that does not look at its key was called again; a run that was
                cut short sent mail that the one which finished did not; an effect is there twice, or none is there.
                With the seat's history.
        """
        if missed := self._world.plans.missed():
            plan = missed[0]
            raise AssertionError(
                f"what was planted did not happen: {plan.seat} never came to {plan.step} {plan.number or ''}".rstrip()
                + f"\n\n{self.history(plan.seat)}"
            )
        ran_once(mail, self._world.equipment.stand_ins, list(effects) if effects is not None else None)

    def assert_outcome(self, mail: Posted, outcome: str) -> None:
        """Hold a mail's outcome against a word.

        Raises:
            AssertionError: it is another, or there is none. With the seat's history.
        """
        if mail.outcome != outcome:
            found = f"{mail.outcome or 'no outcome yet'}" + (f" ({mail.detail})" if mail.detail else "")
            raise AssertionError(
                f"mail {mail.id}: {outcome} was expected, and there is {found}\n\n{self.history(mail.seat)}"
            )

    def _check_seat(self, handle: str) -> Seat:
        seat = self._world.company.seat(handle)
        if seat is None:
            raise UnknownSeat(handle, self._world.company)
        return seat
