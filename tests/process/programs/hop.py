"""A fork storm that never rests: each process starts the next in a session of its own, and exits.

Every descendant is an orphan within a moment, in no group and no session that anybody knew before. Prints one line when
all lines of descent are under way. Stops by itself after 30 s, so that a test that fails leaves nothing behind.
"""

import os
import sys
import time


def hop(until: float) -> None:
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        os.setsid()
    os._exit(0)


def main(width: int) -> None:
    until = time.monotonic() + 30
    for _ in range(width):
        if os.fork() == 0:
            hop(until)
    print("under way", flush=True)
    time.sleep(30)


main(int(sys.argv[1]))
