"""What of JetStream's answers the mail relies on. An answer of another shape is none: nothing is known by it."""

from typing import Annotated, Any

import msgspec

from crewlet.adapters.nats.translate import StoredMessage


class Success(msgspec.Struct, frozen=True):
    """What was asked for is done."""

    success: bool

    def __post_init__(self) -> None:
        if not self.success:
            raise ValueError("it was not done, and no reason is given")


class Acknowledged(msgspec.Struct, frozen=True):
    """A message is stored."""

    stream: Annotated[str, msgspec.Meta(min_length=1)]
    seq: Annotated[int, msgspec.Meta(ge=1)]
    duplicate: bool = False


class Message(msgspec.Struct, frozen=True):
    message: StoredMessage


class State(msgspec.Struct, frozen=True):
    last_seq: int


class Stream(msgspec.Struct, frozen=True):
    config: dict[str, Any]
    state: State


class CountedState(msgspec.Struct, frozen=True):
    """The server leaves the subjects out where there is none."""

    subjects: dict[str, int] | None = None


class Counted(msgspec.Struct, frozen=True):
    """How many messages lie at each subject of a stream."""

    state: CountedState


class StreamNames(msgspec.Struct, frozen=True):
    total: int
    streams: list[str] | None = None


class Pair(msgspec.Struct, frozen=True):
    stream_seq: int
    consumer_seq: int


class ConsumerConfig(msgspec.Struct, frozen=True):
    """The server leaves out what is not set."""

    durable_name: str = ""
    filter_subject: str = ""
    filter_subjects: list[str] | None = None
    ack_wait: int = 0
    max_deliver: int = -1
    max_ack_pending: int = 0
    inactive_threshold: int = 0
    metadata: dict[str, str] | None = None


class Consumer(msgspec.Struct, frozen=True):
    name: str
    config: ConsumerConfig
    delivered: Pair
    ack_floor: Pair
    num_ack_pending: int
    num_waiting: int
    num_pending: int


class Consumers(msgspec.Struct, frozen=True):
    total: int
    consumers: list[Consumer] | None = None
