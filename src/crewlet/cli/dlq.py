"""`crewlet dlq`: mail that used up its deliveries."""

import sys
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from crewlet.cli.client import NodeClient
from crewlet.cli.numbers import whole
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import clean, instant, print_facts, print_json, print_table
from crewlet.cli.sending import is_utf8, segment

app = typer.Typer(help="Dead letters: mail that used up its deliveries.", no_args_is_help=True, rich_markup_mode=None)

LetterArgument = Annotated[str, typer.Argument(metavar="LETTER", help="The dead letter's id.", show_default=False)]
_REASON_CHARS = 60
_BODY_CHARS = 20_000
_STATES = {
    "open": "it waits or is being worked",
    "done": "a turn has ended it",
    "dead_lettered": "it is a dead letter again",
}


@app.command("list")
def list_letters(
    seat: Annotated[str | None, typer.Option("--seat", metavar="HANDLE", help="Only of this seat.")] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="LETTER", help="Only what came after this one.")
    ] = None,
    limit: Annotated[int, typer.Option(metavar="N", help="How many at most.", parser=whole(1, 200))] = 50,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """List dead letters, oldest first, a page at a time."""
    asked = {"seat": seat, "after": after, "limit": limit}
    given = {name: value for name, value in asked.items() if value is not None}
    for name, value in given.items():
        if not is_utf8(str(value)):
            raise typer.BadParameter("this is not UTF-8 text", param_hint=f"--{name}")
    page = NodeClient.find(url, config).get(f"/dlq?{urlencode(given)}")
    if output is Output.json:
        print_json(page)
        return
    rows: list[dict[str, Any]] = page["letters"]
    print_table(
        ("LETTER", "SEAT", "MAIL", "DELIVERIES", "BURIED", "REPLAY", "REASON"),
        [
            (
                row["id"],
                row.get("seat") or row["topic"],
                row["mail"],
                row["deliveries"],
                instant(row["buried_at"]),
                row.get("replay"),
                _cut(row["reason"]),
            )
            for row in rows
        ],
        empty="There are no dead letters.",
    )
    if page.get("next"):
        print(f"crewlet: There are more; go on with --after {clean(page['next'])}", file=sys.stderr)


@app.command("show")
def show(
    letter: LetterArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show a dead letter: what it was, who had it, why it came back."""
    detail = NodeClient.find(url, config).get(_path(letter))
    if output is Output.json:
        print_json(detail)
        return
    facts = detail["letter"]
    print_facts(
        {
            "letter": facts["id"],
            "seat": facts.get("seat") or facts["topic"],
            "mail": facts["mail"],
            "from": facts["source"],
            "subject": facts["subject"],
            "type": detail["type"],
            "published": instant(facts["published_at"]),
            "buried": instant(facts["buried_at"]),
            "deliveries": facts["deliveries"],
            "reason": facts["reason"],
            "replay": f"{facts['replay']} at {instant(facts['replayed_at'])}" if facts.get("replay") else None,
        }
    )
    if detail["history"]:
        print()
        rows = [
            (row["number"], row["owner"], instant(row["at"]), row["reason"] or "it never said")
            for row in detail["history"]
        ]
        print_table(("DELIVERY", "OWNER", "AT", "WHY IT CAME BACK"), rows)
    print()
    body = str(detail["body"])
    for line in body[:_BODY_CHARS].splitlines():
        print(clean(line) if line else "")
    if detail.get("data"):
        print(f"crewlet: It is not an event; -o json has its {detail['size_bytes']} bytes (data)", file=sys.stderr)
    elif len(body) > _BODY_CHARS:
        print(f"crewlet: It has {len(body)} characters; -o json shows all", file=sys.stderr)


@app.command("replay")
def replay(
    letter: LetterArgument,
    again: Annotated[
        bool,
        typer.Option("--again", help="Also where the mail of an earlier replay is found nowhere; it may have arrived."),
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Put a dead letter's mail back into its inbox with a new budget. Repeating it sends nothing more."""
    done = NodeClient.find(url, config).post(f"{_path(letter)}/replay", {"again": again})
    if output is Output.json:
        print_json(done)
        return
    where = clean(done["seat"] or "its topic")
    if done["is_repeat"]:
        state = _STATES.get(done["state"], clean(done["state"]))
        print(f"{clean(done['mail'])} had been replayed to {where} already, at {instant(done['replayed_at'])}: {state}")
    else:
        print(f"{clean(done['mail'])} replayed to {where}")


@app.command("drop")
def drop(
    letter: LetterArgument,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Delete a dead letter for good. The node's log names it."""
    dropped = NodeClient.find(url, config).delete(_path(letter))
    if output is Output.json:
        print_json(dropped)
        return
    print(f"{clean(dropped['id'])} dropped: mail {clean(dropped['mail'])} of {clean(dropped['seat'] or 'no seat')}")


def _path(letter: str) -> str:
    return f"/dlq/{segment(letter, 'LETTER')}"


def _cut(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARS else f"{reason[: _REASON_CHARS - 1]}…"
