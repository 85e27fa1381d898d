"""What a dead node has left: deliveries in hand, as its page tells, and leases, as the store has them."""

import base64
import json
import math
from dataclasses import dataclass
from typing import Any

from crewlet.supervisor.natswire import Question
from crewlet.supervisor.page import Page

LEASES, DUTIES = "crewlet_leases", "crewlet_duties"
NAK_FIRST_S, NAK_CAP_S = 1.0, 30.0


@dataclass(frozen=True, slots=True)
class InHand:
    """A delivery that the dead node had taken and not settled.

    Attributes:
        reply: what settles it.
        until: the reading of `boottime` until which a hand-back surely comes before the broker's own redelivery.
    """

    reply: str
    until: float

    @property
    def consumer(self) -> tuple[str, str]:
        stream, consumer = self._tokens[0:2]
        return stream, consumer

    @property
    def deliveries(self) -> int:
        return int(self._tokens[2])

    @property
    def sequence(self) -> int:
        return int(self._tokens[3])

    @property
    def _tokens(self) -> list[str]:
        tokens = self.reply.split(".")
        return tokens[4:] if len(tokens) > 9 else tokens[2:]

    def nak(self) -> Question:
        """At once after a first delivery, later on the schedule of mail that keeps failing: what kills every node that
        takes it must not race through the fleet."""
        if self.deliveries <= 1:
            return Question(self.reply, b"-NAK")
        delay_s = min(NAK_CAP_S, NAK_FIRST_S * 2.0 ** min(self.deliveries - 1, 10))
        return Question(self.reply, b"-NAK " + json.dumps({"delay": round(delay_s * 1e9)}).encode())


@dataclass(frozen=True, slots=True)
class Heard:
    """How far the dead node had heard one consumer.

    Attributes:
        newest: the newest sequence it had ever heard of.
        until: the reading of `boottime` until which nobody else can have been given anything of the consumer.
    """

    stream: str
    consumer: str
    newest: int
    until: float

    def unheard(self, sequence: int, consumer_sequence: int) -> InHand:
        """A message beyond that: it went to the dead node, which never had it in hand."""
        return InHand(f"$JS.ACK.{self.stream}.{self.consumer}.1.{sequence}.{consumer_sequence}.0.0", self.until)


def in_page(page: Page) -> tuple[list[InHand], list[Heard]]:
    """What the node has written into its slots. A line that is neither is left out."""
    in_hand: list[InHand] = []
    heard: list[Heard] = []
    for line in (line for lines in page.read_slots() for line in lines):
        until, _, what = line.partition(" ")
        try:
            if what.startswith("HEARD."):
                _, stream, consumer, newest = what.split(".")
                heard.append(Heard(stream, consumer, int(newest), float(until)))
            elif what.startswith("$JS.ACK."):
                one = InHand(what, float(until))
                _ = one.consumer, one.sequence, one.deliveries
                in_hand.append(one)
        except (ValueError, IndexError):
            continue
    return in_hand, heard


@dataclass(frozen=True, slots=True)
class Held:
    """A lease's record as the store has it."""

    bucket: str
    key: str
    sequence: int
    record: dict[str, Any]

    def release(self) -> Question:
        headers = {"Nats-Expected-Last-Subject-Sequence": str(self.sequence)}
        if self.bucket == DUTIES:
            headers["Nats-TTL"] = f"{max(1, math.ceil(self.record.get('ttl_s') or 1))}s"
        released = json.dumps({**self.record, "released": True}, ensure_ascii=False)
        return Question(f"$KV.{self.bucket}.{self.key}", released.encode(), headers)


def record_in(answer: dict[str, Any]) -> dict[str, Any]:
    """The record in an answer; empty for a key that was removed or cannot be read."""
    try:
        record = json.loads(base64.b64decode(answer["message"]["data"]))
        return dict(record) if isinstance(record, dict) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    except (KeyError, ValueError, RecursionError):
        return {}


def part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in an object; empty where there is none."""
    return dict[str, Any](answer.get(name) or {})
