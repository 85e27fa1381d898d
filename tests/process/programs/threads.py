"""A process whose first thread is gone while others live on: dead to look at, and not to be reaped.

Prints a line before the first thread goes. The others sleep for 30 s.
"""

import ctypes
import os
import platform
import threading
import time

for _ in range(3):
    threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
os.write(1, b"ready\n")
ctypes.CDLL(None).syscall({"x86_64": 60}.get(platform.machine(), 93), 0)
