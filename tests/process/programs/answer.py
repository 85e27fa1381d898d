"""A seat's program, as small as one gets: reads its mail, says where it is, replies to the first writer, ends.

With arguments it misbehaves instead; each argument is one step. `docs/command-protocol.md` describes the protocol.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any


def say(**message: Any) -> None:
    print(json.dumps(message), flush=True)


def ask(**message: Any) -> Any:
    say(**message)
    return json.loads(sys.stdin.readline())


def step(name: str, start: dict[str, Any]) -> None:
    verb, _, argument = name.partition(":")
    match verb:
        case "echo":  # what it was given, and where it runs
            say(progress=json.dumps({"start": start, "env": dict(os.environ), "cwd": os.getcwd()}))
        case "send":
            say(progress=json.dumps(ask(send={"to": argument, "body": "hello"})))
        case "ask":
            say(progress=json.dumps(ask(**json.loads(argument))))
        case "say":
            print(argument, flush=True)
        case "stray":
            print("Traceback-ish words on stderr", file=sys.stderr, flush=True)
        case "outcome":
            say(outcome=argument, detail="as asked")
        case "exit":
            sys.exit(int(argument))
        case "until":  # such a file is there
            while not os.path.exists(argument):
                time.sleep(0.01)
        case "sleep":
            time.sleep(float(argument))
        case "kill":
            os.kill(os.getpid(), int(argument))
        case "close":
            os.close(1)
        case "flood":
            while True:
                print("x" * 1_000_000, end="", flush=True)
        case "leave":  # a helper that holds our output open, in a session of its own
            child = subprocess.Popen(["sleep", "60"], start_new_session=True)
            say(progress=str(child.pid))
        case "mark":
            with open(argument, "w") as file:
                file.write(str(os.getpid()))
        case _:
            raise ValueError(name)


def main() -> None:
    start = json.loads(sys.stdin.readline())
    if sys.argv[1:]:
        for name in sys.argv[1:]:
            step(name, start)
        return
    say(progress=f"working on {len(start['mail'])} messages")
    writer = start["mail"][0]["source"].removeprefix("seat:")
    answer = ask(send={"to": writer, "body": "done"})
    say(outcome="delivered", detail=f"sent {answer['sent']['id']}")


main()
