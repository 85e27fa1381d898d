"""The evidence a seat's program leaves of itself, outside the node's control.

One file a seat in a folder that all nodes share, one JSON object a line, one write a line: the order of the lines is
the order in which they were written, whoever wrote them.
"""

import json
import os
import threading
import time
from typing import Any

TICK_S = 0.05
"""Half of what a reader may rely on: a line at least every 0.1 s while the program works."""

_BOOTTIME = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Seconds on the machine's clock that counts suspend and never steps; the same clock for all processes."""
    return time.clock_gettime(_BOOTTIME)


class Witness:
    """Writes `{seat, trigger, run, owner, epoch, wall, boottime, phase}` for one run, or nothing without a folder.

    `trigger` is the ids of the run's mail with a space between; `run` names this process; `phase` is `begin`, `tick`,
    `sent ID` or `end`.
    """

    def __init__(self, file: int | None, facts: dict[str, Any]) -> None:
        self._file = file
        self._facts = facts
        self._is_over = threading.Event()
        self._ticker = threading.Thread(target=self._tick, daemon=True)

    @classmethod
    def begin(cls, folder: str | None, asked: dict[str, Any]) -> "Witness":
        """Write `begin` and tick from now on."""
        seat, term = str(asked["seat"]), asked["term"]
        facts = {
            "seat": seat,
            "trigger": " ".join(str(trigger) for trigger in asked["triggers"]),
            "run": f"{os.getpid()}-{time.time_ns():x}",
            "owner": term["owner"],
            "epoch": term["epoch"],
        }
        file: int | None = None
        if folder:
            os.makedirs(folder, exist_ok=True)
            file = os.open(os.path.join(folder, f"{seat}.jsonl"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        witness = cls(file, facts)
        if file is not None:
            witness._write("begin")
            witness._ticker.start()
        return witness

    def sent(self, message_id: str) -> None:
        """The node took a message of this run under this id."""
        self._write(f"sent {message_id}")

    def close(self, *, is_finished: bool) -> None:
        """The last line: `end` when the work was finished, else one more `tick`. No line comes after it."""
        if self._file is None:
            return
        self._is_over.set()
        self._ticker.join()
        self._write("end" if is_finished else "tick")
        os.close(self._file)
        self._file = None

    def _tick(self) -> None:
        while not self._is_over.wait(TICK_S):
            self._write("tick")

    def _write(self, phase: str) -> None:
        if self._file is None:
            return
        line = {**self._facts, "wall": time.time(), "boottime": boottime(), "phase": phase}
        os.write(self._file, json.dumps(line).encode() + b"\n")
