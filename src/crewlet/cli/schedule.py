"""`crewlet schedule`: the mail that seats are sent again and again."""

from typing import Any

import typer

from crewlet.cli.client import NodeClient
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import print_json, print_table

app = typer.Typer(help="Mail that is sent by the clock.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def _group() -> None:  # pyright: ignore[reportUnusedFunction] -- keeps `list` a word of its own
    pass


@app.command("list")
def list_schedules(
    config: ConfigOption = DEFAULT_CONFIG, url: UrlOption = None, output: OutputOption = Output.table
) -> None:
    """List the schedules, when each is due next, and what became of the last time."""
    answer = NodeClient.find(url, config).get("/query/schedules")
    rows: list[dict[str, Any]] = answer["schedules"]
    if output is Output.json:
        print_json(answer)
        return
    columns = ("name", "seat", "rule", "next_at", "last_at", "outcome", "reason")
    print_table(
        ("SCHEDULE", "SEAT", "WHEN", "NEXT", "LAST", "OUTCOME", "WHY"),
        [tuple(row.get(column) for column in columns) for row in rows],
        empty="There are no schedules.",
    )
