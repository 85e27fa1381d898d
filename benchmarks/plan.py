"""Dividing a large company over a large fleet: the arithmetic of one sweep."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

from crewlet.company.model import Placement, Seat
from crewlet.seats.placement import NodeRow, plan

NODES = 100
SEATS = 10_000
ROUNDS = 31


async def measure() -> dict[str, Any]:
    """`plan_ms`: the median of one plan when every seat has a placement of its own; `plan_few_ms`: with ten placements.

    Counted is the time of this thread's own work, so that what else a machine does makes no figure. Each placement
    asks for two labels.
    """
    rows = [
        NodeRow(f"node-{n}", labels={"rack": f"r{n}", "zone": f"z{n % 10}"}, seats_held=SEATS // NODES)
        for n in range(NODES)
    ]
    return {"plan_ms": _median_ms(rows, _company(SEATS)), "plan_few_ms": _median_ms(rows, _company(10))}


def _company(placements: int) -> list[Seat]:
    kinds = [Placement(labels=(("rack", f"r{n}"), ("zone", f"z{n % 10}"))) for n in range(placements)]
    return [Seat(f"seat-{number}", placement=kinds[number % placements]) for number in range(SEATS)]


def _median_ms(rows: Sequence[NodeRow], seats: Sequence[Seat]) -> float:
    took: list[float] = []
    for _ in range(ROUNDS):
        begun = time.thread_time()
        nodes = plan(rows, seats, rows[0]).nodes
        took.append(time.thread_time() - begun)
        if nodes != NODES:
            raise RuntimeError("the plan counts other nodes")
    return round(statistics.median(took) * 1000, 1)
