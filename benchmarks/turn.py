"""What a turn costs beside its agent's own work."""

import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import llmturns
from crewlet.adapters.process import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.company.model import PythonRunner, Seat
from crewlet.ports.term import Term
from crewlet.seats.fence import SeatFence
from crewlet.turns.runners import PythonTurns, minimal_env

WORKERS = 25
_BOUND_S = 30.0


async def measure() -> dict[str, Any]:
    """`worker_ready_ms`: from the start of a `python` seat's worker to its first turn being possible, one at a time.

    `python_start_ms` is the bare interpreter, started and waited for in the same minute; `worker_ready_ratio` is one by
    the other. Beside them, the figures of `benchmarks.llmturns`.
    """
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "noop.py").write_text("def run(turn):\n    return None\n")
        pairs = [(await _bare_start_ms(), await _ready_ms(folder)) for _ in range(WORKERS)]
    bare, ready = (statistics.median(each) for each in zip(*pairs, strict=True))
    return {
        "worker_ready_ms": round(ready, 1),
        "python_start_ms": round(bare, 1),
        "worker_ready_ratio": round(ready / bare, 2),
        **await llmturns.measure(),
    }


async def _ready_ms(folder: str) -> float:
    clock = SystemClock()
    turns = PythonTurns(
        Seat("noop", runner=PythonRunner("noop:run", folder)),
        LocalPrograms(),
        clock=clock,
        base_env=minimal_env(os.environ),
    )
    ready = asyncio.Event()
    began = time.perf_counter()
    turns.start(SeatFence(Term("seat:noop", "bench:1", 1), clock, math.inf), ready.set)
    try:
        async with asyncio.timeout(_BOUND_S):
            await ready.wait()
        elapsed_ms = 1000 * (time.perf_counter() - began)
        if not turns.is_ready:
            raise RuntimeError(f"the worker did not load: {turns.trouble}")
    finally:
        await turns.end()
    return elapsed_ms


async def _bare_start_ms() -> float:
    began = time.perf_counter()
    await asyncio.to_thread(subprocess.run, [sys.executable, "-c", "pass"], check=True)
    return 1000 * (time.perf_counter() - began)
