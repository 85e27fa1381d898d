"""The company's token counters and caps: one record a spender, shared by the fleet, changed by compare-and-set alone.

A charge fails closed: while one cannot be counted nothing more is spent, and it goes along with the next. The charges
of one process for one spender go together.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextvars import copy_context
from dataclasses import dataclass
from datetime import datetime, tzinfo
from typing import TypeVar

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.kit.supervise import Tasks
from crewlet.ports.cells import BucketSpec, Cells, landed
from crewlet.ports.errors import Unavailable
from crewlet.turns import budget
from crewlet.turns.budget import Caps, Over, Spent, Window

BUDGETS_BUCKET = BucketSpec("crewlet_budgets")
"""No age: a month is longer than any, and a counter is one record a spender for ever."""

COMPANY = "the company"
"""Its name among the spenders; no handle reads like this."""
_TRIES = 50

_log = structlog.get_logger()
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Standing:
    """Where one spender stands.

    Attributes:
        spender: `COMPANY`, or a seat's handle.
        spent: tokens in the present window of each kind.
        caps: those in force.
        is_set: the caps were set by a person, in place of the company document's.
        ends: when the present windows end.
    """

    spender: str
    spent: Mapping[Window, int]
    caps: Caps
    is_set: bool
    ends: Mapping[Window, datetime]


class Budgets:
    """Counts what is spent, and says what may not be any more.

    Args:
        cells: the bucket.
        caps: what the company document says of a spender: `COMPANY`, or a seat's handle.
        zone: the company's own.
    """

    def __init__(self, cells: Cells, caps: Callable[[str], Caps], zone: Callable[[], tzinfo]) -> None:
        self._cells = cells
        self._caps = caps
        self._zone = zone
        self._open: dict[str, _Batch] = {}
        self._locks: dict[str, asyncio.Lock] = {}
        self._uncounted: Counter[str] = Counter()
        self._tasks = Tasks("budgets")
        # A charge counts for all the turns that joined it, and is logged under the names of none.
        self._context = copy_context()

    async def refusal(self, handle: str) -> Over | None:
        """The cap that keeps a seat from spending, its own or the company's; None when it may go on.

        Raises:
            Unavailable: nobody knows; nothing may be spent, and nothing is concluded.
        """
        spenders = (COMPANY, handle)
        caps = await asyncio.gather(*(self.caps(spender) for spender in spenders))
        limited = [(spender, its) for spender, its in zip(spenders, caps, strict=True) if not its.is_unlimited]
        if not limited:
            return None
        now = (await self._cells.mark()).store_now
        spent = await asyncio.gather(*(self._spent(spender) for spender, _ in limited))
        zone = self._zone()
        reached = [
            found
            for (spender, its), (record, _) in zip(limited, spent, strict=True)
            if (found := budget.over(spender, record, its, now, zone)) is not None
        ]
        return max(reached, key=lambda each: each.until, default=None)

    def is_unlimited(self, handle: str, set_keys: Collection[str]) -> bool:
        """Whether nothing limits a seat: the document does not, and a person set nothing.

        Args:
            set_keys: the keys of the caps that people set, all of them.
        """
        if set_keys and (_caps_key(COMPANY) in set_keys or _caps_key(handle) in set_keys):
            return False
        return self._caps(COMPANY).is_unlimited and self._caps(handle).is_unlimited

    async def charge(self, handle: str, tokens: int) -> None:
        """Count what a seat has spent, for itself and for the company.

        Raises:
            Unavailable: it may or may not be counted; nothing more may be spent before it is known. What was certainly
                not goes along with the next charge of this process.

        Cancellation: it is counted all the same.
        """
        if tokens > 0:
            batches = [self._join(spender, tokens) for spender in (COMPANY, handle)]
            await asyncio.gather(*(asyncio.shield(batch) for batch in batches))

    async def standing(self, spender: str) -> Standing:
        """Where a spender stands now.

        Raises:
            Unavailable: nobody answered.
        """
        own, (record, _), mark = await asyncio.gather(self._own_caps(spender), self._spent(spender), self._cells.mark())
        zone, now = self._zone(), mark.store_now
        today = now.astimezone(zone).date()
        return Standing(
            spender=spender,
            spent={window: record.tokens(window, today) for window in budget.WINDOWS},
            caps=self._caps(spender) if own is None else own,
            is_set=own is not None,
            ends={window: budget.end_of(window, now, zone) for window in budget.WINDOWS},
        )

    async def caps(self, spender: str) -> Caps:
        """The caps in force: those that a person set, else the company document's.

        Raises:
            Unavailable: nobody answered.
        """
        own = await self._own_caps(spender)
        return self._caps(spender) if own is None else own

    async def set_caps(self, spender: str, caps: Caps | None) -> None:
        """Put caps in place of the document's, or, with None, go back to those.

        Raises:
            Unavailable: nobody said whether it is done.
        """
        await self._change(_caps_key(spender), lambda _: msgspec.json.encode(_SetCaps(caps)))
        _log.info("budget_set", spender=spender, caps=None if caps is None else msgspec.to_builtins(caps))

    async def reset(self, spender: str) -> None:
        """Begin every window of a spender at nothing.

        Raises:
            Unavailable: nobody said whether it is done.
        """
        await self._change(_spent_key(spender), lambda _: msgspec.json.encode(Spent()))
        # Whoever waits for a cap to be raised hears of this too.
        await self._change(_caps_key(spender), lambda value: value or msgspec.json.encode(_SetCaps()))
        _log.info("budget_reset", spender=spender)

    async def stop(self) -> None:
        """Give up the charges that nobody has answered."""
        await self._tasks.stop()

    def _join(self, spender: str, tokens: int) -> "asyncio.Task[None]":
        """Add to the charge of this spender that has not left yet."""
        batch = self._open.get(spender)
        if batch is None:
            batch = self._open[spender] = _Batch()
            sending = self._send(spender, batch)
            batch.task = self._context.run(self._tasks.start, sending, f"charge of {spender}", is_joined=True)
        batch.tokens += tokens
        assert batch.task is not None
        return batch.task

    async def _send(self, spender: str, batch: "_Batch") -> None:
        lock = self._locks.setdefault(spender, asyncio.Lock())
        async with lock:
            self._open.pop(spender, None)
            tokens = batch.tokens + self._uncounted.pop(spender, 0)
            try:
                await self._count(spender, tokens)
            except _Undecided:
                raise
            except Unavailable:
                self._uncounted[spender] = tokens
                raise

    async def _count(self, spender: str, tokens: int) -> None:
        caps = await self.caps(spender)
        today = (await self._cells.mark()).store_now.astimezone(self._zone()).date()
        told: dict[Window, int] = {}

        def add(value: bytes | None) -> bytes:
            spent = budget.charged(_decode(value, Spent, Spent()), tokens, today)
            told.clear()
            told.update({window: cap for window, _, cap in budget.warnings(spent, caps, today)})
            return msgspec.json.encode(budget.warned(spent, told))

        await self._change(_spent_key(spender), add)
        for window, cap in told.items():
            _log.warning("budget_nearly_spent", spender=spender, window=window, cap=cap)

    async def _change(self, key: str, make: Callable[[bytes | None], bytes]) -> None:
        for _ in range(_TRIES):
            entry = await self._cells.read(key)
            value = make(None if entry is None else entry.value)
            result = await (
                self._cells.create(key, value)
                if entry is None
                else self._cells.replace(key, value, expect=entry.revision)
            )
            try:
                if landed(result, f"nobody said whether {key} is changed"):
                    return
            except Unavailable as error:
                raise _Undecided(str(error)) from error
            # Another node was first: on top of what it wrote.
        raise Unavailable(f"{key} was changed by others again and again")

    async def _own_caps(self, spender: str) -> Caps | None:
        entry = await self._cells.read(_caps_key(spender))
        return None if entry is None else _decode(entry.value, _SetCaps, _SetCaps()).caps

    async def _spent(self, spender: str) -> tuple[Spent, int]:
        entry = await self._cells.read(_spent_key(spender))
        return (Spent(), 0) if entry is None else (_decode(entry.value, Spent, Spent()), entry.revision)


class _Undecided(Unavailable):
    """A write has left, and may be in."""


class _SetCaps(msgspec.Struct, frozen=True, omit_defaults=True):
    caps: Caps | None = None


@dataclass(slots=True, eq=False)
class _Batch:
    tokens: int = 0
    task: "asyncio.Task[None] | None" = None


def _spent_key(spender: str) -> str:
    return "spent.company" if spender == COMPANY else f"spent.seat.{spender}"


CAPS_PREFIX = "caps."
"""The keys that change when a cap does, and when a counter is reset."""


def _caps_key(spender: str) -> str:
    return f"{CAPS_PREFIX}company" if spender == COMPANY else f"{CAPS_PREFIX}seat.{spender}"


def _decode(value: bytes | None, kind: type[T], empty: T) -> T:
    if value is None:
        return empty
    try:
        return decode(value, kind)
    except msgspec.MsgspecError as error:
        raise Unavailable(f"a record of the budgets cannot be read: {error}") from error
