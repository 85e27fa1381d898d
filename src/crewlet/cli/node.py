"""`crewlet node`: run a bare node, or look at the fleet's nodes."""

from pathlib import Path
from typing import Any

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import NodeClient
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption, load
from crewlet.cli.printing import print_json, print_table
from crewlet.cli.run import tell
from crewlet.cli.status import problem_of

app = typer.Typer(rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def node(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Run a node without a parent or broker of its own, for service managers; or list the fleet's nodes."""
    if context.invoked_subcommand is not None:
        context.obj = config
        return
    settings, company = load(config)
    from crewlet.wiring import run_node

    raise typer.Exit(run_node(settings, company))


@app.command("list")
def list_nodes(
    context: typer.Context,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """List the live nodes."""
    if config == DEFAULT_CONFIG and isinstance(context.obj, Path):
        config = context.obj
    client = NodeClient.find(url, config)
    rows: list[dict[str, Any]] = client.get("/query/fleet")["nodes"]
    if output is Output.json:
        print_json(rows)
    else:
        _print(rows)
    if problem := problem_of(client.get("/health")):
        raise typer.Exit(tell(problem, FAILED))


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("NODE", "SEATS", "ROLES", "LABELS", "PROTOCOL", "EXPIRES", "STATE"),
        [
            (
                row["id"],
                row["seats"],
                ",".join(row["roles"]),
                ",".join(f"{key}={value}" for key, value in row["labels"].items()),
                row["protocol"],
                f"{row['expires_in']:.0f}s",
                _state(row),
            )
            for row in rows
        ],
        empty="No node is live.",
    )


def _state(row: dict[str, Any]) -> str:
    return "draining" if row.get("draining") else "withdrawn" if row.get("seats_withdrawn") else "live"
