"""One attachment's pull requests over one inbox: asked, answered, declared lost, and proven closed.

A pull is never cancelled: the server would keep it, and hand the next message to nobody. It is answered, it expires, or
a wake message makes the server answer it.
"""

import asyncio
import json
import math
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from nats.errors import Error as ClientError

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.translate import DELIVERY_PREFIX, parse_headers
from crewlet.ports.entropy import Entropy

LOST_AFTER_S = 0.4
NO_WAIT_ANSWER_S = 1.0
NS = 1_000_000_000
EMPTY_STATUSES = frozenset({b"404", b"408"})
HEARTBEAT = b"100"
CLOSE_BUDGET_S = 2.0
MOST_OWING = 64

log = structlog.get_logger()


@dataclass(slots=True)
class Pull:
    """One request.

    Attributes:
        count: how many messages this side still waits for.
        owing: how many the server may still send for it, as far as anybody knows.
        wait_s: how long the server keeps it.
        lost_at: past this nobody waits for an answer any more.
    """

    number: int
    count: int
    owing: int
    wait_s: float
    sent_at: float
    lost_at: float
    is_ended: bool = False
    has_trouble: bool = False


class Pulls:
    """The pulls of one attachment.

    `on_delivery` is called for each message, in order, with its reply subject, payload and headers, and with an instant
    before which the server surely did not send it.
    """

    def __init__(
        self,
        connection: Connection,
        entropy: Entropy,
        subject: str,
        on_delivery: Callable[[str, bytes, dict[str, str], float], None],
    ) -> None:
        self._connection = connection
        self._entropy = entropy
        self._subject = subject
        self._on_delivery = on_delivery
        self._inbox = ""
        self._interest: int | None = None
        self._former: int | None = None
        self._open: dict[str, Pull] = {}
        self._owing: deque[Pull] = deque()
        self._asked = 0
        self._event = asyncio.Event()
        self._forget_listener: Callable[[], None] = lambda: None
        self._troubles = 0
        self._deaf_since: float | None = None
        self.is_closing = False
        self.doubt_s: float | None = None
        """The longest expiry among pulls whose end nobody confirmed; None when there is none."""

    async def open(self) -> None:
        await self._listen()
        self._forget_listener = self._connection.listen(self._on_state)

    async def renew(self) -> None:
        """Ask over a new inbox from now on, as the broker may have lost track of who listens on this one.

        What comes over this one all the same is heard until the next renewal, after all of its pulls have expired.
        """
        former, self._former = self._former, None
        await self._end_interest(former)
        if self.is_closing:
            return
        former = self._interest
        try:
            await self._listen()
        except (ClientError, OSError) as error:
            log.debug("pull_inbox_not_renewed", subject=self._subject, error=repr(error))
            return
        self._former = former
        for pull in self.unanswered:
            self._give_up(pull)
        self._event.set()

    async def _listen(self) -> None:
        inbox = self._connection.client.new_inbox()
        self._interest = await self._connection.client.listen(f"{inbox}.*", self._on_message)
        self._inbox = inbox

    @property
    def unanswered(self) -> list[Pull]:
        return list(self._open.values())

    @property
    def deaf_s(self) -> float:
        """For how long every pull was refused, for want of a consumer that could answer."""
        return 0.0 if self._deaf_since is None else self._connection.clock.elapsed() - self._deaf_since

    def stop(self) -> None:
        """Ask nothing more; whoever waits for a pull stops waiting."""
        self.is_closing = True
        self._event.set()

    async def pull(self, count: int, wait_s: float) -> None:
        """Ask for up to `count` messages and wait until the pull is answered, is lost, or this is closing.

        With `wait_s` 0 the server answers at once. A refused or lost pull costs a pause here. Without a connection it
        waits for one, for a second at most, and asks nothing: whether and for how long to ask is then to be told anew.
        """
        if not self._connection.is_connected and not self.is_closing:
            await self._something(1.0)
            return
        if self.is_closing:
            return
        pull = self._ask(count, wait_s)
        while pull is not None and not pull.is_ended and not self.is_closing:
            left = pull.lost_at - self._connection.clock.elapsed()
            if left <= 0:
                self._give_up(pull)
                log.debug("pull_lost", subject=self._subject)
                break
            await self._something(left)
        if pull is None or pull.has_trouble:
            await self._pause()
        elif pull.is_ended:
            self._troubles, self._deaf_since = 0, None

    async def all_answered(self) -> None:
        """Wait until each open pull is answered or lost."""
        while self._open:
            pull = next(iter(self._open.values()))
            left = pull.lost_at - self._connection.clock.elapsed()
            if left <= 0:
                self._give_up(pull)
            else:
                await self._something(left)

    async def close(self) -> None:
        """End the interest in answers. After this nothing arrives; what the server sent before has arrived."""
        self._forget_listener()
        former, self._former = self._former, None
        interest, self._interest = self._interest, None
        await self._end_interest(former)
        await self._end_interest(interest)

    async def _end_interest(self, interest: int | None) -> None:
        if interest is None:
            return
        try:
            async with asyncio.timeout(CLOSE_BUDGET_S):
                await self._connection.client.drain_listening(interest)
        except (ClientError, TimeoutError, OSError) as error:
            log.debug("pull_inbox_not_drained", subject=self._subject, error=repr(error))

    def _ask(self, count: int, wait_s: float) -> Pull | None:
        now = self._connection.clock.elapsed()
        self._asked += 1
        token = f"{self._asked}"
        body: dict[str, int | bool] = {"batch": count}
        if wait_s > 0:
            body["expires"] = max(1, round(wait_s * NS))
        else:
            body["no_wait"] = True
        lost_at = now + (wait_s + LOST_AFTER_S if wait_s > 0 else NO_WAIT_ANSWER_S)
        pull = Pull(self._asked, count, count, wait_s, now, lost_at)
        self._open[token] = pull
        try:
            subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._subject}"
            self._connection.client.send(subject, f"{self._inbox}.{token}", json.dumps(body).encode())
        except (ClientError, OSError):
            self._open.pop(token, None)
            return None
        self._owing.append(pull)
        if len(self._owing) > MOST_OWING:
            oldest = self._owing.popleft()
            self._owing[0].sent_at = oldest.sent_at
            self._owing[0].owing += oldest.owing
        return pull

    def _on_message(self, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if reply.startswith(DELIVERY_PREFIX):
            # A message does not say which pull it answers. Whoever waits here is the oldest open one.
            token, pull = next(iter(self._open.items()), ("", None))
            self._on_delivery(reply.decode(), data, parse_headers(headers), self._sent_after())
            if pull is not None:
                pull.count -= 1
                if pull.count == 0:
                    self._end(token)
                    if pull.owing:
                        self._doubt(pull)
        else:
            self._on_status(subject.rpartition(b".")[2].decode(errors="replace"), headers[9:12])
        self._event.set()

    def _sent_after(self) -> float:
        """When the oldest pull was sent that a message which comes now may answer; one that was given up may be it.

        The server serves pulls in order. So a message is the oldest one's, or tells that nothing more comes of it.
        """
        if not self._owing:
            return -math.inf
        oldest = self._owing[0]
        oldest.owing -= 1
        if oldest.owing == 0:
            self._owing.popleft()
        return oldest.sent_at

    def _on_status(self, token: str, status: bytes) -> None:
        if status == HEARTBEAT:
            return
        is_empty = status in EMPTY_STATUSES
        for told in [each for each in self._owing if token == str(each.number)]:
            # One that was kept here for as long, and was sent before it, is over as well.
            over = [
                each for each in self._owing if is_empty and each.number < told.number and each.wait_s <= told.wait_s
            ]
            for each in (*over, told):
                each.owing = 0
                self._owing.remove(each)
        if (pull := self._open.get(token)) is not None:
            pull.has_trouble = not is_empty
            self._end(token)

    def _end(self, token: str) -> None:
        pull = self._open.pop(token, None)
        if pull is not None:
            pull.is_ended = True

    def _give_up(self, pull: Pull) -> None:
        for token, found in list(self._open.items()):
            if found is pull:
                self._end(token)
        self._doubt(pull)

    def _doubt(self, pull: Pull) -> None:
        self.doubt_s = max(self.doubt_s or 0.0, pull.wait_s)

    def _on_state(self, state: str) -> None:
        if state == "connected":
            # Whatever was asked over the old connection may or may not live; ask again now.
            for pull in self.unanswered:
                self._give_up(pull)
        self._event.set()

    async def _something(self, timeout_s: float) -> None:
        self._event.clear()
        try:
            async with asyncio.timeout(timeout_s):
                await self._event.wait()
        except TimeoutError:
            return

    async def _pause(self) -> None:
        """No consumer answers: an election, or it was deleted. Short pauses first, so that nobody stays deaf."""
        self._troubles += 1
        if self._deaf_since is None:
            self._deaf_since = self._connection.clock.elapsed()
        ceiling = 0.2 if self._troubles < 30 else 1.0
        ends = self._connection.clock.elapsed() + ceiling * (0.25 + 0.75 * self._entropy.random())
        while not self.is_closing and (left := ends - self._connection.clock.elapsed()) > 0:
            await self._something(left)
