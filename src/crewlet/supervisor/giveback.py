"""Give back what a dead node had: its mail in hand, its leases, and the news of it. A short-lived process of its own.

    python -m crewlet.supervisor.giveback STORE_DIR HOST

The parent runs it once nothing of the node is left alive, with the node's page. It does nothing before the broker shows
that the node's connection is closed, as what a dead process had sent can still arrive until then; and nothing after the
instant to which the node's leases were good. What it does not give back comes back by itself: mail at the end of its
ack window, leases when they lapse.

Leases are found in the store by the incarnation that holds them, so that claims that were under way go back as well,
and given back by compare-and-set: the same node may long run again as another incarnation.
"""

import base64
import json
import math
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crewlet.supervisor.brokerplan import told_ports
from crewlet.supervisor.natswire import NOBODY, Question, Wire, connected
from crewlet.supervisor.page import PAGE_ENV, NotAPage, Page, boottime

TOKEN_ENV = "CREWLET_BROKER_TOKEN"
LONGEST_S = 15.0
"""How long it tries. Past that, waiting for the windows and the leases costs hardly more."""

LEASES, DUTIES = "crewlet_leases", "crewlet_duties"
NEWS_SUBJECT = "crewlet.signals.seats_freed"
NAMED_AT_ONCE = 1000
NAK_FIRST_S, NAK_CAP_S = 1.0, 30.0

_POLL_S = 0.02
_ASK_S = 1.0
_MAIL_S = 5.0


@dataclass(frozen=True, slots=True)
class Target:
    """The broker beside the parent. It may be starting again just now, and choose other ports."""

    store_dir: Path
    host: str
    token: str | None = None

    def ports(self) -> tuple[int, int]:
        """For clients and for monitoring. Raises OSError where there is no server."""
        told = told_ports(self.store_dir)
        if told is None:
            raise OSError("no broker runs beside it")
        return told


@dataclass(frozen=True, slots=True)
class InHand:
    """A delivery that the dead node had taken and not settled.

    Attributes:
        reply: what settles it.
        until: the reading of `boottime` until which a hand-back surely comes before the broker's own redelivery.
    """

    reply: str
    until: float

    @classmethod
    def parse(cls, line: str) -> "InHand":
        """Raises ValueError, IndexError: it is no line of a slot."""
        until, _, reply = line.partition(" ")
        made = cls(reply, float(until))
        _ = made.consumer, made.sequence, made.deliveries
        return made

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


def main(argv: list[str]) -> int:
    """Returns 0 when everything was given back, 1 otherwise. One line on stderr says what was."""
    store_dir, host = argv
    try:
        page = Page.open(int(os.environ[PAGE_ENV]))
    except (NotAPage, KeyError, ValueError) as error:
        _say(f"nothing is given back: {error}.")
        return 1
    target = Target(Path(store_dir), host, os.environ.get(TOKEN_ENV))
    owner = page.read_owner()
    good_until = page.read_good_until()
    until = boottime() + LONGEST_S if good_until is None else min(good_until, boottime() + LONGEST_S)
    began_at = boottime()
    work = GiveBack(owner, list(in_hand_of(page)), target, until)
    if not (good_until is None or began_at < good_until):
        _say(f"nothing of {owner} is given back: its leases had run out.")
        return 1
    try:
        work.run()
    except OSError as error:
        _say(f"{work.done()} of {owner} given back; the rest comes back by itself: {error}.")
        return 1
    _say(f"{work.done()} of {owner} given back within {boottime() - began_at:.2f} s.")
    return 0


def in_hand_of(page: Page) -> Iterator[InHand]:
    """What the node had in hand; a line that is none is left out."""
    for lines in page.read_slots():
        for line in lines:
            try:
                yield InHand.parse(line)
            except (ValueError, IndexError):
                continue


class GiveBack:
    """One dead incarnation.

    Args:
        until: nothing is said to the broker from this reading of `boottime` on.
    """

    def __init__(self, owner: str, in_hand: list[InHand], target: Target, until: float) -> None:
        self._owner = owner
        self._taken = len(in_hand)
        # In stream order, so that it lies in the inbox as it did.
        self._in_hand: list[InHand] = sorted(in_hand, key=lambda one: (one.consumer, one.sequence))
        self._target = target
        self._until = until
        self._asked: dict[tuple[str, str], Held] = {}
        self.mail = 0
        self.leases: dict[tuple[str, str], Held] = {}

    def done(self) -> str:
        return f"{self.mail} of {self._taken} deliveries and {len(self.leases)} leases"

    def run(self) -> None:
        """Give everything back: mail, then leases, then the news.

        Raises:
            OSError: not everything.
        """
        self._wait_until_closed()
        while True:
            try:
                client, _ = self._target.ports()
                with Wire(self._target.host, client, self._target.token) as wire:
                    self._give_mail(wire)
                    try:
                        self._give_leases(wire)
                    finally:
                        self._tell(wire)
                    return
            except TimeoutError:
                raise
            except OSError as error:
                problem = str(error)
            self._rest(problem)

    def _wait_until_closed(self) -> None:
        while True:
            try:
                if self._owner not in connected(self._target.ports()[1]):
                    return
                problem = "the broker still shows its connection"
            except OSError as error:
                problem = f"the broker does not show its connections ({error})"
            self._rest(problem)

    def _give_mail(self, wire: Wire) -> None:
        """Each inside its own window, and once: what was not answered may have been heard, and the message be on its
        way to somebody."""
        ends_at = boottime() + _MAIL_S
        while self._in_hand:
            now = self._now()
            due = [one for one in self._in_hand if now < one.until]
            self._in_hand.clear()
            answers = wire.ask([one.nak() for one in due], timeout_s=_ASK_S)
            self.mail += sum(answer not in (None, NOBODY) for answer in answers)
            if now < ends_at:
                self._in_hand = [one for one, answer in zip(due, answers, strict=True) if answer == NOBODY]
                time.sleep(_POLL_S if self._in_hand else 0.0)

    def _give_leases(self, wire: Wire) -> None:
        """Presence first, so that peers share the seats out among themselves."""
        while True:
            try:
                held = [*self._held(wire, LEASES, "node."), *self._held(wire, LEASES, "seat.")]
                held += self._held(wire, DUTIES, "worker.")
                still = {(one.bucket, one.key) for one in held}
                self.leases |= {name: one for name, one in self._asked.items() if name not in still}
                if not held:
                    return
                self._now()
                self._asked |= {(one.bucket, one.key): one for one in held}
                for one, answer in zip(
                    held, wire.ask_json([one.release() for one in held], timeout_s=_ASK_S), strict=True
                ):
                    if answer is not None and "error" not in answer:
                        self.leases[one.bucket, one.key] = one
                if len(self.leases) == len(self._asked):
                    return
                problem = "the store has not confirmed every release"
            except TimeoutError as error:
                problem = str(error)
            self._rest(problem)

    def _held(self, wire: Wire, bucket: str, prefix: str) -> list[Held]:
        """The records of the dead incarnation that are not given back yet.

        Raises:
            TimeoutError: they cannot be read now.
        """
        records = f"$KV.{bucket}."
        keys = [subject.removeprefix(records) for subject in _subjects(wire, bucket, f"{records}{prefix}>")]
        asked = [
            Question(f"$JS.API.STREAM.MSG.GET.KV_{bucket}", json.dumps({"last_by_subj": records + key}).encode())
            for key in keys
        ]
        found: list[Held] = []
        for key, answer in zip(keys, wire.ask_json(asked, timeout_s=_ASK_S), strict=True):
            if answer is None or _part(answer, "error").get("code") not in (None, 404):
                raise TimeoutError(f"{bucket} cannot be read")
            record = _record(answer)
            if record.get("owner") == self._owner and not record.get("released"):
                found.append(Held(bucket, key, int(answer["message"]["seq"]), record))
        return found

    def _tell(self, wire: Wire) -> None:
        """One broadcast of the seats, which may be the node's standing as well."""
        seats = [held.key.removeprefix("seat.") for held in self.leases.values() if held.key.startswith("seat.")]
        is_gone = any(held.key.startswith("node.") for held in self.leases.values())
        for begin in range(0, len(seats), NAMED_AT_ONCE):
            news = {"owner": self._owner, "node": self._owner.rpartition(":")[0]}
            news |= {"seats": seats[begin : begin + NAMED_AT_ONCE], "standing": "gone" if is_gone else "stays"}
            wire.tell(NEWS_SUBJECT, json.dumps(news).encode())
        wire.flush()

    def _now(self) -> float:
        now = boottime()
        if now >= self._until:
            raise TimeoutError("the time for it is over")
        return now

    def _rest(self, problem: str) -> None:
        if boottime() + _POLL_S >= self._until:
            raise TimeoutError(problem)
        time.sleep(_POLL_S)


def _subjects(wire: Wire, bucket: str, pattern: str) -> list[str]:
    (answer,) = wire.ask_json(
        [Question(f"$JS.API.STREAM.INFO.KV_{bucket}", json.dumps({"subjects_filter": pattern}).encode())],
        timeout_s=_ASK_S,
    )
    if answer is None:
        raise TimeoutError(f"{bucket} cannot be listed")
    if error := _part(answer, "error"):
        if error.get("code") == 404:
            return []  # the node leased nothing: it runs under local coordination, or never came so far
        raise TimeoutError(f"{bucket} cannot be listed: {error.get('description')}")
    return sorted(_part(_part(answer, "state"), "subjects"))


def _record(answer: dict[str, Any]) -> dict[str, Any]:
    """The record in an answer; empty for a key that was removed or cannot be read."""
    try:
        record = json.loads(base64.b64decode(answer["message"]["data"]))
        return dict(record) if isinstance(record, dict) else {}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    except (KeyError, ValueError):
        return {}


def _part(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """An object in an object; empty where there is none."""
    return dict[str, Any](answer.get(name) or {})


def _say(line: str) -> None:
    print(f"crewlet up: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
