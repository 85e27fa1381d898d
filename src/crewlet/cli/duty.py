"""`crewlet duty`: the work that one node at a time does for the whole company."""

from typing import Annotated, Any

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import NodeClient
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import clean, instant, print_json, print_table
from crewlet.cli.run import tell
from crewlet.cli.sending import segment

app = typer.Typer(help="Work that one node does for the company.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_duties(
    config: ConfigOption = DEFAULT_CONFIG, url: UrlOption = None, output: OutputOption = Output.table
) -> None:
    """List the duties, who does each, and how it last went on the node that answers."""
    answer = NodeClient.find(url, config).get("/query/duties")
    rows: list[dict[str, Any]] = answer["duties"]
    if output is Output.json:
        print_json(answer)
        return
    print_table(
        ("DUTY", "NODE", "SINCE", "EVERY", "LAST HERE", "DOES"),
        [
            (
                row["name"],
                row.get("node"),
                instant(row.get("since")),
                f"{row['every_s']:g}s",
                _last(row.get("last_here")),
                row["purpose"],
            )
            for row in rows
        ],
        empty="There are no duties.",
    )


@app.command("run")
def run(
    name: Annotated[str, typer.Argument(metavar="DUTY", help="The duty's name.", show_default=False)],
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Do one tick of a duty now, on the node that is asked. Fails when another node does it, or when it fails."""
    path = f"/duties/{segment(name, 'DUTY')}/run"
    tick = NodeClient.find(url, config).post(path, {}, {})
    outcome, detail = str(tick["outcome"]), clean(tick["detail"]) if tick.get("detail") else ""
    if output is Output.json:
        print_json(tick)
    elif outcome in ("done", "running"):
        print(f"{outcome}: {detail or ('it goes on' if outcome == 'running' else 'there was nothing to do')}")
    if outcome in ("done", "running"):
        return
    if outcome == "held":
        raise typer.Exit(tell(f"Another node does this duty: {detail}.", FAILED))
    if outcome == "unclaimed":
        raise typer.Exit(tell(f"It is not known who does this duty: {detail}.", FAILED))
    raise typer.Exit(tell(f"The duty failed: {detail}.", FAILED))


def _last(tick: dict[str, Any] | None) -> str | None:
    if tick is None:
        return None
    return f"{tick['outcome']} at {instant(tick['began_at'])}" + (f": {tick['detail']}" if tick.get("detail") else "")
