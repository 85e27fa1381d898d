"""Dead letters for people: list, show, replay, drop. Each verb answers the same on every node."""

import asyncio
import base64
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import structlog

from crewlet.company.model import Company
from crewlet.mail import topics
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import UnknownSeat, decode
from crewlet.mail.replays import Replays, ReplayState
from crewlet.node.mailstatus import DroppedLetter, Letter, LetterDelivery, LetterDetail, Letters, ReplayedLetter
from crewlet.ports.deadletters import DeadLetter, DeadLetters
from crewlet.ports.errors import CrewletError, Misuse, NotLive, Unreadable

MOST_A_PAGE = 200
_SHOWN_CHARS = 2_000

_log = structlog.get_logger()


class UnknownLetter(CrewletError):
    """There is no dead letter of this id."""

    def __init__(self, letter_id: str) -> None:
        super().__init__(f"there is no dead letter {letter_id!r}; it may have been dropped, or have aged out")


class NoEvent(CrewletError):
    """The mail of this letter is none that a seat can read."""

    def __init__(self, letter: DeadLetter) -> None:
        super().__init__(
            f"the mail of {letter.id} is not an event, and no seat could read it after a replay either: send what it "
            "should have said as new mail, and drop this"
        )


@dataclass(frozen=True, slots=True)
class LetterDesk:
    """The verbs.

    Attributes:
        letters, replays: what they act on.
        company: the document in force.
        node_id: named in the log.
    """

    letters: DeadLetters
    replays: Replays
    company: Callable[[], Company]
    node_id: str

    async def list(self, seat: str | None = None, *, after: str | None = None, limit: int = 50) -> Letters:
        """A page, oldest first; of one seat, also one that has left the company and has letters.

        Raises:
            UnknownSeat: the company has no such seat, and there is no letter of it.
            Misuse: not a handle, not a letter's id, or a limit outside 1 to 200.
            Unavailable: nobody answered.
        """
        if not 1 <= limit <= MOST_A_PAGE:
            raise Misuse(f"a page has 1 to {MOST_A_PAGE} dead letters")
        if seat is not None and not topics.is_handle(seat):
            raise Misuse(f"{seat!r} is not a handle")
        page = await self.letters.page(">" if seat is None else topics.letters_of(seat), after=after, limit=limit)
        if seat is not None and after is None and not page.letters and (company := self.company()).seat(seat) is None:
            raise UnknownSeat(seat, company)
        shown = await asyncio.gather(*(self._short(letter) for letter in page.letters))
        return Letters(tuple(shown), page.next)

    async def show(self, letter_id: str) -> LetterDetail:
        """One letter with its history and text.

        Raises:
            UnknownLetter: there is none.
            Misuse: not a letter's id.
            Unavailable: nobody answered.
        """
        letter = await self._letter(letter_id)
        event = _event(letter)
        return LetterDetail(
            letter=await self._short(letter),
            history=tuple(LetterDelivery(each.number, each.owner, each.at, each.reason) for each in letter.history),
            type=event.type if event else "",
            conversation=event.conversation if event else "",
            body=event.body if event else _readable(letter.data),
            size_bytes=len(letter.data),
            data="" if event else base64.b64encode(letter.data).decode(),
        )

    async def replay(self, letter_id: str, *, again: bool = False) -> ReplayedLetter:
        """Put a letter's mail back into its inbox with a new budget, once however often it is asked for.

        Args:
            again: also where the mail of an earlier replay, which may have arrived, is found nowhere.

        Raises:
            UnknownLetter, Misuse: as for `show`.
            UnknownSeat: its seat has left the company.
            NoEvent: its seat could not read it.
            NoMailbox, ReplayUnsure: refused; the letter is as it was.
            Unavailable: unknown; a repeat is safe.
        """
        letter = await self._letter(letter_id)
        seat, company = topics.seat_of(letter.subscription), self.company()
        if seat is not None and company.seat(seat) is None:
            raise UnknownSeat(seat, company)
        if seat is not None and _event(letter) is None:
            raise NoEvent(letter)
        replay = await self.replays.replay(letter, again=again)
        if not replay.is_repeat:
            _log.info("dead_letter_replayed", letter=letter.id, seat=seat, id=letter.message_id, node=self.node_id)
        return ReplayedLetter(letter.id, seat, letter.message_id, replay.at, replay.is_repeat, replay.mail)

    async def drop(self, letter_id: str) -> DroppedLetter:
        """Delete a letter for good.

        Raises:
            UnknownLetter, Misuse: as for `show`.
            Unavailable: unknown; a repeat does no harm.
        """
        letter = await self._letter(letter_id)
        if not await self.letters.remove(letter_id):
            raise UnknownLetter(letter_id)
        seat = topics.seat_of(letter.subscription)
        _log.warning(
            "dead_letter_dropped",
            letter=letter.id,
            seat=seat,
            id=letter.message_id,
            reason=letter.reason,
            node=self.node_id,
        )
        return DroppedLetter(letter.id, seat, letter.message_id)

    async def _letter(self, letter_id: str) -> DeadLetter:
        letter = await self.letters.get(letter_id)
        if letter is None:
            raise UnknownLetter(letter_id)
        return letter

    async def _short(self, letter: DeadLetter) -> Letter:
        state, event = await self._replay_of(letter), _event(letter)
        return Letter(
            id=letter.id,
            seat=topics.seat_of(letter.subscription),
            topic=letter.subscription.topic,
            group=letter.subscription.group,
            mail=letter.message_id,
            source=event.source if event else "",
            subject=event.subject if event else "",
            deliveries=letter.deliveries,
            reason=letter.reason,
            published_at=letter.published_at,
            buried_at=letter.buried_at,
            replay=None if state is None else state.mail,
            replayed_at=state.at if state is not None else None,
        )

    async def _replay_of(self, letter: DeadLetter) -> ReplayState | None:
        """What is known of its replay. One letter whose records are foreign keeps no other from being shown."""
        try:
            return await self.replays.state(letter)
        except NotLive:
            raise
        except (Misuse, Unreadable) as error:
            _log.warning("dead_letter_replay_unreadable", letter=letter.id, error=str(error))
            return ReplayState(None, "unknown")


def _event(letter: DeadLetter) -> Envelope | None:
    try:
        return decode(letter.data)
    except msgspec.MsgspecError:
        return None


def _readable(data: bytes) -> str:
    """The beginning of what is no event: as text where it is text, and everything else spelled out."""
    text = data[: 4 * _SHOWN_CHARS].decode("utf-8", "backslashreplace")
    shown = "".join(each if each.isprintable() or each == "\n" else _spelled(each) for each in text)
    return shown if len(shown) <= _SHOWN_CHARS and len(data) <= 4 * _SHOWN_CHARS else f"{shown[:_SHOWN_CHARS]}…"


def _spelled(char: str) -> str:
    return char.encode("unicode_escape").decode()
