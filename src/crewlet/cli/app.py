"""The tree of commands."""

import typer

from crewlet.cli import (
    budget,
    demo,
    dlq,
    duty,
    init,
    node,
    plan,
    schedule,
    seat,
    sim,
    status,
    tail,
    up,
    validate,
    version,
)

app = typer.Typer(
    name="crewlet",
    help="Run a company of AI agents on a fleet of machines.",
    no_args_is_help=True,
    add_completion=False,
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


app.command("init")(init.init)
app.command("validate")(validate.validate)
app.command("plan")(plan.plan)
app.command("up")(up.up)
app.add_typer(node.app, name="node")
app.command("status")(status.status)
app.add_typer(seat.app, name="seat")
app.add_typer(tail.app, name="turn")
app.add_typer(budget.app, name="budget")
app.add_typer(dlq.app, name="dlq")
app.add_typer(duty.app, name="duty")
app.add_typer(schedule.app, name="schedule")
app.command("demo")(demo.demo)
app.command("sim")(sim.sim)
app.command("version")(version.version)
