"""A process whose loops have stopped turning leaves, whatever stopped them."""

import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest

pytestmark = pytest.mark.process

_LIMIT_S = 30.0

_NODE = """
import asyncio, re, sys, time
from crewlet.kit.beats import Beats
from crewlet.supervisor.watchdog import Watchdog

async def turn(beat, seconds):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        beat.stamp()
        await asyncio.sleep(0.05)

async def main(how):
    beats = Beats(time.monotonic, 4.0)
    beat = beats.of("heartbeat")
    with Watchdog(beats.worst, threshold_s=beats.threshold_s, poll_s=beats.beat_s, dies_at_thaw=True):
        await turn(beat, 0.3)
        print("beating", flush=True)
        if how == "blocked":
            time.sleep(60)
        elif how == "lock held":
            re.match(r"(a+)+$", "a" * 64 + "b")
        elif how == "stopped":
            await turn(beat, 60)
        elif how == "loop ended":
            beat.stop()
            time.sleep(5.0)
    print("left in peace", flush=True)
    time.sleep(8.0)

asyncio.run(main(sys.argv[1]))
"""


@contextmanager
def node(how: str) -> Generator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-c", _NODE, how], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == "beating\n"
        yield process
    finally:
        process.kill()
        process.communicate()


def test_a_blocked_loop_ends_with_75_and_one_line() -> None:
    with node("blocked") as process:
        out, err = process.communicate(timeout=_LIMIT_S)
        assert (process.returncode, out) == (75, "")
        (line,) = err.splitlines()
        assert "watchdog: the heartbeat loop has not turned for " in line and "exiting with code 75" in line


def test_a_held_interpreter_lock_ends_with_all_stacks() -> None:
    with node("lock held") as process:
        _, err = process.communicate(timeout=_LIMIT_S)
        assert process.returncode == 1
        assert "Timeout" in err and "re.match" not in err and "in main" in err


def test_a_process_that_was_frozen_past_the_threshold_dies_at_the_thaw_before_it_runs_a_line() -> None:
    with node("stopped") as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(9.0)  # past the timer, which lasts four looks of the watcher longer than the threshold
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=_LIMIT_S)
        assert process.returncode in (-signal.SIGALRM, 1) and out == ""


def test_a_short_freeze_is_survived_and_a_loop_that_ended_is_not_judged() -> None:
    with node("loop ended") as process:
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        out, err = process.communicate(timeout=_LIMIT_S)
        assert (process.returncode, out, err) == (0, "left in peace\n", "")
