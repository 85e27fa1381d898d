"""How a tenure is won: three writes, and the exact give-back of one that came to nothing.

The record in its claiming state keeps every other claim out. The counter then yields a token that nobody else can
have. The third write puts the token into the record. Each is a compare-and-set, so that whoever was overtaken at one of
them, however late its write arrives, is refused.
"""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import assert_never

import msgspec
import structlog

from crewlet.kit.supervise import Tasks, see_through
from crewlet.ports.cells import Cells, Done, Entry, Refused, Unknown, WriteResult, landed
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.errors import Unavailable
from crewlet.seats.formerepochs import forgotten
from crewlet.seats.gate import ProtocolGate
from crewlet.seats.lease import ClaimRefused
from crewlet.seats.records import (
    EMPTY_META,
    EpochRecord,
    Found,
    LeaseRecord,
    decode_epoch,
    encode,
    is_claiming_record_of,
    succeeding,
)
from crewlet.seats.table import LeaseTable, Look

_ROUNDS = 64
_SIBLING_POLL_S = 0.02
_RETRY_S = 0.1
_GIVE_BACK_S = 15.0
"""The leases of duties live for hours, and no node can take so long to stop."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What is asked for.

    Attributes:
        key: the cell of the resource.
        owner: who asks.
        ttl_s: as in the record; 0 is the bucket's age.
        preferred, meta: None leaves them as they are.
        is_gated: whether the protocol gate is judged.
        is_over: says of a tenure of the same owner that it ended here, so that it is not taken up again.
    """

    key: str
    owner: str
    ttl_s: float
    preferred: str | None
    meta: msgspec.Raw | None
    is_gated: bool
    is_over: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Won:
    """A claim that holds the lease.

    Attributes:
        record: as it was written, at `revision`.
        lapses_at: the reading of `Clock.elapsed` before which it surely does not lapse.
        store_now: the store's time of the write, within the claim's own duration.
    """

    record: LeaseRecord
    revision: int
    lapses_at: float
    store_now: datetime


@dataclass(frozen=True, slots=True)
class _Attempt:
    """One go at the three writes.

    Attributes:
        claim: names it in the record.
        base: the revision its first write replaces; None creates.
        leftover: what stands in the record's place once the attempt is given back.
    """

    key: str
    claim: str
    base: int | None
    leftover: LeaseRecord


class _Overtaken(Exception):
    """Somebody else wrote first, and nothing of the attempt is in the store nor ever will be."""


class _LandedLate(Exception):
    """A write upon a tenure landed after the tenure had lapsed, at this revision; nobody had taken it meanwhile."""

    def __init__(self, revision: int) -> None:
        super().__init__(revision)
        self.revision = revision


class Claims:
    """Claims on the resources of one bucket.

    Args:
        table: the records.
        epochs: the counters, in a bucket without an age.
        gate: judged for gated claims.
        protocol: goes into every record, and is what the gate compares with.
    """

    def __init__(
        self, table: LeaseTable, epochs: Cells, gate: ProtocolGate, *, clock: Clock, entropy: Entropy, protocol: int
    ) -> None:
        self._table = table
        self._epochs = epochs
        self._gate = gate
        self._clock = clock
        self._entropy = entropy
        self._protocol = protocol
        self._tasks = Tasks("claims")
        self._ungiven: dict[str, set[str]] = {}
        self._is_loss_told = False
        self._won_at: dict[str, int] = {}
        """The newest epoch that this process won of each key: no later tenure of its own may be as low, whatever the
        store has forgotten."""

    async def stop(self) -> None:
        await self._tasks.stop()

    async def run(self, request: ClaimRequest) -> Won | ClaimRefused:
        """Claim.

        Raises:
            Unavailable: it is not known to have won. What it wrote has been given back, unless the store refused that
                too; a tenure that did commit stays, for the owner to claim again.

        Cancellation: gives back first, for at most a third of the bucket's age, and 15 s.
        """
        wait_until = self._clock.elapsed() + self._give_back_limit_s
        lapsed: set[int] = set()
        overtaken = 0
        while overtaken < _ROUNDS:
            look, counter = await self._table.look_beside(request.key, self._epochs.read(request.key))
            live = look.live
            if live is not None and live.record.owner != request.owner:
                return ClaimRefused("held", holder=live.record.owner or None)
            if live is not None and live.is_claiming and not self._is_ungiven(request.key, live):
                # Another call of this owner is about to commit, or to give back.
                if self._clock.elapsed() >= wait_until:
                    return ClaimRefused("held", holder=live.record.owner)
                await self._clock.sleep(_SIBLING_POLL_S)
                continue
            if request.is_gated and (floor := await self._gate.floor(look.mark)) is not None and floor < self._protocol:
                return ClaimRefused("protocol", floor=floor)
            try:
                is_running = live is not None and live.is_held and live.entry.revision not in lapsed
                if live is not None and is_running and not request.is_over(live.record.epoch):
                    return await self._take_up(request, look, live, counter)
                return await self._attempt(request, look, counter)
            except _Overtaken:
                overtaken += 1
            except _LandedLate as late:
                overtaken += 1
                lapsed.add(late.revision)
        raise Unavailable(f"{request.key}: the claim was overtaken {_ROUNDS} times")

    @property
    def _give_back_limit_s(self) -> float:
        return min(self._table.age_s / 3, _GIVE_BACK_S)

    def _is_ungiven(self, key: str, live: Found) -> bool:
        """Whether it is the leftover of a call of this process that is over, and could not take it back."""
        return live.record.claim in self._ungiven.get(key, ())

    async def _take_up(self, request: ClaimRequest, look: Look, live: Found, counter: Entry | None) -> Won:
        """Renew the owner's own running tenure, with what the claim brings."""
        record = msgspec.structs.replace(
            live.record,
            ttl_s=request.ttl_s,
            acquired_at=live.acquired_at,
            preferred=live.record.preferred if request.preferred is None else request.preferred,
            meta=live.record.meta if request.meta is None else request.meta,
            protocol=self._protocol,
        )
        sent_at = self._clock.elapsed()
        result = await self._table.replace(request.key, record, expect=live.entry.revision)
        revision = _settled(result, request.key)
        lapses_at = look.lapses_at(live)
        if self._clock.elapsed() >= lapses_at and not await self._table.landed_before(request.key, revision, lapses_at):
            raise _LandedLate(revision)
        if request.preferred is not None:
            await self._prefer(request.key, request.preferred, counter)
        return self._won(record, revision, look, sent_at)

    async def _attempt(self, request: ClaimRequest, look: Look, counter: Entry | None) -> Won:
        """The three writes of a new tenure."""
        found = look.found
        last_epoch = found.record.epoch if found is not None else 0
        claiming = LeaseRecord(
            owner=request.owner,
            claim=self._entropy.token(),
            ttl_s=request.ttl_s,
            after=succeeding(found),
            protocol=self._protocol,
            meta=EMPTY_META,
        )
        leftover = msgspec.structs.replace(claiming, released=True, epoch=last_epoch)
        base = None if found is None else found.entry.revision
        attempt = _Attempt(request.key, claiming.claim, base, leftover)
        try:
            if base is None:
                first = await self._table.create(request.key, claiming)
            else:
                first = await self._table.replace(request.key, claiming, expect=base)
            claiming_revision = _settled(first, request.key)
            token = await self._count(request, counter, last_epoch)
            record = msgspec.structs.replace(
                claiming, epoch=token.epoch, preferred=token.preferred, meta=request.meta or EMPTY_META
            )
            sent_at = self._clock.elapsed()
            result = await self._table.replace(request.key, record, expect=claiming_revision)
            revision = _settled(result, request.key)
        except _Overtaken:
            raise
        except BaseException:
            await see_through(self._tasks.start(self._give_back(attempt), f"giving back {request.key}"))
            raise
        self._ungiven.pop(request.key, None)
        self._won_at[request.key] = record.epoch
        return self._won(record, revision, look, sent_at)

    async def _count(self, request: ClaimRequest, entry: Entry | None, last_epoch: int) -> EpochRecord:
        """Take the next token of the resource; nobody else has it or ever will."""
        last_epoch = max(last_epoch, self._won_at.get(request.key, 0))
        if entry is None:
            last_epoch = max(last_epoch, await self._forgotten())
        for _ in range(_ROUNDS):
            counter = decode_epoch(entry)
            preferred = counter.preferred if request.preferred is None else request.preferred
            token = EpochRecord(epoch=max(counter.epoch, last_epoch) + 1, preferred=preferred)
            if await self._write_epoch(request.key, token, entry):
                return token
            entry = await self._epochs.read(request.key)
        raise Unavailable(f"{request.key}: the counter was overtaken {_ROUNDS} times")

    async def _forgotten(self) -> int:
        floor = await forgotten(self._epochs)
        if floor and not self._is_loss_told:
            self._is_loss_told = True
            reason = "it was deleted; where no counter is left, epochs go on above whatever can have been given out"
            _log.error("epochs_lost", bucket=self._epochs.name, above=floor, reason=reason)
        return floor

    async def _prefer(self, key: str, preferred: str, entry: Entry | None) -> None:
        """Move the hint and leave the counter as it is."""
        for _ in range(_ROUNDS):
            counter = decode_epoch(entry)
            if counter.preferred == preferred:
                return
            if await self._write_epoch(key, EpochRecord(epoch=counter.epoch, preferred=preferred), entry):
                return
            entry = await self._epochs.read(key)
        raise Unavailable(f"{key}: the hint was overtaken {_ROUNDS} times")

    async def _write_epoch(self, key: str, record: EpochRecord, entry: Entry | None) -> bool:
        if entry is None:
            result = await self._epochs.create(key, encode(record))
        else:
            result = await self._epochs.replace(key, encode(record), expect=entry.revision)
        return landed(result, f"{key}: the counter's write is undecided")

    def _won(self, record: LeaseRecord, revision: int, look: Look, sent_at: float) -> Won:
        store_now = look.mark.store_now + timedelta(seconds=self._clock.elapsed() - look.answered_at)
        return Won(record, revision, sent_at + self._table.lifetime_s(record), store_now)

    async def _give_back(self, attempt: _Attempt) -> None:
        """Take an attempt's record out of the way, and have its writes that are still on their way refused."""
        limit_s = self._give_back_limit_s
        try:
            await self._tasks.within(self._withdraw(attempt), limit_s, self._clock.sleep, f"withdrawal {attempt.key}")
        except TimeoutError:
            self._ungiven.setdefault(attempt.key, set()).add(attempt.claim)
            _log.warning("claim_not_given_back", key=attempt.key, claim=attempt.claim, waited_s=limit_s)

    async def _withdraw(self, attempt: _Attempt) -> None:
        while True:
            try:
                result = await self._withdraw_once(attempt)
            except Unavailable as error:
                result = Unknown(str(error))
            match result:
                case Done():
                    return
                case Refused():
                    continue
                case Unknown():
                    await self._clock.sleep(_RETRY_S)
                case _:
                    assert_never(result)

    async def _withdraw_once(self, attempt: _Attempt) -> WriteResult:
        """Move the cell past whatever the attempt may still write.

        Its record, if it landed, goes; a cell still as the attempt found it is written over, so that a first write that
        comes late no longer fits. Anything else is another call's, or a tenure that did commit, and stays.
        """
        entry = await self._table.cells.read(attempt.key)
        if entry is None:
            return await self._table.create(attempt.key, attempt.leftover)
        is_ours = is_claiming_record_of(entry, attempt.claim)
        if not is_ours and entry.revision != attempt.base:
            return Done(entry.revision)
        return await self._table.replace(attempt.key, attempt.leftover, expect=entry.revision)


def _settled(result: WriteResult, key: str) -> int:
    """The revision of a write that landed.

    Raises:
        _Overtaken: it did not and will not.
        Unavailable: nobody knows.
    """
    match result:
        case Done(revision):
            return revision
        case Refused():
            raise _Overtaken
        case Unknown(reason):
            raise Unavailable(f"{key}: the lease's write is undecided: {reason}")
        case _:
            assert_never(result)
