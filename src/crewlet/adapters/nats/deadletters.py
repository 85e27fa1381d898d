"""Dead letters in their stream: written once a message, read from the stream's leader, deleted one by one."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.jsapi import Reply, ask
from crewlet.adapters.nats.lookup import message_at, read_message, remove_message
from crewlet.adapters.nats.publishing import publish_raw
from crewlet.adapters.nats.shapes import Stream, Success
from crewlet.adapters.nats.streams import DEAD_LETTERS, ensure_stream
from crewlet.adapters.nats.translate import WRONG_LAST_SEQUENCE, ApiError, StoredMessage, StreamGone, unavailable
from crewlet.mail.deadletters import (
    Letter,
    letter_of,
    place_of,
    read_letter,
    subjects_of,
    subjects_under,
    without_history,
)
from crewlet.mail.patterns import matcher
from crewlet.ports.deadletters import DeadLetter, Handling, LetterPage
from crewlet.ports.errors import CrewletError, Unavailable
from crewlet.ports.mail import Delivery, MailRefused, MessageTooLarge, Subscription

PAGE_BYTES = 8 * 1024 * 1024
MOST_A_PAGE = 200
PROBE = f"{DEAD_LETTERS.prefix}probe"
"""A subject on which no letter ever is."""

_PROBE_LAPSES = {"Nats-TTL": "1s"}
_LET_LAPSE = (
    f"probes stay in the stream {DEAD_LETTERS.name} for as long as letters: set its allow_msg_ttl, so that the next "
    "ones go by themselves, or let this user purge it"
)
_EXPECTED = "Nats-Expected-Last-Subject-Sequence"

log = structlog.get_logger()


class NatsDeadLetters:
    """See `crewlet.ports.deadletters.DeadLetters` for the promises.

    Args:
        replicas: of the stream, where it has to be made again.
        require_live: raises NotLive once the mail instance was stopped; a burial of its stop is still made.
    """

    def __init__(self, connection: Connection, *, replicas: int, require_live: Callable[[], None]) -> None:
        self._connection = connection
        self._replicas = replicas
        self._require_live = require_live
        self._has_told_of_probes = False

    async def bury(
        self,
        subscription: Subscription,
        delivery: Delivery,
        headers: Mapping[str, str],
        reason: str,
        history: Sequence[Handling],
    ) -> None:
        """Write the dead letter of a delivery; one that is there already is left as it is.

        Raises:
            CrewletError: it is not known to be there.
        """
        letter = letter_of(subscription, delivery, headers, reason, history)
        try:
            try:
                await self._write(letter, delivery.data)
            except MessageTooLarge:
                await self._write(without_history(letter), delivery.data)
        except Unavailable:
            await self._mend()
            raise

    async def page(self, topic: str, *, after: str | None = None, limit: int = 50) -> LetterPage:
        self._require_live()
        matches, subjects = matcher(topic), subjects_under(topic)
        limit = min(max(1, limit), MOST_A_PAGE)
        place = 1 if after is None else place_of(after) + 1
        letters: list[DeadLetter] = []
        size = 0
        while (found := await self._read({"seq": place, "next_by_subj": subjects})) is not None:
            place = found.seq + 1
            letter = _letter(found)
            if letter is None or not matches(letter.subscription.topic):
                continue
            if len(letters) == limit or size >= PAGE_BYTES:
                return LetterPage(letters, letters[-1].id)
            letters.append(letter)
            size += len(letter.data)
        return LetterPage(letters, None)

    async def get(self, letter_id: str) -> DeadLetter | None:
        self._require_live()
        found = await message_at(self._connection, DEAD_LETTERS.name, place_of(letter_id))
        letter = _letter(found) if found is not None else None
        return letter if letter is not None and letter.id == letter_id else None

    async def latest(self, subscription: Subscription, message_id: str) -> DeadLetter | None:
        self._require_live()
        subjects = f"{subjects_of(subscription, message_id)}.>"
        found = await self._read({"last_by_subj": subjects})
        if found is None and not await self._has_none(subjects):
            found = await self._read({"last_by_subj": subjects})
            if found is None:
                raise Unavailable(
                    f"the server that answered has no letter on {subjects}, and another one has: ask again"
                )
        return _letter(found) if found is not None else None

    async def remove(self, letter_id: str) -> bool:
        self._require_live()

        def is_it(found: StoredMessage) -> bool:
            letter = _letter(found)
            return letter is not None and letter.id == letter_id

        return await remove_message(self._connection, DEAD_LETTERS.name, place_of(letter_id), is_it)

    async def _has_none(self, subjects: str) -> bool:
        """Whether there surely is no letter on these subjects, of which a server has just found none.

        Whoever sends a mail under an id that was buried would else have it worked anew. Of several servers one that was
        deposed, and does not know it, has nothing of what came since. So something is stored, which takes a quorum, and
        the answer that counts is of a server that has come as far: all that was buried before is in it.

        Raises:
            Unavailable: nobody answered, or only a server that is behind.
        """
        if not self._connection.is_clustered or (config := await self._config()).get("num_replicas", 1) == 1:
            return True
        lapses = bool(config.get("allow_msg_ttl"))
        try:
            probe = await publish_raw(self._connection, PROBE, b"", _PROBE_LAPSES if lapses else {})
        except MailRefused as error:
            raise Unavailable(f"whether there is a dead letter is not known: {error}") from error
        try:
            state = (await self._info({"subjects_filter": subjects}))["state"]
        finally:
            if not lapses:
                await self._forget_probes(probe.sequence)
        if state["last_seq"] < probe.sequence:
            raise Unavailable("whether there is a dead letter is not known: the server that answered is behind")
        return not state.get("subjects")

    async def _config(self) -> Mapping[str, Any]:
        """The stream's; that of a stream of one server where there is none, which never had a letter."""
        try:
            return (await self._info({}))["config"]
        except StreamGone:
            return {}

    async def _info(self, wanted: dict[str, Any]) -> Reply:
        try:
            return await ask(self._connection, f"STREAM.INFO.{DEAD_LETTERS.name}", wanted, shape=Stream)
        except ApiError as error:
            raise unavailable(error, DEAD_LETTERS.name) from error

    async def _forget_probes(self, newest: int) -> None:
        """In a stream that was made by others, in which no message lapses by itself. What is left is taken by the next
        purge."""
        upto = {"filter": PROBE, "seq": newest + 1}
        try:
            await ask(self._connection, f"STREAM.PURGE.{DEAD_LETTERS.name}", upto, shape=Success, budget_s=0.0)
        except CrewletError as error:
            if not self._has_told_of_probes:
                self._has_told_of_probes = True
                log.warning("dead_letter_probe_left", place=newest, subject=PROBE, error=str(error), remedy=_LET_LAPSE)

    async def _write(self, letter: Letter, data: bytes) -> None:
        headers = {**letter.headers, _EXPECTED: "0"}
        try:
            await publish_raw(self._connection, letter.subject, data, headers, message_id=letter.subject)
        except MailRefused as error:
            cause = error.__cause__
            if not (isinstance(cause, ApiError) and cause.err_code == WRONG_LAST_SEQUENCE):
                raise

    async def _mend(self) -> None:
        """A stream that somebody deleted is made again, so that the next burial finds it."""
        try:
            await ensure_stream(self._connection, DEAD_LETTERS, replicas=self._replicas, budget_s=2.0)
        except CrewletError as error:
            log.warning("dead_letter_stream_missing", error=str(error))

    async def _read(self, which: dict[str, Any]) -> StoredMessage | None:
        return await read_message(self._connection, DEAD_LETTERS.name, which)


def _letter(message: StoredMessage) -> DeadLetter | None:
    if message.subject == PROBE:
        return None
    try:
        return read_letter(message.seq, message.subject, message.headers, message.data, message.time)
    except ValueError as error:
        log.warning("dead_letter_unreadable", place=message.seq, error=str(error))
        return None
