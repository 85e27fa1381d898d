"""A seat's program that leaves evidence of each run: lines, each a single write, in a file that all nodes share.

It works for as long as the file `{seat}.hold` is beside them. Mail under the id `poison` has it kill its node.
"""

import json
import os
import signal
import sys
import time

start = json.loads(sys.stdin.readline())
place = os.path.join(sys.argv[1], start["seat"])
file = os.open(f"{place}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(phase: str) -> None:
    term = start["term"]
    line = {"phase": phase, "owner": term["owner"], "epoch": term["epoch"], "triggers": start["triggers"]}
    line["at"] = time.time()  # what the nodes' logs are stamped with
    os.write(file, json.dumps(line).encode() + b"\n")


note("begin")
if "poison" in start["triggers"]:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)
while os.path.exists(f"{place}.hold"):
    time.sleep(0.05)
    note("tick")
note("end")
print(json.dumps({"outcome": "delivered"}))
