"""What a node shows of a seat's mail and of dead letters: frozen snapshots, like those in `status`."""

from dataclasses import dataclass
from datetime import datetime
from typing import Literal


@dataclass(frozen=True, slots=True)
class SeatMail:
    """What lies in a seat's inbox.

    Attributes:
        waiting: handed to nobody yet.
        in_hand: with the seat's node: being worked, or on its way back after a failure.
        oldest_at: the store's clock when the oldest of all of it was published; None with none.
        oldest_age_s: how long ago that was by this node's clock, in seconds.
        node: who holds the seat, or None.
        held: why its mail is not being read; "" where it is, or where `node` did not say.
        why: a sentence about the seat: what holds its mail, or since when it is at work; "" where nothing is known to.
        is_held_known: False where the node that holds the seat did not say what holds its mail.
        last_error: why the seat's last turn broke, as far as the node that holds it says; "" where it did not.
        left_at: when the seat was first missed in the company; None while it is in it.
        deleted_from: the mail of a seat that left is deleted from then on.
        retired_at: when the newest mailbox of this handle was deleted; None where none is remembered.
        retired_messages: how many messages went with it.
    """

    seat: str
    waiting: int
    in_hand: int
    oldest_at: datetime | None = None
    oldest_age_s: float | None = None
    node: str | None = None
    held: str = ""
    is_held_known: bool = True
    why: str = ""
    last_error: str = ""
    left_at: datetime | None = None
    deleted_from: datetime | None = None
    retired_at: datetime | None = None
    retired_messages: int | None = None


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter, in short.

    Attributes:
        id: what `show`, `replay` and `drop` take.
        seat: whose mailbox it fell out of; None where that was none.
        mail: the mail's id.
        subject: one line for people.
        deliveries: how often it was handed over.
        reason: why it came back the last time.
        published_at, buried_at: the store's clock at the publish and at the burial.
        replay: where the mail of its replay is: `open` while it waits or is worked, `done` once a turn has ended it,
            `dead_lettered` where it used up its deliveries again; `unknown` where it was sent and is found nowhere,
            `unconfirmed` where it is found nowhere and may never have been sent. None without a replay.
        replayed_at: the store's clock at the replay.
    """

    id: str
    seat: str | None
    topic: str
    group: str
    mail: str
    source: str
    subject: str
    deliveries: int
    reason: str
    published_at: datetime
    buried_at: datetime
    replay: Literal["open", "done", "dead_lettered", "unknown", "unconfirmed"] | None = None
    replayed_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Letters:
    """A page of dead letters, oldest first. `next` is the `after` of the following page; None at the end."""

    letters: tuple[Letter, ...]
    next: str | None = None


@dataclass(frozen=True, slots=True)
class LetterDelivery:
    """One delivery in a letter's history. `reason` is "" where its reader never said, as one that died with it."""

    number: int
    owner: str
    at: datetime
    reason: str = ""


@dataclass(frozen=True, slots=True)
class LetterDetail:
    """A dead letter with its history and its text.

    Attributes:
        type: "" where the message is no event.
        body: of what is no event the beginning, with what cannot be printed spelled out.
        size_bytes: of the message.
        data: all of what is no event, in base64; "" of an event.
    """

    letter: Letter
    history: tuple[LetterDelivery, ...]
    type: str
    conversation: str
    body: str
    size_bytes: int = 0
    data: str = ""


@dataclass(frozen=True, slots=True)
class ReplayedLetter:
    """A dead letter was put back into its inbox. `is_repeat`: an earlier call had done it already.

    Attributes:
        state: where the mail is.
    """

    id: str
    seat: str | None
    mail: str
    replayed_at: datetime
    is_repeat: bool
    state: Literal["open", "done", "dead_lettered"] = "open"


@dataclass(frozen=True, slots=True)
class DroppedLetter:
    """A dead letter was deleted for good."""

    id: str
    seat: str | None
    mail: str
