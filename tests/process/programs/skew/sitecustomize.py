"""Clocks that can be put forward and back, for a process that is started with this folder on its path.

The file that SKEW names holds two numbers of seconds: what the wall clock is ahead, and what CLOCK_BOOTTIME is. The
machine's own clocks, and CLOCK_MONOTONIC, stay as they are: a step of the wall clock moves the first alone, a suspend
of the machine both.
"""

import os
import time
from datetime import UTC, datetime, timedelta

from crewlet.adapters.system.clock import SystemClock

_clock_gettime, _time = time.clock_gettime, time.time


def _ahead() -> tuple[float, float]:
    try:
        with open(os.environ["SKEW"]) as file:
            wall, boot = file.read().split()
    except (OSError, ValueError):
        return 0.0, 0.0
    return float(wall), float(boot)


def _skewed_gettime(clock_id: int) -> float:
    ahead = _ahead()[1] if clock_id == time.CLOCK_BOOTTIME else 0.0
    return _clock_gettime(clock_id) + ahead


def _skewed_now(self: SystemClock) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=_ahead()[0])


time.clock_gettime = _skewed_gettime
time.time = lambda: _time() + _ahead()[0]
SystemClock.now = _skewed_now
