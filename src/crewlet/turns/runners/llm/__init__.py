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
from crewlet.turns.turn import Turn, TurnResult

if TYPE_CHECKING:
    from crewlet.turns.runners.llm.engine import Engine

__all__ = ["LlmTurns", "ModelBroke", "is_installed", "refuse_without_extra"]

_REMEDY = "install it with `pip install '.[llm]'` in a clone of this repository"
_LIBRARY = "pydantic_ai"
_ENGINE = "crewlet.turns.runners.llm.engine"


class LlmTurns:
    """Runs turns of `llm` seats.

    Args:
        clock: counts the waits for a provider.
        entropy: spreads them.
        variable: the value of a variable of this node by its name; keys are read through it, and kept nowhere else.
        models: in place of those that the seat names, for tests: Pydantic AI models.
    """

    kind = "llm"

    def __init__(
        self,
        *,
        clock: Clock,
        entropy: Entropy,
        variable: Callable[[str], str | None],
        models: Callable[[LlmRunner], Any] | None = None,
    ) -> None:
        self._clock = clock
        self._entropy = entropy
        self._variable = variable
        self._models = models
        self._engine: Engine | None = None

    async def run(self, turn: Turn) -> TurnResult:
        """Rounds of model and tools until an outcome; see the port.

        Raises:
            ModelBroke: it ended without one; `kind` names how.
            GuardBreached: the turn goes nowhere.

        Fencing: checked at the top of every round, before every request of a model, and before every call of a tool.
        """
        runner = turn.seat.runner
        if not isinstance(runner, LlmRunner):
            raise Misuse(f"{turn.seat.handle} is not an llm seat")
        turn.fence.check()
        if self._engine is None:
            # Importing the library and making its clients takes a second of work, which the loop cannot spare.
            self._engine = await asyncio.to_thread(self._open, runner)
        turn.fence.check()
        return await self._engine.run(turn)

    def _open(self, runner: LlmRunner) -> "Engine":
        try:
            module = importlib.import_module(_ENGINE)
        except ImportError as error:
            problem = f"the extra `llm` is not installed here ({error}); {_REMEDY}"
            raise ModelBroke("library_missing", problem) from None
        models = self._models(runner) if self._models is not None else None
        return module.Engine(runner, clock=self._clock, entropy=self._entropy, variable=self._variable, models=models)


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
