"""Leaves a daemon behind, the thorough way, and exits with 0: two forks, a new session, an empty environment.

Prints the daemon's process id. The daemon sleeps for 30 s.
"""

import os
import sys

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        for number in (0, 1, 2):
            os.close(number)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(120)"], {})
    os._exit(0)
os.wait()
