"""`crewlet node`, as it is, but that SIGUSR1 blocks its loop for good: in a call that lets other threads run, or in one
that holds the interpreter's lock.

`python -m benchmarks.wedgednode CONFIG loop|gil`
"""

import re
import signal
import sys
import time

if __name__ == "__main__":
    from crewlet.cli import main

    def wedge(*_: object) -> None:
        if sys.argv[2] == "gil":
            re.match(r"(a+)+$", "a" * 64 + "b")
        time.sleep(1e6)

    signal.signal(signal.SIGUSR1, wedge)
    sys.exit(main(["node", "--config", sys.argv[1]]))
