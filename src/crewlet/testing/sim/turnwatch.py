"""Turns as the judge sees them: a script runner that goes wrong as told, and tells of each call that leaves."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime

from crewlet.ports.errors import Fenced
from crewlet.ports.mail import Published
from crewlet.testing.sim.children import READ, WRITE
from crewlet.testing.sim.clock import SimClock
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.facts import RunningTurn
from crewlet.testing.sim.judge import Judge
from crewlet.testing.sim.loop import Process
from crewlet.testing.twins.mail import TwinMail
from crewlet.turns.runners.script import ScriptTurns
from crewlet.turns.turn import Tools, Turn, TurnBroke, TurnResult

TURN: ContextVar[RunningTurn | None] = ContextVar("simulated turn", default=None)

PLANTED = "a planted panic"
_ROUND_S = 0.7
_EVENTS = "crewlet.events."
_WRITES = (0, 0, 0, 1, 2)


@dataclass(slots=True)
class Luck:
    """How the turns and the hooks of a machine go wrong at present, each a share from 0 to 1.

    Attributes:
        breaks, panics: of turns.
        reaches: of turns that have an effect outside.
        hook_s: how long attaching and detaching take, at most.
        hook_fails: how often they fail.
    """

    breaks: float = 0.0
    panics: float = 0.0
    reaches: float = 0.0
    hook_s: float = 0.0
    hook_fails: float = 0.0

    def heal(self) -> None:
        self.breaks = self.panics = self.reaches = self.hook_s = self.hook_fails = 0.0


class WatchedMail(TwinMail):
    """A node's mail. An event is no act of the turn it tells of, and may be told when that one's tenure has ended."""

    async def publish(
        self,
        topic: str,
        data: bytes,
        *,
        message_id: str,
        headers: dict[str, str] | None = None,
        once: str | None = None,
        admit: Callable[[], None] | None = None,
    ) -> Published:
        before = TURN.set(None if topic.startswith(_EVENTS) else TURN.get())
        try:
            return await super().publish(topic, data, message_id=message_id, headers=headers, once=once, admit=admit)
        finally:
            TURN.reset(before)


class WatchedTurns:
    """A runner that tells the judge what its turns really do."""

    kind = "script"

    def __init__(self, process: Process, judge: Judge, luck: Luck, dice: Dice, clock: SimClock) -> None:
        self._process = process
        self._judge = judge
        self._luck = luck
        self._dice = dice
        self._clock = clock

    async def run(self, turn: Turn) -> TurnResult:
        judge, luck, dice = self._judge, self._luck, self._dice
        running = judge.begin(self._process, turn)
        TURN.set(running)
        how = "cancelled"
        try:
            if dice.chance(luck.breaks):
                raise TurnBroke("a planted failure")
            if dice.chance(luck.reaches):
                turn.fence.check()
                turn.reach("a call that leaves the system")
                running.is_exempt = True
                judge.act(running, "reached outside")
            if turn.tools is not None and turn.seat.tool_servers:
                await self._call_tools(turn, turn.tools)
            rounds = _Rounds(self._clock, turn, lambda: judge.act(running, "took a step"))
            result = await ScriptTurns(clock=rounds).run(turn)
            if dice.chance(luck.breaks):
                raise TurnBroke("a planted failure at the end")
            if dice.chance(luck.panics):
                running.is_exempt = True
                raise RuntimeError(PLANTED)
            how = result.outcome
            return result
        except Fenced:
            how = "fenced"
            raise
        except TurnBroke:
            how = "broke"
            raise
        except RuntimeError:
            how = "panicked"
            raise
        finally:
            judge.end(running, how)

    async def _call_tools(self, turn: Turn, tools: Tools) -> None:
        """Most turns only look; some write, perhaps twice the same."""
        server, dice = turn.seat.handle, self._dice
        await tools.call(f"{server}_{READ}", {"page": dice.below(2)})
        for _ in range(dice.pick(_WRITES)):
            await tools.call(f"{server}_{WRITE}", {"text": dice.pick(("one", "two"))})


class _Rounds:
    """A clock for a turn's sleeps that wakes in rounds, each of which asks the fence, as a runner with tools does."""

    def __init__(self, clock: SimClock, turn: Turn, act: Callable[[], None]) -> None:
        self._clock = clock
        self._turn = turn
        self._act = act

    def now(self) -> datetime:
        return self._clock.now()

    def elapsed(self) -> float:
        return self._clock.elapsed()

    async def sleep(self, seconds: float) -> None:
        left_s = seconds
        while left_s > 0:
            await self._clock.sleep(min(left_s, _ROUND_S))
            left_s -= _ROUND_S
            self._turn.fence.check()
            self._act()
