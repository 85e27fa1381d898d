"""The acks of one attachment, each proven by an answer: its own, or that of an ack which followed it.

A lone server takes the acks of one consumer in the order in which a connection sent them, and its answer to one comes
after it took those before. So most of a batch is acked without a question, and the last one's answer proves them all,
unless the connection broke in between. Of several servers each ack has an answer of its own: on its way to a
consumer's leader one may be lost where the next is not.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from nats.errors import Error as ClientError

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.hand import Held
from crewlet.ports.errors import CrewletError

ACK = b"+ACK"
ANSWER_TIMEOUT_S = 1.0


class Acks:
    """Acks deliveries, and tells of each when that is proven or given up.

    Args:
        let_go: told of each delivery whose ack is proven.
        again: acks a delivery patiently whose ack may be lost, and lets go of it; bounded.
    """

    def __init__(
        self, connection: Connection, *, let_go: Callable[[Held], None], again: Callable[[Held], Awaitable[None]]
    ) -> None:
        self._connection = connection
        self._let_go = let_go
        self._again = again
        self._unproven: dict[Held, int] = {}
        self._asked: dict[asyncio.Future[Any], Sequence[Held]] = {}
        self._count = 0

    @property
    def count(self) -> int:
        """Deliveries that are acked, and not let go of."""
        return self._count

    def send(self, held: Held, *, is_last: bool) -> None:
        """Ack one.

        Args:
            is_last: whether no other ack is sure to follow soon, so that this one must prove itself.
        """
        self._count += 1
        if is_last or self._connection.is_clustered:
            self._ask(held)
            return
        try:
            self._connection.client.send(held.reply, "", ACK)
        except (ClientError, OSError):
            self._repeat([held])
        else:
            self._unproven[held] = self._connection.breaks

    def prove(self) -> None:
        """Ask about what was acked without a question: it repeats an ack, and so is for the holder of the lease."""
        if self._unproven:
            newest, _ = self._unproven.popitem()
            self._ask(newest)

    def trust(self) -> None:
        """Let go of what was acked without a question where the connection has not broken since; repeat the others."""
        unproven, self._unproven = self._unproven, {}
        breaks = self._connection.breaks
        self._repeat([held for held, sent_over in unproven.items() if sent_over != breaks])
        self._end([held for held, sent_over in unproven.items() if sent_over == breaks])

    async def settled(self) -> None:
        """Wait until every question is answered or given up."""
        while self._asked:
            await asyncio.wait(list(self._asked))

    def _ask(self, held: Held) -> None:
        """Ack with a question, whose answer proves what was acked before over the same connection as well."""
        breaks = self._connection.breaks
        before, self._unproven = self._unproven, {}
        self._repeat([each for each, sent_over in before.items() if sent_over != breaks])
        proven = [*(each for each, sent_over in before.items() if sent_over == breaks), held]
        try:
            answer = self._connection.post(held.reply, ACK, timeout_s=ANSWER_TIMEOUT_S)
        except CrewletError:
            self._repeat(proven)
        else:
            self._asked[answer] = proven
            answer.add_done_callback(self._on_answer)

    def _on_answer(self, answer: "asyncio.Future[bytes]") -> None:
        proven = self._asked.pop(answer)
        if answer.cancelled() or answer.exception() is not None:
            self._repeat(proven)
        else:
            self._end(proven)

    def _end(self, proven: Sequence[Held]) -> None:
        self._count -= len(proven)
        for held in proven:
            self._let_go(held)

    def _repeat(self, lost: Sequence[Held]) -> None:
        for held in lost:
            acking = asyncio.ensure_future(self._again(held))
            self._asked[acking] = ()
            acking.add_done_callback(self._on_repeated)

    def _on_repeated(self, acking: "asyncio.Future[None]") -> None:
        del self._asked[acking]
        self._count -= 1
