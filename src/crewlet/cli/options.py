"""Options that several commands share, and what they stand for."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from crewlet.cli import printing
from crewlet.kit.refusal import ConfigRefused

if TYPE_CHECKING:
    from crewlet.company.model import Company
    from crewlet.node.settings import Settings

DEFAULT_CONFIG = Path("crewlet.yaml")


class Output(StrEnum):
    """How results are printed."""

    table = "table"
    json = "json"


# Whoever reads a file says what is wrong with it, in place of the command line's library: hence no `readable`.
ConfigOption = Annotated[
    Path, typer.Option("--config", "-c", metavar="FILE", help="The node's settings.", show_default=True, readable=False)
]


def _output(given: str) -> Output:
    if given not in list(Output):
        raise typer.BadParameter(f"{given!r} is neither table nor json")
    return Output(given)


def _note_output(output: Output) -> Output:
    printing.wants_json = output is Output.json
    return output


OutputOption = Annotated[
    Output,
    typer.Option(
        "--output", "-o", metavar="<table|json>", help="How to print the result.", parser=_output, callback=_note_output
    ),
]
UrlOption = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        envvar="CREWLET_URL",
        help="A node to ask; without it, the one that runs with the settings file.",
    ),
]


def load(config: Path) -> "tuple[Settings, Company]":
    """The settings of a file and the company that it names.

    Raises:
        ConfigRefused: one of them cannot be used.
    """
    # Most commands ask a node, and wait for no reading of documents.
    from crewlet.company.document import load_company
    from crewlet.node.settings import load_settings

    settings = load_settings(config)
    # Shown relative where the user's own path was.
    folder = config.parent
    shown = folder / settings.company.relative_to(settings.path.parent) if _is_below(settings, folder) else None
    shown = shown or settings.company
    if not shown.exists():
        problem = f"the company document {shown} does not exist"
        remedy = "write it, let `crewlet init` do it, or name another"
        raise ConfigRefused(problem, where=settings.company_at, remedy=remedy)
    return settings, load_company(shown)


def _is_below(settings: "Settings", folder: Path) -> bool:
    return not folder.is_absolute() and settings.company.is_relative_to(settings.path.parent)
