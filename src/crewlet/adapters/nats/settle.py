"""One compare-and-set, settled: sent, and sent again under the same id, until the server says what became of it.

An answer that was lost is never guessed. The server's own answers decide, and where one server names the sequence that
is in the way, the id of the record lying there tells whose it is.

What one connection carries takes effect in order, so an answer settles every try that left over it before. One that
left over a connection that broke may still lie with the server: it is nobody's refusal while it could land.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from crewlet.adapters.nats.connection import decode
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.translate import (
    ID_IN_PROCESS,
    NO_MESSAGE,
    UNDECIDED_SEQUENCE,
    WRONG_LAST_SEQUENCE,
    ApiError,
    MessageAnswer,
    NobodyThere,
    PubAck,
    StoredMessage,
    StreamAnswer,
    StreamGone,
    unavailable,
)
from crewlet.ports.cells import Admit, Done, Refused, Unknown, WriteResult
from crewlet.ports.errors import NotTaken, Unavailable

MSG_ID = "Nats-Msg-Id"

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 0.2

T = TypeVar("T")


class Write(msgspec.Struct, frozen=True, gc=False):
    """What is to be written.

    Attributes:
        stream: where.
        subject: the key's subject.
        value: the payload.
        expect: the subject's newest sequence as the writer knows it; 0 is a create.
        id: names this write and no other; plain letters, digits, `.` and `-`. "" where nobody needs to tell it from
            another's: the server then keeps no register of it.
        more: further header lines, each with its line end.
        is_replicated: whether a deposed leader could answer.
        admit: asked in the step of each try.
    """

    stream: str
    subject: str
    value: bytes
    expect: int
    id: str
    more: str = ""
    is_replicated: bool = False
    admit: Admit | None = None


@dataclass(frozen=True, slots=True)
class Undecided:
    """Send it again.

    Attributes:
        may_be_in: the last one may have landed, or may still.
        is_unheard: nothing listens where it went.
    """

    reason: str
    may_be_in: bool = True
    is_unheard: bool = False


@dataclass(frozen=True, slots=True)
class Conflict:
    """The server's newest sequence of the subject is `actual`, not the expected one; 0 is an empty subject."""

    actual: int


def verdict(ack: PubAck, expect: int, *, is_replicated: bool) -> Done | Conflict | Undecided:
    """What one answer says. Pure."""
    fault = ack.error
    if fault is None:
        return Done(ack.seq) if ack.seq > 0 and ack.stream else Undecided("the answer names no place")
    if fault.err_code == WRONG_LAST_SEQUENCE and fault.named_sequence is not None:
        # A subject's newest sequence never falls except to nothing: whoever names an older one is behind.
        if is_replicated and 0 < fault.named_sequence < expect:
            return Undecided("the server that answered is behind")
        return Conflict(fault.named_sequence)
    may_be_in = fault.err_code in {UNDECIDED_SEQUENCE, ID_IN_PROCESS}
    return Undecided(f"{fault.description} ({fault.err_code})", may_be_in)


async def settle(lane: Lane, write: Write, *, budget_s: float) -> WriteResult:
    """Write, and repeat until it is definite or the budget is spent; waiting for a turn is part of it.

    Cancellation: as good as Unknown.
    """
    started, over = lane.clock.elapsed(), lane.breaks
    step = await _send(lane, write, write.expect, budget_s, budget_s)
    if isinstance(step, Done):
        return step
    return await _Settling(lane, write, budget_s, started).run(step, over)


async def _send(lane: Lane, write: Write, expect: int, budget_s: float, left_s: float) -> Done | Conflict | Undecided:
    """One try."""
    id_line = f"{MSG_ID}: {_id(write, expect)}\r\n" if write.id else ""
    head = f"NATS/1.0\r\n{id_line}{_EXPECTED}: {expect}\r\n{write.more}\r\n".encode()
    timeout_s = _try_s(budget_s, left_s)
    try:
        answer = await lane.request(
            write.subject, write.value, timeout_s=timeout_s, wait_s=left_s, head=head, admit=write.admit
        )
        return verdict(decode(answer, PubAck), expect, is_replicated=write.is_replicated)
    except NotTaken as error:
        return Undecided(str(error), may_be_in=False, is_unheard=isinstance(error, NobodyThere))
    except Unavailable as error:
        return Undecided(str(error))


def _id(write: Write, expect: int) -> str:
    """Another expectation is another write to the server's register of ids."""
    return f"{write.id}-{expect}"


def _try_s(budget_s: float, left_s: float) -> float:
    """The time for one try: short enough for two more."""
    return max(0.05, min(left_s, budget_s / 3))


class _Settling:
    """What follows a first try that did not land, or did not say so."""

    def __init__(self, lane: Lane, write: Write, budget_s: float, started: float) -> None:
        self._lane = lane
        self._write = write
        self._budget_s = budget_s
        self._started = started
        self._expect = write.expect
        self._ids = {_id(write, write.expect)}
        self._may_be_in = False
        self._loose: list[tuple[int, int]] = []  # tries without an answer: what they expect, and the breaks before them
        self._over: int | None = None

    async def run(self, first: Conflict | Undecided, over: int) -> WriteResult:
        step: Done | Refused | Conflict | Undecided | None = self._note(first, over)
        pause_s = _FIRST_PAUSE_S
        while True:
            if isinstance(step, Conflict):
                step = await self._resolve(step.actual)
            if isinstance(step, Refused) and self._may_arrive(step.actual or 0):
                return Unknown("an earlier try, over a connection that broke, may still arrive")
            if isinstance(step, Done | Refused):
                return step
            if step is not None:
                reason = step.reason
                self._may_be_in = self._may_be_in or step.may_be_in
                if step.is_unheard and self._left_s() <= pause_s:
                    return Unknown(await self._why_unheard(reason))
                await self._lane.clock.sleep(min(pause_s, max(0.0, self._left_s())))
                pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
            else:
                reason = "no time was left to ask"
            if self._left_s() <= 0:
                return Unknown(reason)
            step = await self._again()

    def _left_s(self) -> float:
        return self._budget_s - (self._lane.clock.elapsed() - self._started)

    async def _again(self) -> Done | Conflict | Undecided:
        self._ids.add(_id(self._write, self._expect))
        over = self._lane.breaks
        return self._note(await _send(self._lane, self._write, self._expect, self._budget_s, self._left_s()), over)

    def _note(self, step: T, over: int) -> T:
        """Note over which connection a try left: `over` breaks were counted before, and it may have waited its turn."""
        if isinstance(step, Undecided):
            if step.may_be_in:
                self._loose.append((self._expect, over))
        else:
            self._over = over if self._lane.breaks == over else None
        return step

    def _may_arrive(self, actual: int) -> bool:
        """Whether a try that no answer has settled could still land, with the subject's newest sequence at `actual`.

        That sequence comes back to no number, unless the bucket is made anew. It comes back to nothing at any time: a
        record ages out, and its marker is forgotten.
        """
        return any(over != self._over and (expect == 0 or expect > actual > 0) for expect, over in self._loose)

    async def _resolve(self, actual: int) -> Done | Refused | Undecided | None:
        """Whose record is in the way. None: the write goes out again at once, under a new expectation."""
        is_create = self._write.expect == 0
        if actual == 0:
            if not is_create:
                return await self._is_gone()
            if self._expect == 0:
                return Undecided("the server contradicts itself")
            self._expect = 0
            return None
        if not is_create and not self._may_be_in:
            return Refused(actual)
        try:
            timeout_s = _try_s(self._budget_s, self._left_s())
            found = await message_at(self._lane, self._write.stream, actual, timeout_s=timeout_s)
        except Unavailable as error:
            return Undecided(str(error), may_be_in=False)
        if found is None:
            return Undecided("the record in the way is gone", may_be_in=False)
        if found.headers.get(MSG_ID) in self._ids:
            return Done(actual)
        if is_create and found.is_marker:
            self._expect = actual
            return None
        return Refused(actual)

    async def _why_unheard(self, reason: str) -> str:
        """Nothing listens for writes to a bucket without a leader, nor to one that is not there: whether there is one
        tells the two apart. Asked in place of the last pause, after which there is no time for another try."""
        try:
            await self._info()
        except StreamGone as error:
            return str(error)
        except Unavailable:
            return reason
        return reason

    async def _info(self) -> StreamAnswer:
        """Raises Unavailable where nobody answers, or there is no such stream."""
        timeout_s = _try_s(self._budget_s, self._left_s())
        try:
            return await self._lane.api(f"STREAM.INFO.{self._write.stream}", {}, StreamAnswer, timeout_s=timeout_s)
        except ApiError as error:
            raise unavailable(error, self._write.stream) from error

    async def _is_gone(self) -> Refused | Undecided:
        """A server has nothing of the key. One that does not know the writer's own last write is behind, or has a
        bucket that was made anew, which may come to that sequence again."""
        write = self._write
        if not write.is_replicated and not any(over != self._over for _, over in self._loose):
            return Refused(None)
        try:
            info = await self._info()
        except Unavailable as error:
            return Undecided(str(error), may_be_in=False)
        if info.state.last_seq < write.expect:
            return Undecided("the server that answered is behind")
        return Refused(None)


async def message_at(lane: Lane, stream: str, sequence: int, *, timeout_s: float) -> StoredMessage | None:
    """The message at a sequence, from the stream's leader; None when it holds none there.

    Raises:
        Unavailable: nobody answered.
    """
    return await _message(lane, stream, {"seq": sequence}, timeout_s)


async def newest_message(
    lane: Lane, stream: str, subject: str, *, timeout_s: float, wait_s: float | None = None
) -> StoredMessage | None:
    """A subject's newest message, from the stream's leader; None when it has none.

    Raises:
        Unavailable: nobody answered.
    """
    return await _message(lane, stream, {"last_by_subj": subject}, timeout_s, wait_s)


async def _message(
    lane: Lane, stream: str, body: Mapping[str, object], timeout_s: float, wait_s: float | None = None
) -> StoredMessage | None:
    subject = f"$JS.API.STREAM.MSG.GET.{stream}"
    wait_s = timeout_s if wait_s is None else wait_s
    answer = await lane.request(subject, msgspec.json.encode(body), timeout_s=timeout_s, wait_s=wait_s)
    return message_in(answer, stream)


def message_in(data: bytes, stream: str) -> StoredMessage | None:
    """The message in an answer to a read; None when the leader says that there is none.

    Raises:
        Unavailable: it says neither.
    """
    answer = decode(data, MessageAnswer)
    if answer.error is None:
        if answer.message is None:
            raise Unavailable("the broker's answer to a read holds nothing")
        return answer.message
    if answer.error.err_code == NO_MESSAGE:
        return None
    error = answer.error.as_error()
    raise unavailable(error, stream) if isinstance(error, ApiError) else error
