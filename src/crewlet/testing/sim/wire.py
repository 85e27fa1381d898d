"""The network between the nodes and the broker, and the broker's own moods.

A request crosses to the broker, takes effect there, and its answer crosses back, each with a delay of its own. Who
asked may long have given up, frozen or died when it takes effect.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import msgspec

from crewlet.ports.errors import NotTaken, Unavailable
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.history import History
from crewlet.testing.sim.loop import PROCESS, Process, SimLoop

T = TypeVar("T")
U = TypeVar("U")

DELAY_S = 0.002
"""The usual time of one crossing, at most."""

_PAUSE_S = 0.1
"""How long a client waits before it asks again."""


@dataclass(slots=True)
class Line:
    """How the network treats one node at present.

    Attributes:
        delay_s: the usual time of one crossing, at most.
        jitter_s: what a bad crossing takes on top, at most.
        lost_out, lost_back: the share of requests, and of answers, that vanish.
        late: the share of requests that straggle for up to `late_s` and are overtaken by others.
        cut_out, cut_back: nothing crosses in that direction.
    """

    delay_s: float = DELAY_S
    jitter_s: float = 0.0
    lost_out: float = 0.0
    lost_back: float = 0.0
    late: float = 0.0
    late_s: float = 8.0
    cut_out: bool = False
    cut_back: bool = False

    @property
    def is_calm(self) -> bool:
        return not (self.cut_out or self.cut_back or self.jitter_s or self.lost_out or self.lost_back or self.late)

    def heal(self) -> None:
        self.delay_s, self.jitter_s = DELAY_S, 0.0
        self.lost_out = self.lost_back = self.late = 0.0
        self.cut_out = self.cut_back = False


class Broker:
    """Whether the broker takes requests.

    Attributes:
        electing_until: until when each stream has no leader, of those that ever had none.
        silence_s: how long a node takes to notice that something did not arrive that it was not waiting for.
        caller: the process whose request takes effect at this moment; None for the world's own.
    """

    def __init__(self, history: History, *, silence_s: float = 1.0) -> None:
        self._history = history
        self.electing_until: dict[str, float] = {}
        self._stalled: list[Callable[[], None]] = []
        self._limping: str | None = None
        self.is_down = False
        self.is_stalled = False
        self.silence_s = silence_s
        self.caller: Process | None = None

    def elect(self, stream: str, until: float) -> None:
        """A stream has no leader until then: whoever asks for it is told so at once."""
        self.electing_until[stream] = until

    def is_electing(self, stream: str) -> bool:
        until = self.electing_until.get(stream)
        return until is not None and asyncio.get_running_loop().time() < until

    def heal(self) -> None:
        self.electing_until.clear()
        self.is_down = False
        self.resume()

    def stall(self) -> None:
        """Stop dead, with requests piling up before the door."""
        self.is_stalled = True

    def limp(self, stream: str) -> None:
        """Have one stream stand still, its requests piling up, while the others go on."""
        self._limping = stream

    def stands_still(self, stream: str) -> bool:
        return self.is_stalled or self._limping == stream

    def resume(self) -> None:
        self.is_stalled, self._limping = False, None
        stalled, self._stalled = self._stalled, []
        for arrive in stalled:
            arrive()

    def wait(self, arrive: Callable[[], None]) -> None:
        self._stalled.append(arrive)


class _Request(msgspec.Struct):
    """One try of a question. `until` is when its sender stops waiting; one `is_silent` needs no answer to cross."""

    stream: str
    effect: Callable[[], Any]
    answer: asyncio.Future[Any]
    until: float
    is_silent: bool = False


class _Stream:
    """What crosses in one direction, in order. What arrives together takes one timer."""

    __slots__ = ("_arriving", "_loop", "_world", "last_at")

    def __init__(self, loop: SimLoop, world: Context) -> None:
        self._loop = loop
        self._world = world
        self._arriving: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        self.last_at = 0.0

    def add(self, delay_s: float, arrive: Callable[..., None], *args: Any) -> float:
        """Have something arrive then, or when what left before it does. Returns when."""
        loop, last_at = self._loop, self.last_at
        now = loop.now_s
        if not delay_s and last_at < now:
            arrive(*args)
            return now
        at = now + delay_s
        if at <= last_at:
            if last_at > now:
                self._arriving.append((arrive, args))
                return last_at
            at = last_at
        self.last_at = at
        self._arriving = [(arrive, args)]
        loop.call_in(self._world, at, _arrive_together, self._arriving)
        return at


class Wire:
    """One node incarnation's connection. What runs in its context `own` belongs to the process."""

    def __init__(self, process: Process, line: Line, broker: Broker, dice: Dice, world: Context) -> None:
        self._loop = cast(SimLoop, asyncio.get_running_loop())
        self._process = process
        self._line = line
        self._broker = broker
        self._dice = dice
        self._world = world
        self.own = world.copy()
        self.own.run(PROCESS.set, process)
        self._out = _Stream(self._loop, world)
        self._back = _Stream(self._loop, world)

    async def ask(
        self,
        stream: str,
        effect: Callable[[], T],
        *,
        budget_s: float,
        try_s: float,
        before_each: Callable[[], None] | None = None,
        is_silent: bool = False,
        is_final: bool = False,
    ) -> T:
        """Have an effect at the broker, and hear of it; again while nobody answers, till the budget is spent.

        Args:
            stream: whose leader must answer.
            effect: runs at the broker, perhaps more than once, perhaps after the caller is gone.
            before_each: called as each try leaves.
            is_silent: the broker says nothing to it as such: that it has come is known as soon as it has.
            is_final: an answer counts only when no earlier try may still arrive. One that straggles does so, and who
                asked cannot tell it from one that is lost.

        Raises:
            NotTaken: no try had an effect, and none will.
            Unavailable: nobody answered.

        Cancellation: what is on its way still arrives.
        """
        ends = self._loop.now_s + budget_s
        is_in_doubt = False
        while True:
            if before_each is not None:
                before_each()
            try:
                answer = await self._try(stream, effect, ends, try_s, is_silent=is_silent)
            except Unavailable as error:
                is_in_doubt |= not isinstance(error, NotTaken)
                if self._loop.now_s + _PAUSE_S >= ends:
                    if is_in_doubt:
                        raise Unavailable(str(error)) from error
                    raise
            else:
                if is_final and is_in_doubt:
                    raise Unavailable("an earlier request may still arrive")
                return answer
            await self._loop.sleep(_PAUSE_S)

    async def ask_both(
        self, stream: str, one: Callable[[], T], two: Callable[[], U], *, budget_s: float, try_s: float
    ) -> tuple[T, U]:
        """Ask two things at once. What is not answered is asked again, by itself, till the budget is spent.

        Raises:
            Unavailable: nobody answered one of them.
        """
        ends = self._loop.now_s + budget_s
        first, second = self._try(stream, one, ends, try_s), self._try(stream, two, ends, try_s)
        try:
            return await self._heard(stream, one, first, ends, try_s), await self._heard(
                stream, two, second, ends, try_s
            )
        finally:
            if not second.cancel() and not second.cancelled():
                second.exception()  # nobody else may look
            del first, second  # a failure holds this frame, and they the failure

    async def _heard(
        self, stream: str, effect: Callable[[], T], answer: asyncio.Future[T], ends: float, try_s: float
    ) -> T:
        """The answer to a question that was asked, or to the same one asked again."""
        try:
            return await answer
        except Unavailable:
            left_s = ends - self._loop.now_s - _PAUSE_S
            if left_s <= 0:
                raise
        finally:
            del answer  # a failure holds this frame, and it the failure
        await self._loop.sleep(_PAUSE_S)
        return await self.ask(stream, effect, budget_s=left_s, try_s=try_s)

    def _try(
        self, stream: str, effect: Callable[[], T], ends: float, try_s: float, *, is_silent: bool = False
    ) -> asyncio.Future[T]:
        loop, line = self._loop, self._line
        now, answer = loop.now_s, loop.create_future()
        left_s = max(0.05, ends - now)
        request = _Request(stream, effect, answer, now + (try_s if try_s < left_s else left_s), is_silent)
        if line.cut_out or (line.lost_out and self._dice.chance(line.lost_out)):
            self._gives_up(request)
            return answer
        if line.late and self._dice.chance(line.late):
            at = now + self._dice.between(0.0, line.late_s)
            loop.call_in(self._world, at, self._arrive, request)
        else:
            at = self._out.add(self._delay(), self._arrive, request)
        if at >= request.until:
            self._gives_up(request)
        return answer

    async def crossing(self, sent_at: float) -> bool:
        """Wait until something that left the broker then has arrived. False: it never does."""
        line = self._line
        if line.cut_back or self._broker.is_down or self._dice.chance(line.lost_back):
            return False
        wait_s = sent_at + self._delay() - self._loop.now_s
        if wait_s > 0:
            await self._loop.sleep(wait_s)
        return True

    def timer(self, seconds: float) -> asyncio.Future[None]:
        """What is done after so long, unless somebody says before that it is."""
        return self._loop.sleep(seconds)

    def tell(self, effect: Callable[[], None]) -> None:
        """Send something to the broker, in order with what is asked of it, and never hear of it."""
        line = self._line
        if not (line.cut_out or (line.lost_out and self._dice.chance(line.lost_out))):
            self._out.add(self._delay(), self._told, effect)

    def push(self, arrive: Callable[..., None], *args: Any) -> bool:
        """Send something from the broker, in order with its answers. False: it never arrives.

        It goes out with what is on its way already, as a server flushes a connection.
        """
        line, back = self._line, self._back
        if line.cut_back or self._broker.is_down or (line.lost_back and self._dice.chance(line.lost_back)):
            return False
        is_under_way = back.last_at > self._loop.now_s
        back.add(0.0 if is_under_way else self._delay_back(), arrive, *args)
        return True

    def notice_silence(self, notice: Callable[[], None]) -> None:
        """Have the node notice, after a while, that something did not arrive."""
        loop = self._loop
        loop.call_in(self._world, loop.now_s + self._broker.silence_s, notice)

    def _arrive(self, request: "_Request") -> None:
        broker, line = self._broker, self._line
        if broker.is_down:
            self._gives_up(request)
            return
        if broker.stands_still(request.stream):
            self._gives_up(request)
            broker.wait(lambda: self._arrive(request))
            return
        result: Any = None
        error: BaseException | None = None
        if broker.electing_until and broker.is_electing(request.stream):
            error = NotTaken(f"{request.stream} has no leader")
        else:
            broker.caller = self._process
            try:
                result = request.effect()
            except Exception as refused:  # noqa: BLE001 -- it is the caller's to hear
                error = refused
            finally:
                broker.caller = None
        if line.cut_back or (line.lost_back and self._dice.chance(line.lost_back)):
            self._gives_up(request)
            return
        if request.is_silent:
            _tell(request.answer, result, error)
            return
        at = self._back.add(self._delay_back(), _tell, request.answer, result, error)
        if at >= request.until:
            self._gives_up(request)

    def _told(self, effect: Callable[[], None]) -> None:
        if self._broker.is_stalled:
            self._broker.wait(lambda: self._told(effect))
        elif not self._broker.is_down:
            effect()

    def _gives_up(self, request: "_Request") -> None:
        """No answer comes in time: the node notices when its patience ends, unless it sleeps then and one comes."""
        loop = self._loop
        if loop.now_s <= request.until:
            loop.call_at(request.until, _give_up, request.answer, context=self.own)

    def _delay_back(self) -> float:
        """Of what the broker says. While nothing is wrong half of it comes at once, which costs no timer."""
        line = self._line
        if line.delay_s != DELAY_S or line.jitter_s:
            return self._delay()
        random = self._dice.random
        return 0.0 if random() < 0.5 else DELAY_S * random()

    def _delay(self) -> float:
        line, dice = self._line, self._dice
        delay_s = line.delay_s * dice.random()
        if line.jitter_s and dice.chance(0.3):
            delay_s += line.jitter_s * dice.random()
        return delay_s


def _arrive_together(arriving: list[tuple[Callable[..., None], tuple[Any, ...]]]) -> None:
    for arrive, args in arriving:
        arrive(*args)


def _give_up(answer: asyncio.Future[Any]) -> None:
    if not answer.done():
        answer.set_exception(Unavailable("no answer"))


def _tell(answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(result)
    else:
        answer.set_exception(error)
