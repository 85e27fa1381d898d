"""Functions of `python` seats, each named by what it does. What a mail says is what it is told to do with."""

import asyncio
import ctypes
import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from crewlet.agent import Fenced, Outcome, Refused, SyncTurn, Turn

CALLS = itertools.count(1)


def plain(turn: SyncTurn) -> Outcome:
    turn.progress(f"call {next(CALLS)} in {os.getpid()}")
    mail = turn.mail[0]
    assert mail.writer is not None
    sent = turn.send(mail.writer, f"got {mail.body}")
    turn.usage("test-model", 10, 5)
    turn.term.check()
    return Outcome("delivered", f"{sent} at {turn.term.epoch}")


async def asynchronous(turn: Turn) -> str:
    turn.progress(f"call {next(CALLS)} in {os.getpid()}")
    first = turn.call("add", {"a": 1, "b": 2})
    second = turn.call("fail")
    answers = await asyncio.gather(first, second, turn.term.check())
    try:
        await turn.send("nobody", "x")
    except Refused as refused:
        return f"{answers[0].text} {answers[1].is_error} {refused}"
    return "sent"


def nothing(turn: SyncTurn) -> None:
    del turn


def wrong(turn: SyncTurn) -> dict[str, int]:
    return {"mails": len(turn.mail)}


def raises(turn: SyncTurn) -> None:
    raise ValueError(f"no use \ud800 for {turn.mail[0].body}")


def leaves(turn: SyncTurn) -> None:
    sys.exit(0)


def dies(turn: SyncTurn) -> None:
    print("about to die", flush=True)
    os._exit(int(turn.mail[0].body))


def mutters(turn: SyncTurn) -> None:
    """Says its mail on standard error; without a body it ends its process and says nothing."""
    if not turn.mail[0].body:
        os._exit(4)
    print(turn.mail[0].body, file=sys.stderr, flush=True)


def aborts(turn: SyncTurn) -> None:
    os.kill(os.getpid(), signal.SIGSEGV)


def prints(turn: SyncTurn) -> str:
    print('{"outcome": "failed"}')
    os.write(1, b'{"outcome": "failed"}\n')
    subprocess.run(["sh", "-c", 'cat; echo \'{"outcome": "failed"}\''], check=True)
    sys.stdout.write("x" * 10_000_000)
    return "unharmed"


def huge(turn: SyncTurn) -> str:
    try:
        turn.send("bob", "x" * 10_000_000)
    except Refused as refused:
        return str(refused)
    return "sent"


def chatters(turn: SyncTurn) -> None:
    while True:
        turn.progress("x" * 2_000)


def waits(turn: SyncTurn) -> None:
    turn.progress(f"waiting in {os.getpid()}")
    time.sleep(600)


def holds_the_lock(turn: SyncTurn) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    turn.progress(str(child.pid))
    ctypes.PyDLL(None).sleep(600)


async def checks(turn: Turn) -> str:
    turn.progress("checking")
    while True:
        await turn.term.check()
        await asyncio.sleep(0.01)


def forks(turn: SyncTurn) -> str:
    if os.fork() == 0:
        try:
            turn.send("bob", "from a fork")
        except RuntimeError as error:
            Path(turn.mail[0].body).write_text(str(error))
        return "two of us"
    os.wait()
    return "one of us"


_KEPT: list[SyncTurn] = []


def too_late(turn: SyncTurn) -> str:
    """The second turn tries to act through the first."""
    _KEPT.append(turn)
    if len(_KEPT) == 1:
        return "kept"
    try:
        _KEPT[0].send("bob", "late")
    except Fenced as fenced:
        return str(fenced)
    return "sent"


async def leaves_a_task(turn: Turn) -> str:
    async def later() -> None:
        await asyncio.sleep(0.05)
        turn.progress("still here")

    asyncio.get_running_loop().create_task(later())
    return "done"


def leaves_a_thread(turn: SyncTurn) -> str:
    def chatter() -> None:
        try:
            while True:
                turn.progress("still here")
        except Fenced:
            pass

    threading.Thread(target=chatter).start()
    return "done"


class Handler:
    async def __call__(self, turn: Turn) -> str:
        return f"an object, in {Path.cwd().name}"


handler = Handler()
a_number = 7
