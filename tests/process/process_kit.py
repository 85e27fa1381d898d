"""What the process tests share."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

from crewlet.kit.processes import look_at

PROGRAMS = Path(__file__).parent / "programs"
ENV = {"PATH": os.environ["PATH"]}


def python(name: str, *args: str) -> tuple[str, ...]:
    """The command line of a program of `programs/`."""
    return (sys.executable, str(PROGRAMS / name), *args)


def with_site(name: str) -> dict[str, str]:
    """What to set in an environment so that an interpreter runs the `sitecustomize` of a folder of `programs/`."""
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(PROGRAMS / name), os.environ.get("PYTHONPATH"))))}


def is_running(pid: int) -> bool:
    """Whether a process is there and not dead. Zombies are dead; who buries them is another question."""
    seen = look_at(pid)
    return seen is not None and not seen.is_dead


def children() -> set[int]:
    """Process ids of this process's children, zombies included."""
    everybody = [look_at(int(name)) for name in os.listdir("/proc") if name.isdecimal()]
    return {seen.pid for seen in everybody if seen is not None and seen.ppid == os.getpid()}


async def until(is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > give_up_at:
            raise TimeoutError("not so in time")
        await asyncio.sleep(0.005)
