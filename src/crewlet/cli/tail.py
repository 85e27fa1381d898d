"""`crewlet seat tail` and `crewlet turn show`: what a seat's turns do and did."""

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from typing import Annotated, Any
from urllib.parse import urlencode

import typer

from crewlet.cli.client import NodeClient, NodeRefused, NodeSilent
from crewlet.cli.numbers import whole
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import clean, instant, print_facts, print_json, print_table
from crewlet.cli.sending import segment

_POLL_S = 1.0
_QUIET_STEP_S = 10.0
"""How much longer a turn must have been quiet to be told of again."""
_SHOWN_CHARS = 200
_MOST = 200
"""So many turns, and so much other mail, a node tells at once."""

_BECAME = {"ack": "finished with", "nak": "comes back", "defer": "handed back", "bury": "dead letter"}
"""What became of mail that ran no turn, or whose turn broke, in the words of the documents."""

app = typer.Typer(help="What turns did.", no_args_is_help=True, rich_markup_mode=None)


def tail_seat(
    handle: Annotated[str, typer.Argument(metavar="HANDLE", help="The seat's handle.", show_default=False)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as things happen, until interrupted.")] = False,
    limit: Annotated[
        int,
        typer.Option("--limit", "-n", metavar="N", help="How many lines at most, the newest.", parser=whole(1, _MOST)),
    ] = 20,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show the newest turns that a seat ran on the node asked, and what became of mail that no turn finished."""
    path = f"/seats/{segment(handle, 'HANDLE')}/turns"
    client = NodeClient.find(url, config)
    tail = client.get(f"{path}?{urlencode({'limit': _MOST if follow else limit})}")
    newest = _newest(tail, limit)
    if output is Output.json and not follow:
        print_json(newest)
        return
    news = _News()
    _print(news.of(newest), output)
    list(news.of(tail))  # what is older is not told later either
    if not follow and not tail["turns"] and not tail["dispatches"]:
        print(f"crewlet: {clean(tail['asked_node'])} remembers no turn of this seat.", file=sys.stderr)
    _tell_where(tail)
    if follow:
        _follow(client, path, news, output, tail.get("node"))


@app.command("show")
def show_turn(
    turn_id: Annotated[
        str, typer.Argument(metavar="ID", help="The turn's id, or the beginning of it.", show_default=False)
    ],
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show one turn of the node asked: its rounds, its calls, how it ended."""
    path = f"/turns/{segment(turn_id, 'ID')}"
    if not 4 <= len(turn_id) <= 100:
        raise typer.BadParameter("write 4 to 100 characters of a turn's id", param_hint="ID")
    page = NodeClient.find(url, config).get(path)
    if output is Output.json:
        print_json(page)
        return
    turn = page["turn"]
    print_facts(
        {
            "turn": turn["turn_id"],
            "seat": f"{turn['seat']} (epoch {turn['epoch']}, {turn['runner']})",
            "mail": ", ".join(turn["triggers"]),
            "work key": turn["work_key"],
            "began": instant(turn["began_at"]),
            "ended": instant(turn.get("ended_at")),
            "now": _now(turn),
            "progress": turn["progress"],
        }
    )
    if page["rounds"]:
        print()
        print_table(
            ("ROUND", "BEGAN", "TOOK", "MODEL", "IN", "OUT"),
            [
                (
                    row["number"],
                    instant(row["began_at"]),
                    _took(row),
                    row["model"],
                    row["input_tokens"],
                    row["output_tokens"],
                )
                for row in page["rounds"]
            ],
        )
    if page["calls"]:
        print()
        print_table(
            ("CALL", "ROUND", "TOOL", "EFFECT", "BEGAN", "TOOK", "ANSWER"),
            [
                (
                    row["number"],
                    row["round"],
                    row["tool"],
                    "yes" if row["is_effect"] else "no",
                    instant(row["began_at"]),
                    _took(row),
                    _answer(row),
                )
                for row in page["calls"]
            ],
        )


class _News:
    """What of a tail was not told yet."""

    def __init__(self) -> None:
        self.after = 0
        self._turns: dict[str, tuple[Any, ...]] = {}
        self._dispatched: set[str] = set()

    def of(self, tail: dict[str, Any]) -> Iterator[dict[str, Any]]:
        lines: list[dict[str, Any]] = []
        for turn in tail["turns"]:
            steps = int((turn.get("quiet_s") or 0) / _QUIET_STEP_S)
            told = (turn["state"], turn["round"], turn["tool"], turn["progress"], turn["waiting"], steps)
            if self._turns.get(turn["turn_id"]) != told:
                self._turns[turn["turn_id"]] = told
                lines.append(turn)
            if turn["state"] != "running":
                self.after = max(self.after, turn["sequence"])
        for each in tail["dispatches"]:
            name = json.dumps(each)
            if name not in self._dispatched:
                self._dispatched.add(name)
                lines.append(each)
        yield from sorted(lines, key=_at)


def _newest(tail: dict[str, Any], limit: int) -> dict[str, Any]:
    """A tail with that many lines at most. The running turn comes before all that has ended."""
    lines = (*tail["turns"], *tail["dispatches"])
    newest = sorted(lines, key=lambda line: (line.get("state") == "running", _at(line)))[-limit:]
    return {**tail, **{kind: [line for line in tail[kind] if line in newest] for kind in ("turns", "dispatches")}}


def _follow(client: NodeClient, path: str, news: _News, output: Output, node: str | None) -> None:
    is_silent = False
    while True:
        time.sleep(_POLL_S)
        try:
            tail = client.get(f"{path}?{urlencode({'limit': _MOST, 'after': news.after})}")
        except (NodeSilent, NodeRefused) as error:
            if isinstance(error, NodeRefused) and error.status != 503:
                raise
            if not is_silent:
                print(f"crewlet: {error}", file=sys.stderr, flush=True)
            is_silent = True
            continue
        is_silent = False
        _print(news.of(tail), output)
        if tail.get("node") != node:
            node = tail.get("node")
            _tell_where(tail)


def _print(lines: Iterator[dict[str, Any]], output: Output) -> None:
    for line in lines:
        print(json.dumps(line, ensure_ascii=False) if output is Output.json else _words(line), flush=True)


def _at(line: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(line.get("at") or line.get("ended_at") or line["progressed_at"])


def _words(line: dict[str, Any]) -> str:
    if "turn_id" not in line:
        mail = ", ".join(line["triggers"]) or "mail"
        became = _BECAME.get(line["answer"], line["answer"])
        return clean(f"{instant(line['at'])}  mail      {became}: {line['reason']} ({mail})"[:_SHOWN_CHARS])
    at = instant(line.get("ended_at") or line["progressed_at"])
    return clean(f"{at}  {line['turn_id'][:8]}  {_now(line)}"[:_SHOWN_CHARS])


def _now(turn: dict[str, Any]) -> str:
    """Where a turn is, or how it ended."""
    round_ = f"round {turn['round']}" if turn["round"] else ""
    place = ", ".join(filter(None, (round_, turn["tool"])))
    match turn["state"]:
        case "running":
            tail = turn["waiting"] or turn["progress"]
            facts = ", ".join(filter(None, ("running", place, f"last sign {turn.get('quiet_s', 0):.0f}s ago")))
            return facts + (f": {tail}" if tail else "")
        case "cut_off":
            return f"cut off in {place}: its process ended" if place else "cut off: its process ended"
        case _:
            return turn["outcome"] + (f": {turn['detail']}" if turn["detail"] else "")


def _tell_where(tail: dict[str, Any]) -> None:
    if tail["is_here"]:
        return
    node, asked = tail.get("node"), clean(tail["asked_node"])
    if node is None:
        print(f"crewlet: No node is known to run the seat now; this is what {asked} remembers.", file=sys.stderr)
    else:
        sentence = f"crewlet: {clean(node)} runs the seat now, and only it knows what it does there: ask it with --url."
        print(sentence, file=sys.stderr)


def _took(row: dict[str, Any]) -> str:
    if not row.get("ended_at"):
        return "(no end)"
    seconds = (datetime.fromisoformat(row["ended_at"]) - datetime.fromisoformat(row["began_at"])).total_seconds()
    return f"{seconds:.1f}s"


def _answer(row: dict[str, Any]) -> str:
    text = ("error: " if row["is_error"] else "") + " ".join(row["answer"].split())
    return text if len(text) <= 80 else f"{text[:79]}…"
