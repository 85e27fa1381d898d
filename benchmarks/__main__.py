"""`python -m benchmarks NAME... --json`."""

import argparse
import importlib
import json
import sys
from collections.abc import Callable, Coroutine
from typing import Any, cast

import uvloop

NAMES = ("mail", "start")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which to run, all without one: {', '.join(NAMES)}")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    unknown = [name for name in arguments.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {unknown[0]!r}; there are {', '.join(NAMES)}")
    figures: dict[str, Any] = {}
    for name in arguments.names or NAMES:
        print(f"# {name}", file=sys.stderr)
        measure = cast(
            "Callable[[], Coroutine[Any, Any, dict[str, Any]]]", importlib.import_module(f"benchmarks.{name}").measure
        )
        result = uvloop.run(measure())
        figures |= result
        for key, value in result.items():
            print(f"{key:32} {value}", file=sys.stderr)
    if arguments.json:
        print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
