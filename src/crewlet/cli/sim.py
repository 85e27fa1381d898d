"""`crewlet sim`."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crewlet.cli.numbers import number, whole

if TYPE_CHECKING:
    from crewlet.testing.sim import SimOptions, SimReport

_SEEDS = 2**53


def sim(
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", parser=whole(0, _SEEDS), help="Decides everything that is left to chance."),
    ] = 0,
    seeds: Annotated[
        int, typer.Option("--seeds", metavar="N", parser=whole(1, _SEEDS), help="Run so many seeds, from --seed on.")
    ] = 1,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", parser=whole(1, 50), help="Nodes of the fleet.")] = 3,
    seats: Annotated[int, typer.Option("--seats", metavar="N", parser=whole(1, 100), help="Seats of the company.")] = 6,
    hours: Annotated[
        float, typer.Option("--hours", metavar="HOURS", parser=number(0.01, 10_000), help="Simulated hours of trouble.")
    ] = 1.0,
    faults: Annotated[
        str | None,
        typer.Option("--faults", metavar="LIST", help="Kinds of fault with commas between, or `none`."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a seed.")] = False,
) -> None:
    """Simulate a whole fleet under faults, and judge what it promises.

    Without --faults the seed chooses which kinds are on. Exit code 0 when every promise held, 127 when our own code
    broke, 128 when a seat or mail was left lying, 129 when a promise of safety was broken. The same arguments replay
    the same history.
    """
    from crewlet.testing.sim import SimOptions, simulate

    kinds = _kinds(faults)
    for each in range(seed, seed + seeds):
        options = SimOptions(each, nodes=nodes, seats=seats, minutes=round(60.0 * hours, 6), faults=kinds)
        report = simulate(options)
        if as_json:
            typer.echo(json.dumps(_facts(report)))
        else:
            _tell(report)
        if report.code:
            raise typer.Exit(report.code)


def replay_command(options: "SimOptions") -> str:
    """What runs the same simulation again."""
    faults = "" if options.faults is None else f" --faults {','.join(options.faults) or 'none'}"
    return (
        f"crewlet sim --seed {options.seed} --nodes {options.nodes} --seats {options.seats}"
        f" --hours {options.minutes / 60.0!r}{faults}"
    )


def _kinds(faults: str | None) -> tuple[str, ...] | None:
    from crewlet.testing.sim import BY_NAME, KINDS

    all_kinds = (*KINDS, *BY_NAME)
    if faults is None:
        return None
    asked = [kind.strip() for kind in faults.split(",") if kind.strip()] if faults != "none" else []
    if not asked and faults != "none":
        raise typer.BadParameter("no kind of fault is named; write `none` for none", param_hint="--faults")
    unknown = [kind for kind in asked if kind not in all_kinds]
    if unknown:
        raise typer.BadParameter(f"there is no fault {unknown[0]!r}; the kinds are {', '.join(all_kinds)}")
    return tuple(kind for kind in all_kinds if kind in asked)


def _facts(report: "SimReport") -> dict[str, Any]:
    return {
        "code": report.code,
        "finding": report.finding,
        "history": report.hash,
        "faults": list(report.kinds),
        "simulated_s": round(report.simulated_s, 3),
        "cpu_s": round(report.cpu_s, 3),
        "counts": report.counts,
        "options": asdict(report.options),
        "replay": replay_command(report.options),
    }


def _tell(report: "SimReport") -> None:
    counts = report.counts
    verdict = "every promise held" if report.code == 0 else report.finding
    typer.echo(
        f"seed {report.options.seed}: {verdict}\n"
        f"  history {report.hash}, {report.simulated_s / 60:.1f} simulated minutes in {report.cpu_s:.1f} s of CPU, "
        f"{counts.get('mail', 0)} mails, {counts.get('turns', 0)} turns, {counts.get('fault', 0)} faults"
        f" ({', '.join(report.kinds) or 'none'})"
    )
    if report.code:
        for event in report.tail:
            typer.echo(f"  {event}")
        typer.echo(f"{report.finding}\nreplay: {replay_command(report.options)}")
