"""The broker's answers as typed values, and its errors as those of the ports."""

import json
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import msgspec

from crewlet.kit.decoding import decode
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.errors import CrewletError, Misuse, NotTaken, Unavailable

WRONG_LAST_SEQUENCE = 10071
"""Another write is the subject's newest; the description names its sequence."""

UNDECIDED_SEQUENCE = 10164
"""A write to the same subject is still in process: nobody can say yet."""

ID_IN_PROCESS = 10158
"""A message of this id is still in process: nobody can say yet."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DELIVERY_PREFIX = b"$JS.ACK."
"""How the reply subject of a delivered message begins; what the server says about a consumer or a pull has another."""

BUCKET_PREFIX = "KV_"
"""How the stream of a bucket is called, before the bucket's name."""

NO_LEADER = 10008
NO_MESSAGE = 10037
STREAM_NOT_FOUND = 10059
STREAM_NAME_IN_USE = 10058
JETSTREAM_DISABLED = frozenset({10039, 10076})
REPLICAS_NEED_A_CLUSTER = 10074


class BrokerUnfit(ConfigRefused):
    """The broker that the settings name cannot serve a company."""


class NobodyThere(NotTaken):
    """Nothing listens on the subject. During an election this passes."""


class NothingThere(Unavailable):
    """The server says that it has nothing of what was asked for; it has heard the question."""


class StreamGone(Unavailable):
    """A stream or bucket that was there when this process started is not there any more: somebody deleted it."""


class ApiError(CrewletError):
    """The server answered a request with a definite refusal (its 4xx codes)."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        super().__init__(f"{description} ({err_code})")
        self.code = code
        self.err_code = err_code
        self.description = description


class Fault(msgspec.Struct, frozen=True):
    """The `error` part of an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    @property
    def named_sequence(self) -> int | None:
        """The sequence at the end of a WRONG_LAST_SEQUENCE description; 0 is a subject without messages."""
        last = self.description.rpartition(" ")[2]
        return int(last) if last.isdigit() else None

    def as_error(self) -> ApiError | Unavailable:
        """A definite refusal, or a server that cannot answer now."""
        # The server calls this one its own fault, but waiting does not mend it.
        if self.code >= 500 and self.err_code != REPLICAS_NEED_A_CLUSTER:
            return cannot_answer(self.err_code, self.description)
        return ApiError(self.code, self.err_code, self.description)


def unavailable(error: ApiError, stream: str) -> Unavailable:
    """What a refusal that no verb expects says of a stream, or of the bucket that it is."""
    if error.err_code != STREAM_NOT_FOUND:
        return Unavailable(str(error))
    return gone(stream)


def gone(stream: str) -> StreamGone:
    """That there is no such stream, nor the bucket that it was, in people's words."""
    name = stream.removeprefix(BUCKET_PREFIX)
    kind = "stream" if name == stream else "bucket"
    return StreamGone(f"the {kind} {name} was deleted, with all that was in it; restart a node, which makes it anew")


def cannot_answer(err_code: int, description: str) -> Unavailable:
    """A server's word that it cannot answer now, in people's words."""
    if err_code == NO_LEADER:
        return NotTaken("the broker's store has no leader now, or too few members for one")
    return Unavailable(f"the broker cannot answer now: {description} ({err_code})")


class Answer(msgspec.Struct, frozen=True):
    """What every JSON answer of the server may carry."""

    error: Fault | None = None


class PubAck(Answer, frozen=True):
    """The answer to a publish. `seq` is 0 with an error."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as the stream's leader holds it; `hdrs` are the raw header bytes."""

    subject: str
    seq: int
    time: datetime
    data: bytes = b""
    hdrs: bytes = b""

    @property
    def headers(self) -> dict[str, str]:
        return parse_headers(self.hdrs)

    @property
    def is_marker(self) -> bool:
        """Whether it says that the key is gone."""
        # Looked for before anything is taken apart: most messages are none.
        return (b"KV-Operation" in self.hdrs or b"Nats-Marker-Reason" in self.hdrs) and is_marker(self.headers)


class MessageAnswer(Answer, frozen=True):
    message: StoredMessage | None = None


class StreamState(msgspec.Struct, frozen=True):
    """`messages` counts the whole stream's; `subjects` counts messages by subject, when it was asked for."""

    messages: int = 0
    last_seq: int = 0
    num_subjects: int = 0
    subjects: msgspec.Raw = msgspec.Raw(b"{}")

    def names(self) -> tuple[list[str], int]:
        """The subjects, in order, and how many were told.

        A subject is bytes to the server. What is no text in it is told as U+FFFD, so that several may look the same.

        Raises:
            Unavailable: they cannot be read.
        """
        try:
            names = sorted(decode(self.subjects, dict[str, int]))
        except msgspec.MsgspecError as error:
            raise Unavailable(f"the broker's list of keys cannot be read: {error}") from error
        if not any("\ufffd" in name for name in names):
            return names, len(names)
        return names, len(json.loads(bytes(self.subjects), object_pairs_hook=list))


class StreamConfig(msgspec.Struct, frozen=True):
    """The part of a stream's configuration that buckets are judged by. `max_age` in nanoseconds, 0 is none."""

    name: str
    subjects: list[str] = []
    max_age: int = 0
    max_msgs_per_subject: int = -1
    allow_direct: bool = False
    allow_msg_ttl: bool = False
    num_replicas: int = 1


class StreamAnswer(Answer, frozen=True):
    """The answer to a stream's creation, update or info.

    Attributes:
        created: when the stream was made; another one of its name has another.
        ts: the server's clock.
        total: counts subjects.
    """

    created: datetime | None = None
    config: StreamConfig | None = None
    state: StreamState = StreamState()
    ts: datetime | None = None
    total: int = 0


class PurgeAnswer(Answer, frozen=True):
    """The answer to a purge: how many messages went. Without `success` nobody knows."""

    success: bool = False
    purged: int = 0


class AccountAnswer(Answer, frozen=True):
    """The answer to an account's info."""


class ConsumerAnswer(Answer, frozen=True):
    """The answer to a consumer's creation."""

    name: str = ""


class Place(msgspec.Struct, frozen=True, gc=False):
    """What the reply subject of a delivered message says.

    Attributes:
        sequence: its place in the stream.
        deliveries: how often it was delivered, this one included.
        delivered: how many deliveries the consumer has made, this one included.
        published_at: when it was stored.
    """

    sequence: int
    deliveries: int
    delivered: int
    published_at: datetime


def parse_place(reply: str) -> Place:
    """The place of a delivered message, from its reply subject.

    Ten tokens or more where the server names its domain and account, nine where it does not.
    """
    tokens = reply.split(".")
    offset = 2 if len(tokens) > 9 else 0
    deliveries, sequence, delivered, stored_at = tokens[4 + offset : 8 + offset]
    return Place(int(sequence), int(deliveries), int(delivered), store_time(int(stored_at)))


def parse_headers(raw: bytes) -> dict[str, str]:
    """Header bytes, `NATS/1.0` line first, as names and values; the first of equal names wins."""
    found: dict[str, str] = {}
    for line in raw.decode("utf-8", "replace").split("\r\n")[1:]:
        name, colon, value = line.partition(":")
        if colon:
            found.setdefault(name.strip(), value.strip())
    return found


def is_marker(headers: Mapping[str, str]) -> bool:
    """Whether a message with these headers says that its key is gone, by a client or by the server's limits."""
    return headers.get("KV-Operation") in {"DEL", "PURGE"} or "Nats-Marker-Reason" in headers


def too_large(size: int, limit: int) -> Misuse:
    """A message over the broker's limit: sent all the same, it would cost the connection."""
    return Misuse(f"{size} bytes with headers are over the broker's max_payload of {limit}")


def store_time(nanoseconds: int) -> datetime:
    """An instant of the server, rounded as it is where the server writes it as text: one write has one time."""
    return _EPOCH + timedelta(0, 0, (nanoseconds + 500) // 1000)
