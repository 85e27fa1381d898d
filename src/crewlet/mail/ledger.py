"""The completion ledger: which triggers a seat has finished.

It records what is done and nothing else. There is no state for work in progress, since the seat's lease already
excludes a second worker, and no expiry but the bucket's: done does not lapse. Both directions fail open. An unreadable
ledger cannot say that work was done, so the work runs; a record that cannot be written cannot un-send what the turn
already sent.
"""

import asyncio
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.ports.cells import Admit, BucketSpec, Cells, Done, Refused, Unknown, WriteResult
from crewlet.ports.errors import Unavailable, Unreadable
from crewlet.ports.term import Term

LEDGER_BUCKET = BucketSpec("crewlet_ledger", max_age_s=7 * 24 * 3600.0, any_writer=True)
"""Seven days: longer than 25 deliveries with their back-off, and than any catch-up of a schedule."""

_PLAIN = re.compile(r"[-_0-9A-Za-z]+", re.ASCII)
_LONGEST_NAME = 2_500
"""A broker ends the connection over a subject of 4 KiB. An id of 200 characters, of whatever kind, is spelled out."""

_log = structlog.get_logger()


class _Record(msgspec.Struct, frozen=True, omit_defaults=True):
    outcome: str
    detail: str = ""
    turn_id: str = ""
    work_key: str = ""
    owner: str = ""
    epoch: int = 0
    digest: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished trigger.

    Attributes:
        outcome: how its turn ended.
        detail: one line for people.
        turn_id: the run that finished it.
        work_key: the unit of work it was part of.
        owner, epoch: the tenure that finished it.
        recorded_at: the store's clock at the record.
        digest: of the trigger's text (see `reuse`), where its sender chose the id; "" where that is not known.
        is_by_thread: found under the chat message: a later turn answered it in its thread, without being woken for it.
    """

    outcome: str
    detail: str
    turn_id: str
    work_key: str
    owner: str
    epoch: int
    recorded_at: datetime
    digest: str = ""
    is_by_thread: bool = False


class Ledger:
    """Completions by seat and trigger id. A trigger finished by one seat is still another's to work."""

    def __init__(self, cells: Cells) -> None:
        self._cells = cells

    async def completion(self, handle: str, trigger_id: str) -> Completion | None:
        """What is recorded of one trigger.

        Raises:
            Unavailable: the ledger cannot be read. A caller that decides whether to run uses `finished` instead.
        """
        return await self._completion(_key(handle, trigger_id))

    async def _completion(self, key: str, *, is_by_thread: bool = False) -> Completion | None:
        entry = await self._cells.read(key)
        if entry is None:
            return None
        try:
            record = decode(entry.value, _Record)
        except msgspec.MsgspecError as error:
            raise Unreadable(f"the record of finished work {entry.key} cannot be read: {error}") from error
        return Completion(
            outcome=record.outcome,
            detail=record.detail,
            turn_id=record.turn_id,
            work_key=record.work_key,
            owner=record.owner,
            epoch=record.epoch,
            recorded_at=entry.written_at,
            digest=record.digest,
            is_by_thread=is_by_thread,
        )

    async def finished(
        self, handle: str, trigger_ids: Iterable[str], chat_messages: Mapping[str, str] | None = None
    ) -> Mapping[str, Completion]:
        """Those of the triggers that are recorded. What cannot be read counts as not done, and is logged.

        Args:
            chat_messages: the second key of the triggers that have one, by trigger id. Either is enough.
        """
        ids = list(dict.fromkeys(trigger_ids)) if handle else []
        chat_messages = chat_messages or {}
        keys = [_key(handle, trigger_id) for trigger_id in ids]
        keys += [_chat_key(handle, message) for message in chat_messages.values()]
        if not keys or await self._cells.has_none(keys):
            # Most mail is new, so that one answer does for all of it.
            return {}

        async def one(trigger_id: str) -> Completion | None:
            try:
                completion = await self.completion(handle, trigger_id)
                if completion is None and (message := chat_messages.get(trigger_id)):
                    completion = await self._completion(_chat_key(handle, message), is_by_thread=True)
                return completion
            except Unavailable as error:
                _log.warning("ledger_unreadable", seat=handle, trigger=trigger_id, error=str(error))
                return None

        answers = [await one(ids[0])] if len(ids) == 1 else await asyncio.gather(*(one(trigger) for trigger in ids))
        return {trigger: answer for trigger, answer in zip(ids, answers, strict=True) if answer is not None}

    async def record(
        self,
        handle: str,
        trigger_ids: Iterable[str],
        *,
        outcome: str,
        detail: str = "",
        turn_id: str = "",
        work_key: str = "",
        term: Term | None = None,
        answered: Iterable[str] = (),
        digests: Mapping[str, str] | None = None,
        admit: Admit | None = None,
    ) -> bool:
        """Record triggers as finished. The first record of a trigger stays; nothing here reaches the turn as an error.

        Args:
            answered: chat messages that the turn answered in their thread beside its triggers.
            digests: of the text of triggers whose id their sender chose.
            admit: asked in the step of each try (see the port of cells). What it raises is all that is raised here.

        Returns:
            Whether every one is recorded now. False after a few seconds without an answer; a repeat does no harm.

        Cancellation: some may be recorded and some not.
        """
        record = _Record(
            outcome=outcome,
            detail=detail[:2000],
            turn_id=turn_id,
            work_key=work_key,
            owner=term.owner if term else "",
            epoch=term.epoch if term else 0,
        )
        value = msgspec.json.encode(record)
        values = {_key(handle, id): value for id in trigger_ids}
        values |= {_chat_key(handle, message): value for message in answered}
        for id, digest in (digests or {}).items():
            values[_key(handle, id)] = msgspec.json.encode(msgspec.structs.replace(record, digest=digest))
        writes = list(values.items()) if handle else []

        if len(writes) == 1:
            key, value = writes[0]
            return self._is_kept(handle, key, await self._cells.create(key, value, admit=admit))
        results = await asyncio.gather(*(self._cells.create(key, value, admit=admit) for key, value in writes))
        kept = [self._is_kept(handle, key, result) for (key, _), result in zip(writes, results, strict=True)]
        return all(kept)

    @staticmethod
    def _is_kept(handle: str, key: str, result: WriteResult) -> bool:
        match result:
            case Done() | Refused():
                return True
            case Unknown(reason):
                _log.warning("ledger_unwritten", seat=handle, key=key, error=reason)
                return False


def _key(handle: str, trigger_id: str) -> str:
    """`{handle}.{id}`, with the characters that a key cannot hold spelled as `=hh` each; a digest if too long."""
    if len(trigger_id) <= _LONGEST_NAME and _PLAIN.fullmatch(trigger_id):
        return f"{handle}.{trigger_id}"
    safe = "".join(
        char
        if char.isascii() and (char.isalnum() or char in "-_")
        else "".join(f"={byte:02x}" for byte in char.encode())
        for char in trigger_id
    )
    if len(safe) > _LONGEST_NAME:
        safe = f"=digest-{sha256(trigger_id.encode()).hexdigest()}"
    return f"{handle}.{safe or '='}"


def _chat_key(handle: str, message: str) -> str:
    """Three tokens, where the key of a trigger has two."""
    return f"chat.{_key(handle, message)}"
