"""The fleet simulator: simulated hours a CPU minute, with every checker on."""

import asyncio
import statistics
from collections.abc import Sequence
from typing import Any

from crewlet.testing.sim import SimOptions, simulate

SEEDS: Sequence[int] = (1, 2, 3, 4, 5, 6)
NODES, SEATS, MINUTES = 5, 40, 10.0


async def measure() -> dict[str, Any]:
    """`sim_hours_per_cpu_min`: all seeds together, five nodes and forty seats, the faults that each seed chooses.

    `sim_hours_per_cpu_min_least` and `_most` are the seeds' own; faults and lease TTL differ.
    """
    # A simulation has a loop of its own, and so wants a thread of its own.
    runs = [await asyncio.to_thread(run, seed) for seed in SEEDS]
    rates = [simulated_s / 60.0 / cpu_s for simulated_s, cpu_s in runs]
    total_s, cpu_s = sum(run[0] for run in runs), sum(run[1] for run in runs)
    return {
        "sim_hours_per_cpu_min": round(total_s / 60.0 / cpu_s, 2),
        "sim_hours_per_cpu_min_least": round(min(rates), 2),
        "sim_hours_per_cpu_min_median": round(statistics.median(rates), 2),
        "sim_hours_per_cpu_min_most": round(max(rates), 2),
    }


def run(seed: int) -> tuple[float, float]:
    """One simulation: simulated seconds, and seconds of CPU.

    Raises:
        RuntimeError: a promise was broken, so that the figure would tell of half a run.
    """
    report = simulate(SimOptions(seed, nodes=NODES, seats=SEATS, minutes=MINUTES))
    if report.code:
        raise RuntimeError(f"seed {seed}: {report.finding}")
    return report.simulated_s, report.cpu_s
