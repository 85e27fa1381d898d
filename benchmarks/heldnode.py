"""`crewlet node`, as it is, but for how many seats a pass may win: 300 seats would otherwise take six minutes.

`python -m benchmarks.heldnode CONFIG`
"""

import sys

from crewlet.seats import allotment

if __name__ == "__main__":
    # Before anything takes the limit from there.
    setattr(allotment, "CLAIM_LIMIT_PER_SWEEP", 1000)  # noqa: B010 -- it is final for everybody else
    from crewlet.cli import main

    sys.exit(main(["node", "--config", sys.argv[1]]))
