"""Which seats people have paused: one record for the whole fleet, changed by compare-and-set alone.

It says what people decided and nothing else. Which node has which seat, and what that node does about a pause, is the
node's (see `pausewatch`). Time is the store's, so that a pause with an end ends everywhere at once.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

import msgspec
import structlog

from crewlet.kit import wording
from crewlet.kit.decoding import Instant, decode
from crewlet.mail.events import Tell, tell_nobody
from crewlet.mail.reuse import IdReused
from crewlet.ports.cells import BucketSpec, Cells, Entry, landed
from crewlet.ports.errors import Misuse, Unavailable

PAUSES_BUCKET = BucketSpec("crewlet_pauses")
"""No age: a pause ends when a person says so, or when the person's own instant comes."""

PAUSES_KEY = "seats"

_TRIES = 20

_log = structlog.get_logger()


class Pause(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One seat is paused.

    Attributes:
        id: names this pause and no other: a change of it has an id of its own.
        since: the store's clock when it was written.
        by: who paused it, as they said.
        reason: one line for people, or "".
        until: the store's time at which it ends by itself, or None.
        stop_running: the turn that runs is to be stopped as well.
    """

    id: str
    since: Instant
    by: str = ""
    reason: str = ""
    until: Instant | None = None
    stop_running: bool = False

    def is_over(self, store_now: datetime) -> bool:
        return self.until is not None and self.until <= store_now

    def __str__(self) -> str:
        who = f"paused by {self.by or 'a person'}"
        return f"{who}: {self.reason}" if self.reason else who


class _Record(msgspec.Struct, frozen=True):
    seats: dict[str, Pause] = {}


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asks for; see `Pause`. `for_s` counts from the store's now, in place of `until`."""

    id: str
    by: str = ""
    reason: str = ""
    until: datetime | None = None
    for_s: float | None = None
    stop_running: bool = False


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of a wish.

    Attributes:
        done: the handles for which it holds now.
        lost: the pause that stands in the way of the wish, by handle; None where there is none (any more).
        pauses: every pause in force after it, by handle.
    """

    done: tuple[str, ...]
    lost: Mapping[str, Pause | None]
    pauses: Mapping[str, Pause]


def decode_pauses(entry: Entry | None) -> Mapping[str, Pause]:
    """The pauses of a record, those that are over included.

    Raises:
        Unavailable: the record cannot be read, so nobody knows who is paused.
    """
    if entry is None:
        return {}
    try:
        return decode(entry.value, _Record).seats
    except msgspec.MsgspecError as error:
        raise Unavailable(f"the record of pauses cannot be read: {error}") from error


class Pauses:
    """Pauses seats and ends pauses. Every node's verbs are the same.

    Args:
        tell: publishes a change, where this process made it.
    """

    def __init__(self, cells: Cells, tell: Tell = tell_nobody) -> None:
        self._cells = cells
        self._tell = tell

    async def in_force(self) -> Mapping[str, Pause]:
        """The pauses by handle, as the store has them now.

        Raises:
            Unavailable: nobody answered.
        """
        pauses, _, now = await self._look()
        return _without_ended(pauses, now)

    async def pause(self, handles: Collection[str], wish: Wish, *, instead_of: str | None = None) -> Changed:
        """Pause seats, all in one write. A seat that is paused already stays as the first one paused it.

        Args:
            instead_of: the id of the pause to replace: only seats with that pause are changed.

        Raises:
            IdReused: a seat is paused under this id, but not as this wish has it.
            Misuse: the wished end has passed already.
            Unavailable: nobody said whether it is done. A repeat with the same `wish.id` does no harm.
        """

        def change(pauses: dict[str, Pause], now: datetime) -> tuple[str, ...]:
            pause = _wished(wish, now)
            if pause.until is not None and pause.is_over(now):
                passed = f"the end of the pause, {wording.instant(pause.until)}, has passed"
                raise Misuse(f"{passed}: it is {wording.instant(now)} by the broker's clock")
            for handle in handles:
                standing = pauses.get(handle)
                if (standing.id if standing is not None else None) == instead_of:
                    pauses[handle] = pause
                elif standing is not None and standing.id == wish.id and standing != _wished(wish, standing.since):
                    raise IdReused(
                        f"the id {wish.id!r} is that of a pause of {handle} that says something else; "
                        "give this one an id of its own"
                    )
            return tuple(handle for handle in handles if handle in pauses and pauses[handle].id == wish.id)

        changed, was_written = await self._write(handles, change)
        for handle in changed.done if was_written else ():
            pause = changed.pauses[handle]
            paused = {
                "seat": handle,
                "by": pause.by,
                "reason": pause.reason,
                "until": pause.until.isoformat() if pause.until is not None else None,
                "stop_running": pause.stop_running,
                "pause": pause.id,
            }
            _log.info("seat_paused", **paused)
            self._tell("seat_paused", paused)
        return changed

    async def resume(self, expected: Mapping[str, str], *, by: str = "") -> Changed:
        """End pauses, all in one write: for each handle exactly the pause of that id.

        Raises:
            Unavailable: nobody said whether it is done.
        """

        def change(pauses: dict[str, Pause], now: datetime) -> tuple[str, ...]:
            ended = [handle for handle, id in expected.items() if handle in pauses and pauses[handle].id == id]
            for handle in ended:
                del pauses[handle]
            return tuple(ended)

        changed, _ = await self._write(expected.keys(), change)
        for handle in changed.done:
            resumed = {"seat": handle, "by": by, "pause": expected[handle]}
            _log.info("seat_resumed", **resumed)
            self._tell("seat_resumed", resumed)
        return changed

    async def _write(
        self, handles: Collection[str], change: Callable[[dict[str, Pause], datetime], tuple[str, ...]]
    ) -> tuple[Changed, bool]:
        """What became of it, and whether that took a write."""
        for _ in range(_TRIES):
            before, revision, now = await self._look()
            after = dict(_without_ended(before, now))
            done = change(after, now)
            changed = Changed(done, {handle: after.get(handle) for handle in handles if handle not in done}, after)
            if after == before or not done:
                return changed, False
            value = msgspec.json.encode(_Record(after))
            result = await (
                self._cells.create(PAUSES_KEY, value)
                if revision is None
                else self._cells.replace(PAUSES_KEY, value, expect=revision)
            )
            if landed(result, "nobody said whether the pauses are changed"):
                return changed, True
            # Somebody else was first: look at what they made of it.
        raise Unavailable("the record of pauses was changed by others again and again")

    async def _look(self) -> tuple[Mapping[str, Pause], int | None, datetime]:
        entry, mark = await self._cells.look(PAUSES_KEY)
        return decode_pauses(entry), entry.revision if entry is not None else None, mark.store_now


def _wished(wish: Wish, since: datetime) -> Pause:
    """The pause that a wish makes at an instant."""
    until = since + timedelta(seconds=wish.for_s) if wish.for_s is not None else wish.until
    return Pause(id=wish.id, since=since, by=wish.by, reason=wish.reason, until=until, stop_running=wish.stop_running)


def _without_ended(pauses: Mapping[str, Pause], now: datetime) -> Mapping[str, Pause]:
    return {handle: pause for handle, pause in pauses.items() if not pause.is_over(now)}
