"""What the processes of a seat leave behind: lines, each a single write, in one file a seat that all nodes share.

The order of the lines is the order of what happened. A process that starts looks first whether one of its kind that
stands there already is still running.
"""

import json
import os
from pathlib import Path
from typing import Any


class Witness:
    """One process of a seat; `kind` is what it is, `worker` or `tool`."""

    def __init__(self, kind: str, folder: str, seat: str) -> None:
        self._file = Path(folder) / f"{seat}.jsonl"
        self._who = {"kind": kind, "pid": os.getpid(), "born": _born(os.getpid())}
        self._fd = os.open(self._file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def up(self, **more: Any) -> None:
        """It has started."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()]
        mine = {(line["pid"], line["born"]) for line in lines if line["kind"] == self._who["kind"]}
        self.note("up", still_running=[pid for pid, born in mine if _born(pid) == born], **more)

    def note(self, phase: str, **more: Any) -> None:
        os.write(self._fd, json.dumps(self._who | {"phase": phase} | more).encode() + b"\n")


def _born(pid: int) -> str | None:
    """When a process was started, by the machine's count; None for one that is not there, or dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    return None if fields[0] in (b"Z", b"X") else fields[19].decode()
