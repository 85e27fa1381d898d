"""What the process tests share."""

import asyncio
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

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
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat[stat.rindex(b")") + 2 :].split()[0] not in (b"Z", b"X")


def children() -> set[int]:
    """Process ids of this process's children, zombies included."""
    me = str(os.getpid()).encode()
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            stat = path.read_bytes()
        except OSError:
            continue
        if stat[stat.rindex(b")") + 2 :].split()[1] == me:
            found.add(int(path.parent.name))
    return found


async def until(is_so: Callable[[], bool], *, within_s: float = 30.0) -> None:
    give_up_at = time.monotonic() + within_s
    while not is_so():
        if time.monotonic() > give_up_at:
            raise TimeoutError("not so in time")
        await asyncio.sleep(0.005)
