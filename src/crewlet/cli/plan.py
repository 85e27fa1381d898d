"""`crewlet plan`: who would hold what in a fleet that need not exist, and what a loss would move."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from crewlet.cli.options import Output, OutputOption
from crewlet.cli.printing import print_json, print_table
from crewlet.company.document import load_company
from crewlet.company.model import Seat
from crewlet.kit.refusal import ConfigRefused

if TYPE_CHECKING:
    from crewlet.seats.forecast import Forecast, Loss
    from crewlet.seats.noderow import NodeRow

_NAMES = 6
_ROWS = 40
"""So many names of a list, and rows of a table that grows with the company, are shown without --wide."""


def plan(
    nodes: Annotated[
        str,
        typer.Option(
            "--nodes",
            metavar="NODES",
            help='The fleet, with labels in braces and roles in brackets: "a{zone=eu},b[ingress],c".',
        ),
    ],
    document: Annotated[Path, typer.Argument(metavar="COMPANY", readable=False, help="The company document.")] = Path(
        "company.yaml"
    ),
    lose: Annotated[
        list[str] | None,
        typer.Option("--lose", metavar="NODE", help="Show what the loss of this node moves; several go at once."),
    ] = None,
    wide: Annotated[bool, typer.Option("--wide", help="Show every seat and placement, however many.")] = False,
    output: OutputOption = Output.table,
) -> None:
    """Show who would hold which seats, which seats nobody could run, and what each node's loss would move.

    Nothing is started or asked. How many seats a node may hold is exact. Which ones it gets is decided in a running
    fleet by who asks first; one possible outcome is shown.
    """
    from crewlet.cli.nodespec import read_nodes
    from crewlet.seats import forecast

    rows = read_nodes(nodes)
    gone = _known(lose or [], rows)
    company = load_company(document)
    made = forecast.forecast(rows, company.seats)
    losses = [forecast.lose(made, gone)] if gone else [forecast.lose(made, [row.node_id]) for row in rows]
    if output is Output.json:
        print_json({"company": company.name, **_facts(made, losses)})
    elif gone:
        _tell_loss(made, losses[0], is_wide=wide)
    else:
        _tell_fleet(made, losses, is_wide=wide)


def _known(node_ids: Sequence[str], rows: "Sequence[NodeRow]") -> list[str]:
    known = [row.node_id for row in rows]
    for node_id in node_ids:
        if node_id not in known:
            problem = f"there is no node {node_id!r} among --nodes"
            raise ConfigRefused(problem, where="--lose", remedy=f"the nodes are {_names(known)}")
    return list(dict.fromkeys(node_ids))


def _tell_fleet(made: "Forecast", losses: "Sequence[Loss]", *, is_wide: bool) -> None:
    print_table(
        ("NODE", "LABELS", "SEATS", "AT MOST", "IF IT IS LOST", "HOLDS"),
        [
            (
                row.node_id,
                _names([f"{key}={value}" for key, value in row.labels.items()]),
                len(made.held[row.node_id]),
                made.at_most[row.node_id],
                _in_short(loss),
                _names(made.held[row.node_id]),
            )
            for row, loss in zip(made.rows, losses, strict=True)
        ],
    )
    groups = made.plan.groups
    print()
    _print_rows(
        ("PLACEMENT", "SEATS", "NODES", "EACH AT MOST"),
        [(group.placement, len(group.handles), group.nodes, group.share) for group in groups],
        is_wide=is_wide,
    )
    if is_wide:
        holders = _holders(made)
        goes_to = {handle: node_id for loss in losses for handle, node_id in loss.moves.items()}
        seats = [seat for group in groups for seat in made.seats_of(group)]
        print()
        print_table(
            ("SEAT", "PLACEMENT", "NODE", "IF THAT IS LOST"),
            [(seat.handle, seat.placement, holders.get(seat.handle), goes_to.get(seat.handle)) for seat in seats],
        )
    _tell_nobodys("UNPLACEABLE", made.plan.unplaceable, made.rows, is_wide=is_wide)


def _tell_loss(made: "Forecast", loss: "Loss", *, is_wide: bool) -> None:
    holders, survivors = _holders(made), _survivors(made, loss)
    takes = _counts(loss)
    print_table(
        ("NODE", "SEATS", "TAKES", "THEN HOLDS"),
        [
            (row.node_id, held := len(made.held[row.node_id]), taken := takes.get(row.node_id, 0), held + taken)
            for row in survivors
        ],
        empty="No node is left.",
    )
    if loss.moves:
        print()
        _print_rows(
            ("SEAT", "FROM", "TO"),
            [(handle, holders[handle], node_id) for handle, node_id in loss.moves.items()],
            is_wide=is_wide,
        )
        print(f"\nAfter a crash they run again within the lease TTL and {_after_lease_s(loss):g} s.")
    _tell_nobodys("STRANDED", loss.stranded, survivors, is_wide=is_wide)
    _tell_nobodys("UNPLACEABLE BEFORE", made.plan.unplaceable, made.rows, is_wide=is_wide)


def _tell_nobodys(title: str, seats: Sequence[Seat], rows: "Sequence[NodeRow]", *, is_wide: bool) -> None:
    """The seats that none of these nodes may run, a line a placement; nothing when there are none."""
    from crewlet.seats.forecast import why_unplaceable

    by_placement: dict[Any, list[str]] = {}
    for seat in seats:
        by_placement.setdefault(seat.placement, []).append(seat.handle)
    if by_placement:
        print()
        _print_rows(
            (title, "PLACEMENT", "WHY", "SEATS"),
            [
                (
                    len(handles),
                    placement,
                    why_unplaceable(placement, rows),
                    ", ".join(handles) if is_wide else _names(handles),
                )
                for placement, handles in by_placement.items()
            ],
            is_wide=is_wide,
        )


def _print_rows(header: Sequence[str], rows: Sequence[Sequence[object]], *, is_wide: bool) -> None:
    shown = rows if is_wide or len(rows) <= _ROWS else rows[: _ROWS // 2]
    print_table(header, shown)
    if len(shown) < len(rows):
        print(f"... and {len(rows) - len(shown):,} more (--wide or -o json shows them)")


def _facts(made: "Forecast", losses: "Sequence[Loss]") -> dict[str, Any]:
    return {
        "nodes": [
            {
                "id": row.node_id,
                "labels": dict(row.labels),
                "roles": sorted(row.roles),
                "at_most": made.at_most[row.node_id],
                "seats": list(made.held[row.node_id]),
            }
            for row in made.rows
        ],
        "placements": [
            {"placement": str(group.placement), "seats": len(group.handles), "nodes": group.nodes, "each": group.share}
            for group in made.plan.groups
        ],
        "unplaceable": _nobodys(made.plan.unplaceable, made.rows),
        "losses": [
            {
                "nodes": list(loss.nodes),
                "moves": dict(loss.moves),
                "stranded": _nobodys(loss.stranded, _survivors(made, loss)) if loss.stranded else [],
                "after_lease_s": _after_lease_s(loss),
            }
            for loss in losses
        ],
    }


def _nobodys(seats: Sequence[Seat], rows: "Sequence[NodeRow]") -> list[dict[str, str]]:
    from crewlet.seats.forecast import why_unplaceable

    reasons = {placement: why_unplaceable(placement, rows) for placement in {seat.placement for seat in seats}}
    return [{"handle": seat.handle, "placement": str(seat.placement), "why": reasons[seat.placement]} for seat in seats]


def _after_lease_s(loss: "Loss") -> float:
    """How long after its lease has lapsed the last seat runs, at most: the wait for a sweep, then a sweep each four."""
    from crewlet.seats.allotment import SWEEP_INTERVAL_S

    return SWEEP_INTERVAL_S * (1 + loss.sweeps) if loss.moves else 0.0


def _in_short(loss: "Loss") -> str:
    said: list[str] = []
    if loss.moves:
        takers = list(_counts(loss))
        where = ", ".join(takers) if len(takers) <= 3 else f"{len(takers)} nodes"
        said.append(f"{len(loss.moves)} to {where}")
    if loss.stranded:
        said.append(f"{len(loss.stranded)} to nobody")
    return "; ".join(said) or "nothing moves"


def _counts(loss: "Loss") -> Mapping[str, int]:
    counts: dict[str, int] = {}
    for node_id in loss.moves.values():
        counts[node_id] = counts.get(node_id, 0) + 1
    return counts


def _holders(made: "Forecast") -> dict[str, str]:
    return {handle: node_id for node_id, handles in made.held.items() for handle in handles}


def _survivors(made: "Forecast", loss: "Loss") -> "list[NodeRow]":
    return [row for row in made.rows if row.node_id not in loss.nodes]


def _names(names: Sequence[str]) -> str:
    if len(names) <= _NAMES:
        return ", ".join(names)
    return f"{', '.join(names[: _NAMES - 1])} and {len(names) - _NAMES + 1:,} more"
