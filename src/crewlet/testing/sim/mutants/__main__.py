"""Hunt planted bugs: `python -m crewlet.testing.sim.mutants`."""

import argparse
import sys
from collections.abc import Sequence

from crewlet.testing.sim.mutants import hunt, names
from crewlet.testing.sim.world import SimOptions


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt each planted bug; 1 when one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all unless named")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to try for each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seats", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--faults", default=None)
    asked = parser.parse_args(arguments)
    faults = tuple(asked.faults.split(",")) if asked.faults else None
    options = SimOptions(0, nodes=asked.nodes, seats=asked.seats, minutes=asked.minutes, faults=faults)
    missed = 0
    for name in asked.names or names():
        report = hunt(name, options, range(asked.first, asked.first + asked.seeds))
        missed += report is None
        text = "not caught" if report is None else f"seed {report.options.seed}: {report.code} {report.finding}"
        print(f"{name:<36} {text}"[:230], flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
