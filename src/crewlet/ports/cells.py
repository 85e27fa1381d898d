"""Named buckets of revisioned keys: the only shared memory of a fleet.

Every write is conditional; there is no unconditional one. A write has three answers, and the type checker makes each
caller look at all three. Reads come from the store's leader and carry its own time.
"""

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Protocol, assert_never

import msgspec

from crewlet.kit.together import side_by_side
from crewlet.ports.errors import Unavailable


class Entry(msgspec.Struct, frozen=True):
    """One key as the store holds it.

    Attributes:
        key: the key, exactly as it was written.
        value: the bytes of its newest write.
        revision: grows with every write to the bucket, 1 or more; never used twice, not even for a key made again.
        written_at: the store's own clock at that write, UTC-aware. Compare it with `Mark.store_now` or another
            `written_at`, never with a node's clock.
    """

    key: str
    value: bytes
    revision: int
    written_at: datetime


class Done(msgspec.Struct, frozen=True):
    """The write is in the store, at this revision."""

    revision: int


class Refused(msgspec.Struct, frozen=True):
    """The write is not in the store and never will be: the key was not as the caller expected.

    `actual` is the revision the store named as the key's newest, or None where it named none.
    """

    actual: int | None = None


class Unknown(msgspec.Struct, frozen=True):
    """Nobody said. The write may be in the store, may still arrive, or may never. `reason` is for the log."""

    reason: str


WriteResult = Done | Refused | Unknown


def landed(result: WriteResult, undecided: str) -> bool:
    """Whether a write is in; False where somebody else wrote first.

    For callers that do the same about every refusal, and have nothing to go on with while nobody knows.

    Args:
        undecided: what is not known, for the error's sentence.

    Raises:
        Unavailable: nobody knows.
    """
    match result:
        case Done():
            return True
        case Refused():
            return False
        case Unknown(reason):
            raise Unavailable(f"{undecided}: {reason}")
        case _:
            assert_never(result)


class Mark(msgspec.Struct, frozen=True):
    """Where a bucket stands: the store's clock and the revision of the bucket's last write (0 before the first)."""

    store_now: datetime
    last_revision: int


class Put(msgspec.Struct, frozen=True):
    """A watched key was written."""

    entry: Entry


class Gone(msgspec.Struct, frozen=True):
    """A watched key was removed, or aged out and said so. Ageing out may also say nothing at all."""

    key: str
    revision: int


@dataclass(frozen=True, slots=True)
class Level:
    """The watcher has now seen all that was in the bucket when the watch (or its repair after a break) began.

    `is_reset` tells that the watch was repaired: what the caller has gathered must be rebuilt from the events that came
    since the previous `Level`.

    Every write up to `revision` is in what the watcher has seen, or has been replaced, or is gone; 0 where that is not
    known beyond the events themselves.
    """

    is_reset: bool = False
    revision: int = field(default=0, compare=False)


WatchEvent = Put | Gone | Level


@dataclass(frozen=True, slots=True)
class BucketSpec:
    """What a bucket must be.

    Attributes:
        name: `[a-z0-9_]+`, for instance `crewlet_leases`.
        max_age_s: a key vanishes this long after its last write (late by up to 0.5 s, never early); None keeps it for
            ever. 1 s or more.
        allows_entry_ttl: whether a single write may bring its own `ttl_s`.
        any_writer: a key is wanted to have a value, and nobody asks whose. A create of the caller's own that is there
            may then be answered Refused; the store has less to keep of each.
    """

    name: str
    max_age_s: float | None = None
    allows_entry_ttl: bool = False
    any_writer: bool = False


Admit = Callable[[], None]
"""Passes while a write may leave, and raises where it may not any more, as `Fence.check` does."""


class Cells(Protocol):
    """One bucket.

    Keys are `[-/_=.a-zA-Z0-9]+`, not empty, no leading or trailing dot and no two dots together; anything else raises
    Misuse. Values are at most 1 MiB.

    The answer to a write is settled inside the call: on a lost answer the same write, under the same write id, is
    repeated until the store answers or the call's budget (a few seconds, less than a third of any lease) is spent, and
    only then is it Unknown. An Unknown write may still land later. Nothing is concluded from an absence.

    Fencing: `admit` of a write is called in the step of each try, before it leaves; the process may have stood still
    since the one before. What it raises ends the write, and nothing more is sent. After a first try that is as good as
    Unknown.

    Cancellation: a cancelled write is as good as Unknown: it may land later.
    """

    @property
    def name(self) -> str: ...

    @property
    def max_age_s(self) -> float | None:
        """The age the bucket really has: the first node to make a bucket decides, others adopt."""
        ...

    async def read(self, key: str) -> Entry | None:
        """The key's newest value, or None when the store says that there is none.

        A key past its age may still be returned for a moment; callers that care compare `written_at`.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def has_none(self, keys: Sequence[str]) -> bool:
        """Whether the store says, in one answer, that none of these keys is there.

        False tells nothing: they must be read one by one. It is the only answer of a store that cannot be asked so.
        """
        del keys
        return False

    async def mark(self) -> Mark:
        """The store's clock and last revision, from the bucket's leader.

        Raises:
            Unavailable: nobody answered.
        """
        ...

    async def look(self, key: str) -> tuple[Entry | None, Mark]:
        """`read` and `mark`, asked side by side: what a key says, and what time it is there.

        Raises:
            Unavailable: nobody answered one of the two.
        """
        return await side_by_side(self.read(key), self.mark())

    async def look_over(self, prefix: str = "") -> tuple[Sequence[Entry], Mark]:
        """`list` and `mark`, asked side by side.

        Raises:
            Unavailable: nobody answered one of the two.
        """
        return await side_by_side(self.list(prefix), self.mark())

    async def made_anew_at(self, younger: str) -> datetime | None:
        """When this bucket was made, by the store's clock, if that was after the bucket `younger`, which every company
        makes later: an older one of its name was deleted. None where it is the first, or nothing is known to tell.

        Raises:
            Unavailable: nobody answered.
        """
        del younger
        return None

    async def create(
        self, key: str, value: bytes, *, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        """Write a key that is not there (never was, was removed, or aged out)."""
        ...

    async def replace(
        self, key: str, value: bytes, *, expect: int, ttl_s: float | None = None, admit: Admit | None = None
    ) -> WriteResult:
        """Write a key whose newest revision is `expect`. Restarts its age.

        A key that has aged out or was removed refuses, whatever it was before.
        """
        ...

    async def remove(self, key: str, *, expect: int, admit: Admit | None = None) -> WriteResult:
        """Remove a key whose newest revision is `expect`. Afterwards `read` answers None and `create` succeeds."""
        ...

    async def list(self, prefix: str = "") -> Sequence[Entry]:
        """Every live key that begins with `prefix` (whole dot-separated tokens: "seat." or ""), in key order.

        Raises:
            Unavailable: nobody answered, or the answer was cut short. Never a partial list.
        """
        ...

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        """Forget what the store keeps of keys that were removed at least so long ago; returns how many it forgot.

        Each goes at its own revision: a key that was written again since is not touched. Keep it far above the time in
        which a write is settled, since nobody can tell afterwards that the key was ever there.

        Args:
            turned: called as it gets on: there may be many.

        Raises:
            Unavailable: nobody answered for some of it. Those that may be left are found by a further call.
        """
        ...

    def watch(self, prefix: str = "") -> AbstractAsyncContextManager[AsyncIterator[WatchEvent]]:
        """The present content, a `Level`, then every later write, in revision order.

        Between two values of one key a slow watcher may miss some, never the newest. The watch repairs itself after a
        broken connection or a restarted store: the content again, then `Level(is_reset=True)`.

        Raises:
            Unavailable: on entry only, when nobody answers.
        """
        ...


class CellStore(Protocol):
    """Opens buckets."""

    async def open(self, spec: BucketSpec) -> Cells:
        """The bucket, made if it is not there. One that exists with another age is adopted as it is.

        Raises:
            Unavailable: nobody answered within the bring-up budget.
        """
        ...
