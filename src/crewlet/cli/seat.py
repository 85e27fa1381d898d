"""`crewlet seat`: the company's seats and their mail."""

import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import CommandFailed, NodeClient, NodeRefused, NodeSilent
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.pauses import pause_seat, pause_words, resume_seat
from crewlet.cli.printing import clean, print_json, print_table
from crewlet.node.limits import MAX_ID_CHARS, MAX_MAIL_BYTES

SEND_ATTEMPTS = 5
_GOOD = ("delivered", "no_action")

app = typer.Typer(help="The company's seats and their mail.", no_args_is_help=True, rich_markup_mode=None)
app.command("pause")(pause_seat)
app.command("resume")(resume_seat)


@app.command("list")
def list_seats(
    config: ConfigOption = DEFAULT_CONFIG, url: UrlOption = None, output: OutputOption = Output.table
) -> None:
    """List the seats and who runs them."""
    fleet = NodeClient.find(url, config).get("/query/fleet")
    rows: list[dict[str, Any]] = fleet["seats"]
    if output is Output.json:
        print_json(rows)
        return
    lonely = {each["handle"] for each in fleet["unplaceable"]}
    print_table(
        ("SEAT", "TITLE", "RUNNER", "NODE", "EPOCH", "SINCE", "PLACEMENT", "PAUSED"),
        [
            (
                row["handle"],
                row["title"],
                row["runner"],
                row.get("node") or ("(no node may)" if row["handle"] in lonely else None),
                row.get("epoch"),
                row.get("acquired_at"),
                row["placement"],
                pause_words(row["pause"]) if row.get("pause") else None if fleet["pauses_known"] else "(not known)",
            )
            for row in rows
        ],
        empty="The company has no seats.",
    )


@app.command("send")
def send(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The seat's handle.", show_default=False)],
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="The text; `-` reads standard input.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", metavar="FILE", help="Send this file's text; `-` is standard input.")
    ] = None,
    message_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="The mail's id: the same id again is the same mail.")
    ] = None,
    subject: Annotated[str, typer.Option("--subject", "-s", help="One line for people.")] = "",
    conversation: Annotated[str, typer.Option(help="Names the thread that the mail belongs to.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the mail until a turn has finished it.")] = False,
    timeout: Annotated[float, typer.Option(help="With --wait: give up after so many seconds.", min=0)] = 600.0,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Put a mail into a seat's inbox and print its id."""
    _check_names(handle, message_id, subject, conversation)
    mail = {"body": _body(text, file), "subject": subject, "conversation": conversation}
    until = time.monotonic() + timeout
    sent = _send(NodeClient.find(url, config), handle, mail, str(uuid.uuid4()) if message_id is None else message_id)
    if output is Output.table:
        print(sent["id"], flush=True)
        if sent["is_duplicate"]:
            print("crewlet: A mail with this id was there already; it is the one that counts.", file=sys.stderr)
    if not wait:
        if output is Output.json:
            print_json(sent)
        return
    result = _wait(url, config, handle, sent["id"], until)
    if output is Output.json:
        print_json({**sent, **result})
    else:
        print(f"{result['outcome']}{': ' + clean(result['detail']) if result.get('detail') else ''}")
    raise typer.Exit(0 if result["outcome"] in _GOOD else FAILED)


def _check_names(handle: str, message_id: str | None, subject: str, conversation: str) -> None:
    """Refuse what an HTTP request cannot carry. The shell passes bytes that are no UTF-8 on as lone surrogates."""
    for value, name in ((handle, "HANDLE"), (subject, "--subject"), (conversation, "--conversation")):
        if not _is_utf8(value):
            raise typer.BadParameter("this is not UTF-8 text", param_hint=name)
    if message_id is None:
        return
    if not message_id or len(message_id) > MAX_ID_CHARS:
        raise typer.BadParameter(f"an id has 1 to {MAX_ID_CHARS} characters", param_hint="--id")
    if not (message_id.isascii() and message_id.isprintable()):
        raise typer.BadParameter("an id is one line of ASCII letters, digits and ._:=@+-", param_hint="--id")


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _body(text: str | None, file: Path | None) -> str:
    if (text is None) == (file is None):
        raise typer.BadParameter("give the text, or a file with --file, and not both", param_hint="TEXT")
    if text is not None and text != "-":
        body = text
    elif file is None or str(file) == "-":
        body = _decoded(sys.stdin.buffer.read(), "standard input")
    else:
        body = _decoded(file.read_bytes(), str(file))
    if not body:
        raise typer.BadParameter("the mail is empty", param_hint="TEXT")
    if not _is_utf8(body):
        raise typer.BadParameter("this is not UTF-8 text", param_hint="TEXT")
    if (size := len(body.encode())) > MAX_MAIL_BYTES:
        raise CommandFailed(f"The mail is too large: it has {size} bytes; {MAX_MAIL_BYTES} are allowed.")
    return body


def _decoded(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise CommandFailed(f"{name} is not UTF-8 text.") from None


def _send(client: NodeClient, handle: str, mail: dict[str, str], message_id: str) -> Any:
    """Send, and repeat under the same id while the answer is missing."""
    path = f"/seats/{quote(handle, safe='')}/mail"
    for attempt in range(1, SEND_ATTEMPTS + 1):
        try:
            return client.post(path, mail, {"Idempotency-Key": message_id})
        except CommandFailed as failure:
            if not _may_pass(failure) or attempt == SEND_ATTEMPTS:
                if isinstance(failure, NodeSilent) and failure.was_sent:
                    raise CommandFailed(
                        f"{failure} Whether it took the mail is not known: repeat it with --id {message_id}."
                    ) from failure
                raise
        time.sleep(1)
    raise AssertionError


def _may_pass(failure: CommandFailed) -> bool:
    if isinstance(failure, NodeSilent):
        return failure.was_sent
    return isinstance(failure, NodeRefused) and failure.status == 503


def _wait(url: str | None, config: Path, handle: str, message_id: str, until: float) -> Any:
    """Ask until the mail is finished. The node may restart meanwhile, under another address."""
    path = f"/seats/{quote(handle, safe='')}/mail/{quote(message_id, safe='')}"
    pause_s = 0.1
    told = ""
    while True:
        problem = ""
        try:
            answer = NodeClient.find(url, config).get(path)
            if answer["state"] == "finished":
                return answer
        except NodeRefused as refusal:
            if refusal.status != 503:
                raise
            problem = f" {refusal}"
        except CommandFailed as failure:
            problem = f" {failure}"
        if problem and problem != told:
            print(f"crewlet: Still waiting.{problem}", file=sys.stderr)
            told = problem
        if time.monotonic() + pause_s > until:
            raise CommandFailed(f"No turn has finished the mail {message_id} yet.{problem}")
        time.sleep(pause_s)
        pause_s = min(1.0, pause_s * 1.5)
