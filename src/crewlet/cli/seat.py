"""`crewlet seat`: the company's seats and their mail."""

import sys
import time
import uuid
from pathlib import Path
from typing import Annotated, Any

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import CommandFailed, NodeClient
from crewlet.cli.numbers import number
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.pauses import pause_seat, pause_words, resume_seat
from crewlet.cli.printing import clean, instant, print_facts, print_json, print_table
from crewlet.cli.run import tell
from crewlet.cli.sending import body_of, check_names, deliver, follow, segment
from crewlet.cli.tail import tail_seat
from crewlet.kit.wording import counted

_LONGEST_WAIT_S = 366 * 24 * 3600
_GOOD = ("delivered", "no_action")

app = typer.Typer(help="The company's seats and their mail.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_seats(
    config: ConfigOption = DEFAULT_CONFIG, url: UrlOption = None, output: OutputOption = Output.table
) -> None:
    """List the seats and who runs them."""
    client = NodeClient.find(url, config)
    fleet = client.get("/query/fleet")
    rows: list[dict[str, Any]] = fleet["seats"]
    lonely = {each["handle"]: each["placement"] for each in fleet["unplaceable"]}
    told = _troubles(client)
    for row in rows:
        row["trouble"] = _trouble(row, lonely, told)
    strays: list[dict[str, Any]] = fleet.get("strays", [])
    for row in strays:
        row["trouble"] = _trouble(row, lonely, told) or "held, but the company document does not name it"
    rows += strays
    if output is Output.json:
        print_json(rows)
        return
    print_table(
        ("SEAT", "TITLE", "RUNNER", "NODE", "EPOCH", "SINCE", "PLACEMENT", "PAUSED", "TROUBLE"),
        [
            (
                row["handle"],
                row["title"],
                row["runner"],
                row.get("node") or ("(no node may)" if row["handle"] in lonely else None),
                row.get("epoch"),
                instant(row.get("acquired_at")),
                row["placement"],
                pause_words(row["pause"]) if row.get("pause") else None if fleet["pauses_known"] else "(not known)",
                row["trouble"],
            )
            for row in rows
        ],
        empty="The company has no seats.",
    )


def _troubles(client: NodeClient) -> dict[str, Any]:
    """What the nodes say of their seats; nothing where nobody could be asked."""
    try:
        return client.get("/query/troubles")
    except CommandFailed:
        return {"answered": [], "troubles": {}}


def _trouble(row: dict[str, Any], lonely: dict[str, str], told: dict[str, Any]) -> str:
    """What is the matter with a seat, "" where nothing is known to be."""
    handle, node = row["handle"], row.get("node")
    if handle in lonely:
        return f"no live node may run it ({lonely[handle]})"
    if trouble := told["troubles"].get(handle):
        return str(trouble)
    if node is None:
        since = row.get("free_since")
        return f"no node holds it since {instant(since)}" if since else "no node holds it"
    return "" if node in told["answered"] else f"{node} did not say"


@app.command("send")
def send(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The seat's handle.", show_default=False)],
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The text; `-` reads standard input.", show_default=False)
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", "-f", metavar="FILE", readable=False, help="Send this file's text; `-` is standard input."
        ),
    ] = None,
    message_id: Annotated[
        str | None,
        typer.Option("--id", metavar="ID", help="The mail's id: a repeat is worked once, another text refused."),
    ] = None,
    subject: Annotated[str, typer.Option("--subject", "-s", help="One line for people.")] = "",
    conversation: Annotated[str, typer.Option(help="Names the thread that the mail belongs to.")] = "",
    wait: Annotated[bool, typer.Option("--wait", help="Follow the mail until a turn has finished it.")] = False,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            help="Give up after so many seconds, whether sending or, with --wait, waiting.",
            parser=number(0, _LONGEST_WAIT_S),
        ),
    ] = 600.0,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Put a mail into a seat's inbox and print its id."""
    segment(handle, "HANDLE")
    check_names(message_id, subject, conversation)
    mail = {"body": body_of(text, file), "subject": subject, "conversation": conversation}
    until = time.monotonic() + timeout
    mail_id = str(uuid.uuid4()) if message_id is None else message_id
    sent = deliver(NodeClient.find(url, config), handle, mail, mail_id, until)
    letter = clean(sent["dead_letter"]) if sent.get("dead_letter") else ""
    if output is Output.table:
        print(sent["id"], flush=True)
        if sent["is_duplicate"] and not letter:
            print("crewlet: A mail with this id was there already; it is the one that counts.", file=sys.stderr)
    if letter:
        tell(f"The mail of this id was dead-lettered; `crewlet dlq replay {letter}` puts it back.", FAILED)
    if not wait:
        if output is Output.json:
            print_json(sent)
        raise typer.Exit(FAILED if letter else 0)
    result = follow(url, config, handle, sent["id"], until)
    if output is Output.json:
        print_json({**sent, **result})
    else:
        word = result["outcome"] if result["state"] == "finished" else result["state"]
        print(f"{word}{': ' + clean(result['detail']) if result.get('detail') else ''}")
    raise typer.Exit(0 if result.get("outcome") in _GOOD else FAILED)


@app.command("mail")
def show_mail(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The seat's handle.", show_default=False)],
    mail_id: Annotated[
        str | None, typer.Argument(metavar="ID", help="One mail, and what became of it.", show_default=False)
    ] = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show what lies in a seat's inbox, or what became of one mail, and why it waits."""
    path = f"/seats/{segment(handle, 'HANDLE')}/mail"
    client = NodeClient.find(url, config)
    if mail_id is not None:
        _show_one(client, path, mail_id, output)
        return
    mail = client.get(path)
    if output is Output.json:
        print_json(mail)
        return
    age_s = mail.get("oldest_age_s")
    elsewhere = f"not known: {mail.get('node')} did not say" if not mail["is_held_known"] else None
    print_facts(
        {
            "seat": mail["seat"],
            "node": mail.get("node") or "(none)",
            "waiting": mail["waiting"],
            "in hand": mail["in_hand"],
            "oldest": f"{age_s:.0f}s, since {instant(mail['oldest_at'])}" if age_s is not None else None,
            "held back": mail["held"] or elsewhere or "no",
            "why": mail.get("why") or None,
            "last error": mail.get("last_error") or None,
            "left": instant(mail.get("left_at")),
            "deleted from": instant(mail.get("deleted_from")),
            "retired": f"at {instant(mail['retired_at'])}, with {counted(mail['retired_messages'], 'message')}"
            if mail.get("retired_at")
            else None,
        }
    )


app.command("pause")(pause_seat)
app.command("resume")(resume_seat)
app.command("tail")(tail_seat)


def _show_one(client: NodeClient, path: str, mail_id: str, output: Output) -> None:
    one = client.get(f"{path}/{segment(mail_id, 'ID')}")
    if one["state"] == "open":
        one["why"] = client.get(path).get("why") or ""
    if one["state"] == "unknown":
        seen = (
            f"no trace of a mail {clean(repr(mail_id))} in the inbox, the records or the dead letters of {one['seat']}"
        )
        raise CommandFailed(f"There is {seen}.", word="unknown_mail", facts=one)
    if output is Output.json:
        print_json(one)
        return
    print_facts(
        {
            "mail": one["id"],
            "seat": one["seat"],
            "state": one["state"],
            "outcome": one.get("outcome"),
            "detail": one.get("detail"),
            "why": one.get("why"),
            "deliveries": one.get("deliveries"),
            "turn": one.get("turn_id"),
            "since": instant(one.get("recorded_at")),
            "dead letter": one.get("dead_letter"),
        }
    )
