"""Seats that are a language model with tools, on Pydantic AI.

Belongs here: the prompt, the rounds, which model is asked when one does not answer, what a model's answer means.
Does not: what a tool does, and whether a call may leave (`turns.toolbox`).

The library is imported only when the first such seat works its first mail: `engine` is the module that needs it.
"""

import asyncio
import importlib
from collections.abc import Callable, Collection
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from crewlet.company.model import LlmRunner, Seat
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Misuse
from crewlet.turns.runners.llm.breaks import ModelBroke
from crewlet.turns.runners.llm.keys import key_of
from crewlet.turns.runners.startable import Startable
from crewlet.turns.turn import AgentNotReady, Fence, Turn, TurnResult

if TYPE_CHECKING:
    from crewlet.turns.runners.llm.engine import Engine

__all__ = ["LlmTurns", "ModelBroke", "is_installed", "refuse_without_extra"]

_REMEDY = "install it with `pip install '.[llm]'` in a clone of this repository"
_LIBRARY = "pydantic_ai"
_ENGINE = "crewlet.turns.runners.llm.engine"


class LlmTurns:
    """Runs turns of one `llm` seat, for one tenure. While a model of it cannot be asked from here at all, for want of
    the library, of a key, or of a provider of that name, the seat is not ready.

    Args:
        seat: whose.
        clock: counts the waits for a provider.
        entropy: spreads them.
        variable: the value of a variable of this node by its name; keys are read through it, and kept nowhere else.
        models: in place of those that the seat names, for tests: Pydantic AI models.
    """

    kind = "llm"

    def __init__(
        self,
        seat: Seat,
        *,
        clock: Clock,
        entropy: Entropy,
        variable: Callable[[str], str | None],
        models: Callable[[LlmRunner], Any] | None = None,
    ) -> None:
        if not isinstance(seat.runner, LlmRunner):
            raise Misuse(f"{seat.handle} is not an llm seat")
        self._runner = seat.runner
        self._clock = clock
        self._entropy = entropy
        self._variable = variable
        self._models = models
        self._engine: Engine | None = None
        self._has_failed = False
        self._startable = Startable(seat.handle, clock=clock, what="agent")

    @property
    def is_ready(self) -> bool:
        return self._startable.is_ready

    @property
    def trouble(self) -> str | None:
        return self._startable.trouble

    def start(self, fence: Fence, on_change: Callable[[], None]) -> None:
        """Have the keys looked for; see the port."""
        self._startable.start(self._look, fence, on_change)

    async def end(self) -> None:
        """Look for nothing any longer; see the port."""
        await self._startable.end()

    async def run(self, turn: Turn) -> TurnResult:
        """Rounds of model and tools until an outcome; see the port.

        Raises:
            ModelBroke: it ended without one; `kind` names how.
            GuardBreached: the turn goes nowhere.
            AgentNotReady: no model can be asked from here.

        Fencing: checked at the top of every round, before every request of a model, and before every call of a tool.
        """
        turn.fence.check()
        try:
            engine = await self._opened()
        except AgentNotReady as missing:
            self._startable.failed(str(missing))
            raise
        turn.fence.check()
        return await engine.run(turn)

    async def _look(self) -> None:
        """Look for what can be missed at no cost; for the rest only once a turn has missed it."""
        if self._has_failed:
            await self._opened()
        elif self._models is None:
            try:
                for model in self._runner.models:
                    key_of(model, self._variable)
            except ModelBroke as missing:
                raise AgentNotReady(str(missing)) from None

    async def _opened(self) -> "Engine":
        if self._engine is None:
            try:
                # Importing the library and making its clients takes a second of work, which the loop cannot spare.
                self._engine = await asyncio.to_thread(self._open)
            except ModelBroke as missing:
                self._has_failed = True
                raise AgentNotReady(str(missing)) from None
        return self._engine

    def _open(self) -> "Engine":
        try:
            module = importlib.import_module(_ENGINE)
        except (ImportError, OSError) as error:
            problem = f"the extra `llm` is not installed here ({error}); {_REMEDY}"
            raise ModelBroke("library_missing", problem) from None
        models = self._models(self._runner) if self._models is not None else None
        return module.Engine(
            self._runner, clock=self._clock, entropy=self._entropy, variable=self._variable, models=models
        )


def refuse_without_extra(seats: Collection[Seat]) -> None:
    """Hold a company against what is installed here.

    Raises:
        ConfigRefused: it has `llm` seats, and their library is not installed.
    """
    handles = [seat.handle for seat in seats if isinstance(seat.runner, LlmRunner)]
    if handles and not is_installed():
        raise ConfigRefused(
            f"the seat {handles[0]!r} is an `llm` seat, and the extra `llm` is not installed here",
            where="roles",
            remedy=_REMEDY,
        )


def is_installed() -> bool:
    """Whether the library of `llm` seats can be found here."""
    return find_spec(_LIBRARY) is not None
