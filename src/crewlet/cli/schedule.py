"""`crewlet schedule`: the mail that seats are sent again and again."""

from typing import Annotated, Any

import typer

from crewlet.cli.client import NodeClient
from crewlet.cli.numbers import whole
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import print_json, print_table
from crewlet.cli.sending import segment
from crewlet.company.instants import COUNTED_UP_TO

app = typer.Typer(help="Mail that is sent by the clock.", no_args_is_help=True, rich_markup_mode=None)


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
        ("SCHEDULE", "SEAT", "WHEN", "NEXT", "LAST", "OUTCOME", "WHY", "SKIPPED"),
        [(*(row.get(column) for column in columns), _skipped(row)) for row in rows],
        empty="There are no schedules.",
    )


@app.command("show")
def show_schedule(
    name: Annotated[str, typer.Argument(metavar="SCHEDULE", help="The schedule's name.", show_default=False)],
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", help="How many times at most.", parser=whole(1, 1000))
    ] = 20,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show what became of each time at which a schedule was due in the last two days, newest first."""
    path = f"/query/schedules/{segment(name, 'SCHEDULE')}?limit={limit}"
    answer = NodeClient.find(url, config).get(path)
    if output is Output.json:
        print_json(answer)
        return
    rows: list[tuple[Any, ...]] = []
    for fire in answer["fires"]:
        rows.append((fire["instant"], fire["outcome"], fire.get("reason"), fire.get("by")))
        if (skipped := fire.get("skipped_catchup")) is not None:
            outcome = f"skipped_catchup: {_many(skipped)}"
            rows.append((f"from {fire['skipped_from']}", outcome, fire["skipped_reason"], None))
    print_table(("AT", "OUTCOME", "WHY", "BY"), rows, empty="It was not due in the last two days.")


def _skipped(row: dict[str, Any]) -> str | None:
    if (skipped := row.get("skipped_catchup")) is None:
        return None
    return f"{_many(skipped)} from {row['skipped_from']} to before {row['skipped_before']}"


def _many(count: int) -> str:
    """Of more than are counted it is known that there are at least so many."""
    return f"{count} or more" if count >= COUNTED_UP_TO else str(count)
