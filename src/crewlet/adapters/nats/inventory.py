"""The company's streams as the broker lists them, against what they were and what they have to be."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any

import msgspec

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.streams import DEAD_LETTERS, STREAMS
from crewlet.adapters.nats.translate import BUCKET_PREFIX, ApiError
from crewlet.ports.errors import Unavailable
from crewlet.ports.stores import StoreFault

PAGE_TIMEOUT_S = 5.0

_KEPT = {stream.name: stream for stream in STREAMS if stream.keeps_interest or stream is DEAD_LETTERS}
"""The streams of which nothing may be thrown away before somebody has dealt with it."""
_GROWING = "KV_crewlet_epochs"
"""No key of it is ever removed."""
_MISSING = "it was deleted, with all that was in it; restart this node, which makes it anew"


class _State(msgspec.Struct, frozen=True):
    messages: int
    last_seq: int


class _Config(msgspec.Struct, frozen=True):
    """The server leaves out what is not set."""

    name: Annotated[str, msgspec.Meta(min_length=1)]
    retention: str = "limits"
    discard: str = "old"
    max_age: int = 0
    max_msgs: int = -1
    max_bytes: int = -1
    max_msgs_per_subject: int = -1


class _Listed(msgspec.Struct, frozen=True):
    config: _Config
    created: str
    state: _State


class _Page(msgspec.Struct, frozen=True):
    total: int
    streams: list[_Listed] | None = None
    missing: list[str] | None = None


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a stream was when it was last looked at. `max_age` is that of the first time.

    Attributes:
        is_doubted: the last look spoke against it; of several servers one that was deposed, and does not know it, may.
    """

    created: str
    max_age: int
    messages: int
    last_seq: int
    is_doubted: bool = False


class Inventory:
    """See `crewlet.ports.stores.Stores`. What the first call finds is what there has to be from then on."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._seen: dict[str, _Seen] = {}

    async def faults(self) -> Sequence[StoreFault]:
        listed = await self._listed()
        found = [fault for name in sorted(listed) for fault in self._of(listed[name])]
        for name, seen in self._seen.items():
            if name in listed:
                continue
            if seen.is_doubted:
                found.append(StoreFault(_plain(name), "missing", _MISSING))
            self._seen[name] = replace(seen, is_doubted=True)
        return found

    def _of(self, now: _Listed) -> Iterator[StoreFault]:
        name, state = now.config.name, now.state
        before = self._seen.get(name)
        age = now.config.max_age if before is None else before.max_age
        reset = "" if before is None else _reset(name, before, now)
        if before is not None and reset and self._connection.is_clustered and not before.is_doubted:
            self._seen[name] = replace(before, is_doubted=True)
        else:
            self._seen[name] = _Seen(now.created, age, state.messages, state.last_seq)
            if reset:
                yield StoreFault(_plain(name), "reset", reset)
        for reason in _unfit(now.config, age):
            yield StoreFault(_plain(name), "unfit", reason)

    async def _listed(self) -> Mapping[str, _Listed]:
        """Every stream of ours.

        Raises:
            Unavailable: nobody answered, or not for all of them.
        """
        found: dict[str, _Listed] = {}
        offset, total = 0, 1
        while offset < total:
            page = await self._page(offset)
            total = page.total
            streams = page.streams or []
            if page.missing or (not streams and offset < total):
                raise Unavailable("the broker did not list all of its streams")
            offset += len(streams)
            found.update({each.config.name: each for each in streams if _is_ours(each.config.name)})
        return found

    async def _page(self, offset: int) -> _Page:
        body: dict[str, Any] = {"offset": offset}
        try:
            answer = await ask(
                self._connection, "STREAM.LIST", body, shape=_Page, timeout_s=PAGE_TIMEOUT_S, budget_s=0.0
            )
        except ApiError as error:
            raise Unavailable(f"the broker does not list its streams: {error}") from error
        return msgspec.convert(answer, _Page)


def _is_ours(name: str) -> bool:
    return name.startswith(f"{BUCKET_PREFIX}crewlet_") or any(name == stream.name for stream in STREAMS)


def _plain(name: str) -> str:
    """As people know it: a bucket without what its stream is called."""
    return name.removeprefix(BUCKET_PREFIX)


def _reset(name: str, before: _Seen, now: _Listed) -> str:
    """What happened to a stream since it was last looked at, or ""."""
    if now.created != before.created:
        return "it was deleted and made anew: what was in it is gone"
    if now.state.last_seq < before.last_seq:
        return "it was put back to what it was before: what was written since is gone"
    if name == _GROWING and now.state.messages < before.messages:
        return "somebody removed what was in it"
    return ""


def _unfit(config: _Config, age: int) -> Iterator[str]:
    """How a stream would lose what it has to keep."""
    throws_away = config.discard != "new"
    limits = {"max_msgs": config.max_msgs, "max_bytes": config.max_bytes} if throws_away else {}
    if config.name in _KEPT:
        kept = _KEPT[config.name]
        limits["max_msgs_per_subject"] = config.max_msgs_per_subject
        if kept.keeps_interest:
            limits["max_age"] = config.max_age
            if (retention := config.retention) != "interest":
                yield f"its retention is {retention} in place of interest; delete it, once it is empty and no node runs"
    elif not config.name.startswith(BUCKET_PREFIX):
        return
    elif config.max_age != age:
        yield (
            f"its max_age was changed from {_seconds(age)} to {_seconds(config.max_age)} under running nodes; "
            "set it back, or restart all of them"
        )
    for limit, value in limits.items():
        if value > 0:
            yield f"it has {limit} {value}, by which it throws away what nobody has dealt with; take that away"


def _seconds(nanoseconds: int) -> str:
    return f"{nanoseconds / 1e9:g} s" if nanoseconds else "none"
