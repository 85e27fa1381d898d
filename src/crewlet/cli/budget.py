"""`crewlet budget`: what may be spent, and what was."""

from datetime import datetime
from typing import Annotated, Any

import typer

from crewlet.cli.client import NodeClient
from crewlet.cli.numbers import whole
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.printing import print_json, print_table
from crewlet.cli.sending import segment

app = typer.Typer(help="Tokens that may be spent, and that were.", no_args_is_help=True, rich_markup_mode=None)

MaybeHandle = Annotated[
    str | None, typer.Argument(metavar="HANDLE", help="A seat; without it all of the company.", show_default=False)
]
HandleArgument = Annotated[
    str | None,
    typer.Argument(metavar="HANDLE", help="A seat; without it the company as a whole.", show_default=False),
]
_MOST = 10**15 - 1


@app.command("show")
def show(
    handle: MaybeHandle = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Show what was spent in the present windows, and the caps."""
    client = NodeClient.find(url, config)
    answer = client.get("/budgets" if handle is None else _path(handle))
    if output is Output.json:
        print_json(answer)
    else:
        _print(answer["budgets"] if handle is None else [answer])


@app.command("set")
def set_caps(
    handle: HandleArgument = None,
    day: Annotated[int | None, typer.Option(metavar="N", help="Tokens a day.", parser=whole(0, _MOST))] = None,
    week: Annotated[int | None, typer.Option(metavar="N", help="Tokens a week.", parser=whole(0, _MOST))] = None,
    month: Annotated[int | None, typer.Option(metavar="N", help="Tokens a month.", parser=whole(0, _MOST))] = None,
    unlimited: Annotated[bool, typer.Option("--unlimited", help="Set no limit at all.")] = False,
    as_documented: Annotated[
        bool, typer.Option("--as-documented", help="Go back to what the company document says.")
    ] = False,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Put caps in place of the company document's: all three at once, one that is not given sets no limit."""
    caps = {name: cap for name, cap in (("day", day), ("week", week), ("month", month)) if cap is not None}
    if bool(caps) + unlimited + as_documented != 1:
        sentence = "give caps, or --unlimited, or --as-documented, and only one of these"
        raise typer.BadParameter(sentence, param_hint="--day, --week, --month")
    wish: dict[str, Any] = {**caps}
    if not caps:
        wish["unlimited" if unlimited else "as_documented"] = True
    _done(NodeClient.find(url, config).post(_path(handle), wish), output)


@app.command("reset")
def reset(
    handle: HandleArgument = None,
    config: ConfigOption = DEFAULT_CONFIG,
    url: UrlOption = None,
    output: OutputOption = Output.table,
) -> None:
    """Count what is spent from nothing again, in every window. What waited for it goes on at once."""
    _done(NodeClient.find(url, config).post(f"{_path(handle)}/reset", {}), output)


def _done(answer: dict[str, Any], output: Output) -> None:
    if output is Output.json:
        print_json(answer)
    else:
        _print([answer])


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(
        ("SPENDER", "WINDOW", "SPENT", "CAP", "ENDS", "SET BY"),
        [
            (
                row.get("seat") or "(company)",
                name,
                window["spent"],
                "(none)" if window.get("cap") is None else window["cap"],
                datetime.fromisoformat(window["ends_at"]).isoformat(timespec="minutes"),
                "a person" if row["is_set"] else "the document",
            )
            for row in rows
            for name, window in row["windows"].items()
        ],
    )


def _path(handle: str | None) -> str:
    if handle is None:
        return "/budget"
    return f"/seats/{segment(handle, 'HANDLE')}/budget"
