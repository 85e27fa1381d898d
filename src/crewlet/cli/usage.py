"""Wrong usage of the command line in one sentence of our own, whatever the library would say of it."""

import re
from difflib import get_close_matches
from typing import Any, Final

import typer
from typer.core import TyperGroup

from crewlet.cli.printing import clean

UsageError: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What every wrong usage is. The library has no public name for it."""


_WHOLE: Final = 1000
"""Characters; longer than any first sentence."""


class Commands(TyperGroup):
    """A group of commands that names the nearest one to what it does not know."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name = args[0]
        if self.get_command(ctx, name) is None and not name.startswith("-"):
            raise typer.BadParameter(f"there is no command {name!r}{_near(name, list(self.commands))}", ctx=ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """List each command with its first sentence whole, on as many lines as that takes."""
        rows = [(name, self.commands[name].get_short_help_str(_WHOLE)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)


def sentence_of(error: Any) -> str:
    """What is wrong, and where help is."""
    place, problem = _problem(error)
    path = error.ctx.command_path if error.ctx is not None else "crewlet"
    said = f"{place}: {problem}" if place else f"{problem[:1].upper()}{problem[1:]}"
    return f"{clean(said)}{'' if said.endswith('?') else ';'} `{path} -h` shows how it is used."


def _problem(error: Any) -> tuple[str, str]:
    """Where something is wrong, "" for the command as a whole, and what."""
    match type(error).__name__:
        case "NoSuchOption":
            known = [name for param in error.ctx.command.params for name in param.opts] if error.ctx else []
            return "", f"there is no option {error.option_name}{_near(error.option_name, known)}"
        case "BadOptionUsage":
            return "", f"{error.option_name} {'takes no' if 'not take' in error.message else 'needs a'} value"
        case "MissingParameter":
            return "", f"{_name(error)} is missing"
        case "BadParameter":
            return _name(error), error.message.rstrip(".")
        case _:
            extra = re.search(r"unexpected extra argument\S* \((.*)\)", error.message, re.DOTALL)
            return "", f"there is one word too many: {extra[1]!r}" if extra else error.message.rstrip(".")


def _name(error: Any) -> str:
    """The option or argument as it is written."""
    if error.param_hint is not None:
        return str(error.param_hint)
    if error.param is None:
        return ""
    if error.param.param_type_name == "argument":
        return str(error.param.metavar or error.param.name).strip("[]").upper()
    return max(error.param.opts, key=len)


def _near(name: str, known: list[str]) -> str:
    # Dashes say nothing about how near two options are.
    bare = {each.lstrip("-"): each for each in known}
    near = get_close_matches(name.lstrip("-"), bare, n=1)
    return f"; did you mean {bare[near[0]]!r}?" if near else ""
