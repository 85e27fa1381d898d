"""The books of one turn: what it did, as the node's history and whoever watches are told of it.

What is in this process's memory decides what becomes of a turn that broke (`record.TurnRecord`). The node's history is
for people: it has an effect before the effect leaves, and one that cannot be written there leaves all the same, since
nothing is judged by it.
"""

import asyncio
from collections.abc import Callable

import structlog

from crewlet.ports.clock import Clock
from crewlet.ports.errors import CrewletError
from crewlet.ports.history import (
    HEAD_CHARS,
    CallBegan,
    CallEnded,
    History,
    Progressed,
    RoundBegan,
    RoundEnded,
    TurnBegan,
    TurnEnded,
)
from crewlet.ports.tools import ToolAnswer
from crewlet.turns.effects import canonical
from crewlet.turns.record import Stage, TurnNote, TurnRecord, Work
from crewlet.turns.spending import Spending
from crewlet.turns.toolbox import Call
from crewlet.turns.turn import Fence, RoundUsage

_log = structlog.get_logger()

_KEEP_S = 2.0
"""How long an effect waits for the disk. A disk that hangs must not hold a seat's work up."""


class Account:
    """Keeps the books of one turn, and lets its rounds and calls begin.

    Attributes:
        work: what it works on.
        record: what it has done.
    """

    def __init__(
        self,
        work: Work,
        *,
        fence: Fence,
        history: History,
        spending: Spending,
        clock: Clock,
        on_turn: Callable[[TurnNote], None] | None,
    ) -> None:
        self.work = work
        self.record = TurnRecord()
        self._fence = fence
        self._history = history
        self._spending = spending
        self._clock = clock
        self._on_turn = on_turn
        self._calls = 0
        self._numbers: dict[str, int] = {}

    def begin(self) -> None:
        """The turn has its slot."""
        work = self.work
        self.tell("started")
        began = TurnBegan(
            work.turn_id,
            work.handle,
            self._fence.term.epoch,
            work.runner,
            work.key,
            work.triggers,
            self._clock.now(),
        )
        self._history.note(began)

    def end(self, stage: Stage, detail: str = "", *, outcome: str = "") -> None:
        """The turn is over.

        Args:
            outcome: its outcome word, where it came to one.
        """
        self.tell(stage, outcome if stage == "finished" else detail)
        self._history.note(TurnEnded(self.work.turn_id, outcome or stage, detail, self._clock.now()))

    def progress(self, text: str) -> None:
        """See `Turn.progress`."""
        _log.info("turn_progress", text=text)
        self.tell("progress", text)
        self._history.note(Progressed(self.work.turn_id, text, self._clock.now()))

    async def keep(self, text: str) -> str:
        """See `owntools.Notes`: until seats have a memory of their own, notes stay with their turn."""
        self.progress(f"note: {text}")
        return "noted with this turn, in the history of its node"

    def waiting(self, text: str) -> None:
        """See `Turn.waiting`."""
        self.tell("waiting", text)

    async def begin_round(self, number: int) -> None:
        """See `Turn.begin_round`: the fence is open, and no budget is spent.

        Raises:
            Fenced: the fence is closed.
            BudgetSpent: a cap is reached.
            Unavailable: nobody knows whether one is.
        """
        self._fence.check()
        await self._spending.admit(self.work.handle)
        self._fence.check()
        self._history.note(RoundBegan(self.work.turn_id, number, self._clock.now()))

    async def usage(self, usage: RoundUsage) -> None:
        """See `Turn.usage`.

        Raises:
            Unavailable: it may not be counted.
        """
        ended = RoundEnded(
            self.work.turn_id,
            usage.round,
            usage.model,
            usage.input_tokens,
            usage.output_tokens,
            self._clock.now(),
        )
        self._history.note(ended)
        await self._spending.charge(self.work.handle, usage.input_tokens + usage.output_tokens)

    async def leaving(self, call: Call, *, is_effect: bool) -> None:
        """See `toolbox.Journal`. An effect is in memory in the step in which it leaves: a call that the fence stopped
        while it was written to the disk is none."""
        self._calls += 1
        self._numbers[call.key] = self._calls
        began = CallBegan(
            turn_id=self.work.turn_id,
            number=self._calls,
            tool=call.tool.name,
            server=call.tool.server,
            is_effect=is_effect,
            key=call.key,
            arguments=canonical(call.arguments)[: 4 * HEAD_CHARS].decode(errors="ignore")[:HEAD_CHARS],
            at=self._clock.now(),
        )
        if not is_effect:
            self._history.note(began)
            return
        try:
            async with asyncio.timeout(_KEEP_S):
                await self._history.keep(began)
        except (CrewletError, TimeoutError) as error:
            _log.error("effect_not_kept", tool=call.tool.name, key=call.key, error=str(error) or "the disk hangs")
        self._fence.check()
        self.record.outside.append(_effect(call))

    def not_made(self, call: Call) -> None:
        """See `toolbox.Journal`. Another call of the turn is another entry: their keys differ."""
        if (effect := _effect(call)) in self.record.outside:
            self.record.outside.remove(effect)

    def called(self, call: Call, answer: ToolAnswer) -> None:
        """See `toolbox.Journal`."""
        number, text = self._numbers[call.key], answer.text[:HEAD_CHARS]
        self._history.note(CallEnded(self.work.turn_id, number, answer.is_error, text, self._clock.now()))

    def tell(self, stage: Stage, detail: str = "") -> None:
        """Tell whoever watches. What that raises is logged: it must not decide what becomes of the mail."""
        if self._on_turn is None:
            return
        try:
            self._on_turn(TurnNote(self.work.handle, self.work.turn_id, stage, detail))
        except Exception:  # noqa: BLE001 - see above
            _log.exception("turn_note_failed", stage=stage)


def _effect(call: Call) -> str:
    return f"{call.tool.name} {call.key}"
