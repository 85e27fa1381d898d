"""Sending a mail to a seat and following what becomes of it."""

import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

import typer

from crewlet.cli.client import TIMEOUT_S, CommandFailed, NodeClient, NodeRefused, NodeSilent
from crewlet.cli.printing import clean
from crewlet.node.limits import (
    LINE_PATTERN,
    LINE_RULE,
    MAX_LINE_CHARS,
    MAX_MAIL_BYTES,
    MESSAGE_ID_PATTERN,
    MESSAGE_ID_RULE,
)

SEND_ATTEMPTS = 5
STILL_WAITING_S = 30.0
"""How long `--wait` is silent at most while nothing changes."""
WHY_AFTER_S = 1.0
WHY_EVERY_S = 5.0
"""When `--wait` first asks what keeps the mail from being read, and how often it looks whether that has changed."""


def segment(name: str, hint: str) -> str:
    """A name from the command line as one part of a path.

    Raises:
        typer.BadParameter: it would be another path, and so another question to the node.
    """
    if not is_utf8(name):
        raise typer.BadParameter("this is not UTF-8 text", param_hint=hint)
    if name in ("", ".", "..") or "/" in name:
        raise typer.BadParameter(f"nothing is called {clean(repr(name))}", param_hint=hint)
    return quote(name, safe="")


def check_names(message_id: str | None, subject: str, conversation: str) -> None:
    """Refuse what an HTTP request cannot carry. The shell passes bytes that are no UTF-8 on as lone surrogates."""
    for value, name in ((subject, "--subject"), (conversation, "--conversation")):
        if not is_utf8(value):
            raise typer.BadParameter("this is not UTF-8 text", param_hint=name)
        if len(value) > MAX_LINE_CHARS or not re.fullmatch(LINE_PATTERN, value):
            raise typer.BadParameter(LINE_RULE, param_hint=name)
    if message_id is None:
        return
    if not re.fullmatch(MESSAGE_ID_PATTERN, message_id):
        raise typer.BadParameter(MESSAGE_ID_RULE, param_hint="--id")


def is_utf8(text: str) -> bool:
    """Whether a text from the command line can be sent as it is."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def body_of(text: str | None, file: Path | None) -> str:
    """The text of the mail: as given, from a file, or from standard input."""
    if text is None and file is None:
        raise typer.BadParameter("give the text of the mail, `-` for standard input, or --file", param_hint="TEXT")
    if text is not None and file is not None:
        raise typer.BadParameter("give the text, or a file with --file, and not both", param_hint="TEXT")
    if text is not None and text != "-":
        body = text
    elif file is None or str(file) == "-":
        body = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        body = _decoded(file.read_bytes(), str(file))
    if not body:
        raise typer.BadParameter("the mail is empty", param_hint="TEXT")
    if not is_utf8(body):
        raise typer.BadParameter("this is not UTF-8 text", param_hint="TEXT")
    if (size := len(body.encode())) > MAX_MAIL_BYTES:
        raise CommandFailed(f"The mail is too large: it has {size} bytes; {MAX_MAIL_BYTES} are allowed.")
    return body


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandFailed(f"{name} is not UTF-8 text.") from None


def deliver(client: NodeClient, handle: str, mail: dict[str, str], message_id: str, until: float) -> Any:
    """Send, and repeat under the same id while the answer is missing and there is time.

    Args:
        until: a reading of `time.monotonic`.
    """
    path = f"/seats/{segment(handle, 'HANDLE')}/mail"
    attempt = 0
    while True:
        attempt += 1
        try:
            return client.post(path, mail, {"Idempotency-Key": message_id}, timeout_s=_left_s(until))
        except CommandFailed as failure:
            if _may_pass(failure) and attempt < SEND_ATTEMPTS and time.monotonic() + 1 < until:
                time.sleep(1)
                continue
            if isinstance(failure, NodeSilent) and failure.was_sent:
                raise CommandFailed(
                    f"{failure} Whether it took the mail is not known: repeat it with --id {message_id}.",
                    facts={"id": message_id},
                ) from failure
            raise


def _left_s(until: float) -> float:
    """How long one request may take."""
    return max(0.1, min(TIMEOUT_S, until - time.monotonic()))


def _may_pass(failure: CommandFailed) -> bool:
    if isinstance(failure, NodeSilent):
        return failure.was_sent
    return isinstance(failure, NodeRefused) and failure.status == 503


def follow(url: str | None, config: Path, handle: str, message_id: str, until: float) -> Any:
    """Ask until the mail is finished or dead-lettered. The node may restart meanwhile, under another address.

    What changes is said on standard error, and that nothing does, from time to time.
    """
    path = f"/seats/{segment(handle, 'HANDLE')}/mail/{quote(message_id, safe='')}"
    pause_s = 0.1
    watch = _Watch()
    answer: Any = {"id": message_id, "state": "open"}
    while True:
        problem = ""
        try:
            answer = NodeClient.find(url, config).get(path, timeout_s=_left_s(until))
            if answer["state"] in ("finished", "dead_lettered"):
                return answer
            watch.tell_why(lambda: _why(url, config, handle, until))
        except NodeRefused as refusal:
            if refusal.status != 503:
                raise
            problem = f" {refusal}"
        except CommandFailed as failure:
            problem = f" {failure}"
        watch.tell(problem, answer)
        if time.monotonic() + pause_s > until:
            raise CommandFailed(
                f"No turn has finished the mail {message_id} yet.{problem or _tries(answer)}", facts=answer
            )
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.5)


@dataclass(slots=True)
class _Watch:
    """What was said last, and when."""

    told: str = ""
    told_at: float = field(default_factory=time.monotonic)
    began_at: float = field(default_factory=time.monotonic)
    why: str = ""
    ask_why_at: float = field(default_factory=lambda: time.monotonic() + WHY_AFTER_S)

    def tell_why(self, ask: Callable[[], str]) -> None:
        """Say what keeps the mail from being read: once, and again only when it is something else."""
        if time.monotonic() < self.ask_why_at:
            return
        why, before = ask(), self.why
        self.ask_why_at = time.monotonic() + WHY_EVERY_S
        self.why = why
        if why and why != before:
            print(f"crewlet: Still waiting: {clean(why)}.", file=sys.stderr, flush=True)

    def tell(self, problem: str, answer: Any) -> None:
        news = problem or _tries(answer)
        now = time.monotonic()
        if news == self.told and now - self.told_at < STILL_WAITING_S:
            return
        if not news and now - self.told_at < STILL_WAITING_S:
            self.told = news
            return
        self.told, self.told_at = news, now
        since = "" if problem else f" after {now - self.began_at:.0f} s"
        print(f"crewlet: Still waiting{since}.{clean(news) if news else ''}", file=sys.stderr)


def _why(url: str | None, config: Path, handle: str, until: float) -> str:
    """What keeps a seat's mail from being read, as far as the node can say."""
    try:
        path = f"/seats/{segment(handle, 'HANDLE')}/mail"
        return str(NodeClient.find(url, config).get(path, timeout_s=_left_s(until)).get("why") or "")
    except CommandFailed:
        return ""  # the next question about the mail says what is wrong


def _tries(answer: Any) -> str:
    """What is known of open mail, as a sentence."""
    if answer["state"] == "unknown":
        return " The node finds no trace of the mail."
    if not answer.get("deliveries"):
        return ""
    times = "once" if answer["deliveries"] == 1 else f"{answer['deliveries']} times"
    reason = f" A turn broke: {clean(answer['detail'])}." if answer.get("detail") else ""
    return f" It was handed over {times}.{reason}"
