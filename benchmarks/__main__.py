"""`python -m benchmarks NAME... --json`."""

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from typing import Any, cast

import uvloop

from benchmarks.worlds import NAMES as WORLDS
from benchmarks.worlds import Name, World
from crewlet.adapters.system.logs import configure_logs

NAMES = ("mail", "start", "claim", "renew", "view", "handoff", "takeover", "sweep", "plan", "memory", "sim", "turn")

Figures = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, all without one: {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    parser.add_argument("--only", choices=WORLDS, help="of the figures by number of replicas, only these")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    figures: Figures = {}
    for name in arguments.names or NAMES:
        _run(name, (arguments.only,) if arguments.only else WORLDS, figures)
    if arguments.json:
        print(json.dumps(figures))
    return 0


def _run(name: str, worlds: Sequence[Name], figures: Figures) -> None:
    """Run one benchmark and merge its figures in. One that has `measure_in` is taken in each world."""
    module = importlib.import_module(f"benchmarks.{name}")
    configure_logs(level="error")
    if not hasattr(module, "measure_in"):
        print(f"# {name}", file=sys.stderr)
        result = cast("Figures", uvloop.run(module.measure()))
        _show(result)
        figures |= result
        return
    for world in worlds:
        print(f"# {name} {world}", file=sys.stderr)
        result = uvloop.run(_measure_in(module, world))
        _show(result)
        figures.setdefault(world, {}).update(result)


async def _measure_in(module: Any, world: Name) -> Figures:
    async with World.open(world) as opened:
        return await module.measure_in(opened)


def _show(result: Figures) -> None:
    for key, value in result.items():
        print(f"{key:32} {value}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
