"""One turn of a docs-desk seat: protocol v1 on standard input and output.

Standard library only, and little of it: a program starts once a turn. What a program does with its mail is its own
module; this one reads the turn, sends mail, answers with the outcome and keeps the evidence.

A program ends in one of two ways. With an outcome, the mail is done with. Without one (exit code 75), the mail comes
back to the seat, here or on another node: for a full disk, a busy store, or a tenure that is over.
"""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from witness import Witness, boottime

COME_BACK = 75
"""EX_TEMPFAIL: the turn has no outcome, its mail is to be delivered again."""


class Mail(NamedTuple):
    """One message of the turn."""

    id: str
    source: str
    subject: str
    body: str


class Term(NamedTuple):
    """The tenure under which this turn runs; `epoch` is the fencing token of `resource`."""

    resource: str
    owner: str
    epoch: int


class Outcome(NamedTuple):
    """How the turn ended (`delivered`, `no_action` or `blocked`), with one line for people."""

    word: str
    detail: str


class Blocked(Exception):
    """The work cannot be done as asked, and could not on a repeat."""


class TryAgain(Exception):
    """Not now, or not here: end without an outcome, so that the mail comes back."""


class Turn:
    """What the node asked for, and the ways to answer it."""

    def __init__(self, asked: dict[str, Any], witness: Witness, dwell_s: float) -> None:
        self.seat = str(asked["seat"])
        self.mail = [_mail(item) for item in asked["mail"]]
        term = asked["term"]
        self.term = Term(str(term["resource"]), str(term["owner"]), int(term["epoch"]))
        self._witness = witness
        self._began = boottime()
        self._dwell_s = dwell_s

    def send(self, to: str, body: str, *, subject: str = "") -> str:
        """Send mail to a seat and return its id: the same id when this work runs again.

        Raises:
            Blocked: the node refused it.
            TryAgain: the node is gone.
        """
        _write({"send": {"to": to, "body": body, "subject": subject}})
        answer = _read()
        if answer is None:
            raise TryAgain("the node closed the turn")
        if "sent" not in answer:
            raise Blocked(f"mail to {to} was refused: {answer.get('refused', {}).get('reason', answer)}")
        message_id = str(answer["sent"]["id"])
        self._witness.sent(message_id)
        return message_id

    def progress(self, text: str) -> None:
        """Say where the work stands, for people."""
        _write({"progress": text})

    def dwell(self, share: float) -> None:
        """Take at least this share (0 to 1) of the seconds in `DWELL_S`, counted from the beginning of the turn.

        Real work on one document is over in milliseconds; this gives it a length at which people, and faults, can
        meet it running.
        """
        left_s = self._began + self._dwell_s * share - boottime()
        if left_s > 0:
            time.sleep(left_s)


def serve(work: Callable[[Turn], Outcome]) -> int:
    """Run one turn and return the exit code of the program."""
    asked = _read()
    if asked is None:
        print("This program is run by a Crewlet node: it expects one turn (protocol v1) on its input.", file=sys.stderr)
        return 2
    if asked.get("v") != 1:
        print(f"protocol v{asked.get('v')} is not known here, only v1", file=sys.stderr)
        return COME_BACK
    witness = Witness.begin(os.environ.get("EVIDENCE_DIR"), asked)
    outcome: Outcome | None = None
    try:
        turn = Turn(asked, witness, dwell_s=float(os.environ.get("DWELL_S", "0")))
        outcome = work(turn)
        turn.dwell(1.0)
    except Blocked as blocked:
        outcome = Outcome("blocked", str(blocked))
    except (TryAgain, OSError) as fault:
        print(f"{type(fault).__name__}: {fault}", file=sys.stderr)
    # The evidence ends before the node can know the outcome: nothing this program does may come after the node goes on.
    witness.close(is_finished=outcome is not None)
    if outcome is None:
        return COME_BACK
    _write({"outcome": outcome.word, "detail": outcome.detail})
    return 0


def choose(variable: str, by: str) -> str:
    """One of the seats listed in an environment variable: always the same one for the same `by`.

    Raises:
        Blocked: the variable lists none.
    """
    seats = os.environ.get(variable, "").split()
    if not seats:
        raise Blocked(f"set {variable} in the company document to the seats that may be chosen")
    return seats[int.from_bytes(hashlib.sha256(by.encode()).digest()[:8], "big") % len(seats)]


def _mail(item: dict[str, Any]) -> Mail:
    return Mail(str(item["id"]), str(item.get("source", "")), str(item.get("subject", "")), str(item.get("body", "")))


def _read() -> dict[str, Any] | None:
    line = sys.stdin.buffer.readline()
    return json.loads(line) if line.strip() else None


def _write(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps(message, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()
