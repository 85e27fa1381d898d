"""Leaves a daemon that sheds all it could be known by: session, group, parent, and the mark of its program.

Prints the daemon's process id once it is an orphan, and then sleeps until it is ended. The daemon sleeps for 30 s. With
an argument, the program exits at once instead.
"""

import os
import resource
import sys
import time

RLIMIT_LOCKS = 10

if os.fork() == 0:
    os.setsid()
    resource.setrlimit(RLIMIT_LOCKS, (5, 5))
    starter = os.getpid()
    if os.fork() == 0:
        os.setsid()
        while os.getppid() == starter:
            time.sleep(0.001)
        print(os.getpid(), flush=True)
        for number in (0, 1, 2):
            os.close(number)
        os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(120)"], {})
    os._exit(0)
os.wait()
if len(sys.argv) == 1:
    time.sleep(120)
