"""A process that serves does not look through what it began with again and again."""

import subprocess
import sys

_PROGRAM = """
import gc
from crewlet.adapters.system.collector import calm_collector

class Ring:
    def __init__(self):
        self.me = self

passes = []
gc.callbacks.append(lambda phase, info: passes.append(info["generation"]) if phase == "start" else None)
calm_collector()
assert gc.isenabled() and gc.get_freeze_count() > 1_000, gc.get_freeze_count()
del passes[:]
for _ in range(9_000):
    Ring()
assert passes == [], passes
for _ in range(200_000):
    Ring()
assert 0 < len(passes) < 50, passes
kept = [one for one in gc.get_objects() if isinstance(one, Ring)]
assert len(kept) < 60_000, len(kept)
"""


def test_the_collector_of_a_serving_process_looks_seldom_and_still_frees_cycles() -> None:
    done = subprocess.run([sys.executable, "-c", _PROGRAM], check=False, capture_output=True, text=True, timeout=60.0)
    assert done.returncode == 0, done.stderr
