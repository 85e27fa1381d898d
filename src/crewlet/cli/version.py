"""`crewlet version`."""

import typer

from crewlet import __version__


def version() -> None:
    """Print the version."""
    typer.echo(f"crewlet {__version__}")


def print_and_exit(is_asked: bool) -> None:
    """For the flag `--version`."""
    if is_asked:
        version()
        raise typer.Exit
