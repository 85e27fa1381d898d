"""`crewlet demo`."""

from pathlib import Path
from typing import Annotated

import typer

from crewlet.cli.numbers import whole


def demo(
    docs: Annotated[
        Path | None,
        typer.Option("--docs", metavar="DIR", readable=False, help="Check the Markdown documents of this folder."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the verdict as one JSON object, last.")] = False,
    keep: Annotated[bool, typer.Option("--keep", help="Keep the fleet's folders and evidence.")] = False,
    seed: Annotated[
        int | None,
        typer.Option(
            "--seed", metavar="N", parser=whole(0, 2**53), help="Choose the same nodes to harm as an earlier run."
        ),
    ] = None,
) -> None:
    """Run a company on three nodes, kill one, freeze another, and judge from the evidence."""
    from crewlet.testing.demo import DemoOptions, run

    raise typer.Exit(run(DemoOptions(json=as_json, docs=docs, keep=keep, seed=seed)))
