"""The tree of commands. A command's module is loaded when it is run, so that none waits for what another needs."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Final

import typer
from typer.core import TyperCommand
from typer.main import get_command, get_group

from crewlet.cli import version
from crewlet.cli.usage import Commands

COMMANDS: Final[Mapping[str, tuple[str, str]]] = {
    "init": ("init", "Write the files of a small company that runs as it is."),
    "validate": ("validate", "Check the settings file and the company document."),
    "plan": ("plan", "Show who would hold which seats, and what a loss would move."),
    "up": ("up", "Run a node, with a broker beside it unless one is configured."),
    "node": ("node", "Run a node alone, for service managers; or list the nodes."),
    "status": ("status", "Show a node's health and the fleet around it."),
    "seat": ("seat", "The company's seats and their mail."),
    "turn": ("tail", "What turns did."),
    "budget": ("budget", "Tokens that may be spent, and that were."),
    "dlq": ("dlq", "Dead letters: mail that used up its deliveries."),
    "duty": ("duty", "Work that one node does for the company."),
    "schedule": ("schedule", "Mail that is sent by the clock."),
    "demo": ("demo", "Harm the nodes of a real fleet, and judge what it promised."),
    "sim": ("sim", "Simulate a whole fleet under faults, and judge what it promises."),
    "version": ("version", "Print the version."),
}
"""Each command's module in `crewlet.cli`, and its line in the list of commands. A module has a group of commands as
`app`, or one command under the module's own name."""

PLAN_ONLY: Final = object()
"""The context's object when the plan of `up` is to be written and nothing run."""


class _Commands(Commands):
    """The commands by their names and lines alone, until one of them is run."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for name, (_, line) in COMMANDS.items():
            self.add_command(TyperCommand(name, help=line))

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, _, rest = super().resolve_command(ctx, args)
        return name, name and load(name), rest


def load(name: str) -> Any:
    """The command or group of that name, with its module."""
    module = import_module(f"crewlet.cli.{COMMANDS[name][0]}")
    group: typer.Typer | None = getattr(module, "app", None)
    if group is not None:
        group.info.cls = Commands
        return get_group(group)
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name)(getattr(module, name))
    return get_command(alone)


app = typer.Typer(
    name="crewlet",
    help="Run a company of AI agents on a fleet of machines.",
    cls=_Commands,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback(invoke_without_command=True)
def _root(  # pyright: ignore[reportUnusedFunction]
    _version: bool = typer.Option(
        False, "--version", help="Print the version.", is_eager=True, callback=version.print_and_exit
    ),
) -> None:
    pass
