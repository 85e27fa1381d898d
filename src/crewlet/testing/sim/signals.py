"""The signals twin of a simulation: what is said crosses two lines, each of which may lose or delay it.

Nothing is kept and nothing is repeated, as with the real broker. A frozen listener hears at its thaw.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass

import structlog

from crewlet.ports.signals import MAX_SIGNAL_BYTES, Answer, Forget, Hear, Signals, check_enough, check_signal
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.wire import Wire

_log = structlog.get_logger()


@dataclass(slots=True, eq=False)
class _Entry:
    """Somebody who listens or serves. `hear` is called in its own process."""

    name: str
    hear: Callable[[bytes, Callable[[bytes], None]], None]
    wire: Wire


class SignalHub:
    """The broker's side.

    Args:
        loses: the share of what is said that vanishes there, whatever the lines do.
    """

    def __init__(self, dice: Dice, *, loses: float) -> None:
        self._dice = dice
        self._loses = loses
        self.hearers: list[_Entry] = []
        self.answerers: list[_Entry] = []

    def pass_on(self, entries: Sequence[_Entry], name: str, data: bytes, reply: Callable[[bytes], None]) -> None:
        """Something said has come to the broker."""
        for entry in [entry for entry in entries if entry.name == name]:
            if not (self._loses and self._dice.chance(self._loses)):
                entry.wire.push(entry.hear, data, reply)

    def forget(self, wire: Wire) -> None:
        """A connection is gone for good, and whoever listened or served over it."""
        self.hearers = [entry for entry in self.hearers if entry.wire is not wire]
        self.answerers = [entry for entry in self.answerers if entry.wire is not wire]


class SimSignals(Signals):
    """The signals of one node incarnation.

    Args:
        own: the context of the process that hears and answers.
    """

    def __init__(self, hub: SignalHub, wire: Wire, own: Context) -> None:
        self._hub = hub
        self._wire = wire
        self._own = own
        self._answering: set[asyncio.Task[None]] = set()

    def broadcast(self, name: str, data: bytes) -> None:
        check_signal(name, data)
        hub = self._hub
        self._wire.tell(lambda: hub.pass_on(hub.hearers, name, data, _drop))

    async def listen(self, name: str, hear: Hear) -> Forget:
        check_signal(name)

        def heard(data: bytes, _: Callable[[bytes], None]) -> None:
            try:
                hear(data)
            except Exception:  # noqa: BLE001 -- whoever hears it, the sender and the others go on
                _log.exception("signal_hearing_broke", signal=name)

        return self._entered(self._hub.hearers, name, heard)

    async def ask(self, name: str, data: bytes, *, timeout_s: float, enough: int = 1) -> Sequence[bytes]:
        check_signal(name, data)
        check_enough(enough)
        hub, answers, is_enough = self._hub, list[bytes](), asyncio.Event()

        def come(answer: bytes) -> None:
            answers.append(answer)
            if len(answers) >= enough:
                is_enough.set()

        def at_broker(answer: bytes) -> None:
            self._wire.push(come, answer)

        self._wire.tell(lambda: hub.pass_on(hub.answerers, name, data, at_broker))
        try:
            async with asyncio.timeout(timeout_s):
                await is_enough.wait()
        except TimeoutError:
            pass
        return tuple(answers[:enough])

    async def serve(self, name: str, answer: Answer) -> Forget:
        check_signal(name)

        async def answering(data: bytes, reply: Callable[[bytes], None]) -> None:
            try:
                answered = await answer(data)
            except Exception:  # noqa: BLE001 -- as above
                _log.exception("signal_answer_broke", signal=name)
                return
            if answered is not None and len(answered) <= MAX_SIGNAL_BYTES:
                self._wire.tell(lambda: reply(answered))

        def asked(data: bytes, reply: Callable[[bytes], None]) -> None:
            task = asyncio.get_running_loop().create_task(answering(data, reply), name=f"answer to {name}")
            self._answering.add(task)
            task.add_done_callback(self._answering.discard)

        return self._entered(self._hub.answerers, name, asked)

    def _entered(
        self, entries: list[_Entry], name: str, hear: Callable[[bytes, Callable[[bytes], None]], None]
    ) -> Forget:
        is_over = False

        def in_process(data: bytes, reply: Callable[[bytes], None]) -> None:
            if not is_over:
                hear(data, reply)

        def come(data: bytes, reply: Callable[[bytes], None]) -> None:
            asyncio.get_running_loop().call_soon(in_process, data, reply, context=self._own)

        entries.append(_Entry(name, come, self._wire))

        async def forget() -> None:
            nonlocal is_over
            is_over = True

        return forget


def _drop(_: bytes) -> None:
    return
