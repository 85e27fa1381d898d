"""Give back what a dead node had: its mail in hand, its leases, and the news of it. A short-lived process of its own.

    python -m crewlet.supervisor.giveback STORE_DIR HOST

The parent runs it once nothing of the node is left alive, with the node's page. It does nothing before the broker shows
that the node's connection is closed, as what a dead process had sent can still arrive until then; and nothing after the
instant to which the node's leases were good. What it does not give back comes back by itself: mail at the end of its
ack window, leases when they lapse.

Leases are found in the store by the incarnation that holds them, so that claims that were under way go back as well,
and given back by compare-and-set: the same node may long run again as another incarnation.
"""

import json
import os
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from crewlet.supervisor.brokerplan import told_ports
from crewlet.supervisor.natswire import NOBODY, Question, Wire, connected
from crewlet.supervisor.page import PAGE_ENV, NotAPage, Page, boottime
from crewlet.supervisor.remains import DUTIES, LEASES, Heard, Held, InHand, in_page, part, record_in

TOKEN_ENV = "CREWLET_BROKER_TOKEN"
LONGEST_S = 15.0
"""How long it tries. Past that, waiting for the windows and the leases costs hardly more."""

NEWS_SUBJECT = "crewlet.signals.seats_freed"
NAMED_AT_ONCE = 1000

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
    work = GiveBack(owner, *in_page(page), target, until)
    if not (good_until is None or began_at < good_until):
        _say(f"nothing of {owner} is given back: its leases had run out.")
        return 1
    try:
        work.run()
    except OSError as error:
        _say(f"{work.done()} of {owner} given back; the rest comes back by itself: {error}.")
        return 1
    if work.found_nothing():
        _say(f"{owner} had no mail in hand and no leases, so that there is nothing to give back.")
    else:
        _say(f"{work.done()} of {owner} given back within {boottime() - began_at:.2f} s.")
    return 0


class GiveBack:
    """One dead incarnation.

    Args:
        until: nothing is said to the broker from this reading of `boottime` on.
    """

    def __init__(self, owner: str, in_hand: list[InHand], heard: list[Heard], target: Target, until: float) -> None:
        self._owner = owner
        self._in_hand: list[InHand] = list(in_hand)
        self._heard: dict[tuple[str, str], Heard] = {}
        for each in sorted(heard, key=lambda one: one.newest):
            self._heard[each.stream, each.consumer] = each
        self._taken = len(in_hand)
        self._target = target
        self._until = until
        self._asked: dict[tuple[str, str], Held] = {}
        self.mail = 0
        self.leases: dict[tuple[str, str], Held] = {}

    def done(self) -> str:
        return f"{self.mail} of {self._taken} deliveries and {len(self.leases)} leases"

    def found_nothing(self) -> bool:
        """Whether, after a run, there was nothing to give back: a node under local coordination has no leases there."""
        return not self._taken and not self.leases

    def run(self) -> None:
        """Give everything back: mail, then leases, then the news.

        Raises:
            OSError: not everything.
        """
        self._wait_until_closed()
        ask_until = boottime() + _MAIL_S
        while True:
            try:
                client, _ = self._target.ports()
                with Wire(self._target.host, client, self._target.token) as wire:
                    self._find_unheard(wire, ask_until)
                    self._give_mail(wire)
                    try:
                        self._give_leases(wire)
                    finally:
                        self._tell(wire)
                break
            except TimeoutError:
                raise
            except OSError as error:
                problem = str(error)
            self._rest(problem)
        if self._heard:
            raise OSError(f"nobody said what else {len(self._heard)} of its inboxes had sent it")

    def _wait_until_closed(self) -> None:
        while True:
            try:
                if self._owner not in connected(self._target.ports()[1]):
                    return
                problem = "the broker still shows its connection"
            except OSError as error:
                problem = f"the broker does not show its connections ({error})"
            self._rest(problem)

    def _find_unheard(self, wire: Wire, ask_until: float) -> None:
        """What the broker sent as the node died. The node's lease keeps every other reader away until it is back.

        A consumer that does not answer, as while its leader is elected, is asked again; it may have sent something.
        """
        while True:
            now = self._now()
            self._heard = {name: each for name, each in self._heard.items() if now < each.until}
            heard = list(self._heard.values())
            asked = [Question(f"$JS.API.CONSUMER.INFO.{each.stream}.{each.consumer}") for each in heard]
            for each, info in zip(heard, wire.ask_json(asked, timeout_s=_ASK_S), strict=True):
                self._follow(wire, each, info)
            if not self._heard or boottime() >= ask_until:
                return
            time.sleep(_POLL_S)

    def _follow(self, wire: Wire, heard: Heard, info: dict[str, Any] | None) -> None:
        """Take in hand what a consumer has given out beyond what was heard, and forget it once all of that is known."""
        if info is None or (_is_error(info) and not _is_nothing(info)):
            return
        delivered, topic = part(info, "delivered"), part(info, "config").get("filter_subject")
        newest, sequence = int(delivered.get("stream_seq") or 0), heard.newest
        while topic and sequence < newest:
            ask = json.dumps({"seq": sequence + 1, "next_by_subj": topic}).encode()
            (answer,) = wire.ask_json([Question(f"$JS.API.STREAM.MSG.GET.{heard.stream}", ask)], timeout_s=_ASK_S)
            if answer is None or (_is_error(answer) and not _is_nothing(answer)):
                return
            sequence = int(part(answer, "message").get("seq") or newest + 1)
            if sequence <= newest:
                self._in_hand.append(heard.unheard(sequence, int(delivered["consumer_seq"])))
                self._taken += 1
                self._heard[heard.stream, heard.consumer] = replace(heard, newest=sequence)
        del self._heard[heard.stream, heard.consumer]

    def _give_mail(self, wire: Wire) -> None:
        """In stream order, so that it lies in the inbox as it did; each inside its own window, and once: what was not
        answered may have been heard, and the message be on its way to somebody."""
        self._in_hand.sort(key=lambda one: (one.consumer, one.sequence))
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
            if answer is None or part(answer, "error").get("code") not in (None, 404):
                raise TimeoutError(f"{bucket} cannot be read")
            record = record_in(answer)
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


def _is_error(answer: dict[str, Any]) -> bool:
    return bool(part(answer, "error"))


def _is_nothing(answer: dict[str, Any]) -> bool:
    """Whether it says that what was asked for is not there; any other error says nothing."""
    return part(answer, "error").get("code") == 404


def _subjects(wire: Wire, bucket: str, pattern: str) -> list[str]:
    (answer,) = wire.ask_json(
        [Question(f"$JS.API.STREAM.INFO.KV_{bucket}", json.dumps({"subjects_filter": pattern}).encode())],
        timeout_s=_ASK_S,
    )
    if answer is None:
        raise TimeoutError(f"{bucket} cannot be listed")
    if error := part(answer, "error"):
        if _is_nothing(answer):
            return []  # the node leased nothing: it runs under local coordination, or never came so far
        raise TimeoutError(f"{bucket} cannot be listed: {error.get('description')}")
    return sorted(part(part(answer, "state"), "subjects"))


def _say(line: str) -> None:
    print(f"crewlet up: {line}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
