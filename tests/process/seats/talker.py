"""A seat that asks its colleagues, answers what it is asked, and notes what it is told: as a function or as a program.

Ordinary mail has it ask each colleague of `ASKS`. A question it answers, and then tries to answer once more. What
became of each call goes to `{seat}.jsonl`; then it stands still for as long as `{seat}.hold` is there.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER, SEAT = Path(os.environ["EVIDENCE"]), os.environ["CREWLET_SEAT"]
HOLD = FOLDER / f"{SEAT}.hold"

Call = tuple[str, dict[str, str]]


def _note(epoch: int, phase: str, **more: Any) -> None:
    line = json.dumps({"phase": phase, "epoch": epoch, **more}).encode() + b"\n"
    file = os.open(FOLDER / f"{SEAT}.jsonl", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, line)
    os.close(file)


def _plays(epoch: int, mails: Sequence[Mapping[str, Any]]) -> Generator[Call, tuple[str, bool], None]:
    """Yields each call, and is sent the text of what came back and whether that is an error."""
    for mail in mails:
        match mail["type"]:
            case "a2a_request":
                channel = mail["payload"]["channel"]
                for phase, text in (("answered", f"{SEAT} at epoch {epoch}"), ("again", "something else")):
                    said, is_error = yield "answer", {"text": text, "channel": channel}
                    _note(epoch, phase, channel=channel, text=text, said=said, is_error=is_error)
            case "a2a_message":
                _note(epoch, "heard", channel=mail["payload"]["channel"], source=mail["source"], text=mail["body"])
            case _:
                for to in os.environ["ASKS"].split():
                    said, is_error = yield "ask", {"to": to, "question": "how many?"}
                    _note(epoch, "asked", channel=said.rpartition(" ")[2], to=to, is_error=is_error)


async def run(turn: Any) -> str:
    mails = [
        {"type": mail.type, "payload": mail.payload, "source": mail.source, "body": mail.body} for mail in turn.mail
    ]
    play = _plays(turn.term.epoch, mails)
    try:
        call = next(play)
        while True:
            result = await turn.call(*call)
            call = play.send((result.text, result.is_error))
    except StopIteration:
        while HOLD.exists():
            await asyncio.sleep(0.05)
    return "done"


def main() -> None:
    start = json.loads(sys.stdin.readline())
    play = _plays(start["term"]["epoch"], start["mail"])
    try:
        tool, arguments = next(play)
        while True:
            print(json.dumps({"call": {"tool": tool, "arguments": arguments}}), flush=True)
            result = json.loads(sys.stdin.readline())["result"]
            tool, arguments = play.send((result["text"], result["is_error"]))
    except StopIteration:
        while HOLD.exists():
            time.sleep(0.05)
    print(json.dumps({"outcome": "delivered"}), flush=True)


if __name__ == "__main__":
    main()
