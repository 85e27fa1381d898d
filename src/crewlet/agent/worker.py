"""The process of one `python` seat: it loads the seat's function once and calls it for each turn.

`python -m crewlet.agent.worker MODULE:FUNCTION`, started by the node in the folder that the module is in. What it says
to its node beside the protocol of programs: `ready` once the function is there, or `broken` and why not; and `raised`
in place of an outcome. A plain function runs in the main thread; an `async def` in one event loop that all turns of
the process share.
"""

import faulthandler
import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Awaitable, Callable
from typing import Any

from crewlet.agent.link import Link, Message
from crewlet.agent.turn import SyncTurn, Turn, plain

_DETAIL_CHARS = 500
_TIDY_S = 1.0


def main() -> int:
    """Serve turns until the node is gone, or the function ends the process."""
    faulthandler.enable()
    link = Link.take_over()
    try:
        function = load(sys.argv[1])
    except BaseException as error:  # noqa: BLE001 -- whatever the user's module does while it is loaded
        traceback.print_exc()
        link.tell({"broken": {"detail": described(error)}})
        return 1
    link.tell({"ready": {"v": 1}})
    link.listen()
    work = _asynchronous(function) if is_async(function) else _plain(function)
    home = os.getpid()
    while True:
        ending, goes_on = work(link, link.next_turn())
        if os.getpid() != home:
            os._exit(0)  # a fork of the worker came back from the function; it is nobody's seat
        link.end_turn(ending)
        if not goes_on:
            return 1


def load(target: str) -> Callable[[Any], Any]:
    """The function that `module:function` names, looked for in the working folder first.

    Raises:
        Exception: whatever the module raises; TypeError when it is no function.
    """
    sys.path.insert(0, os.getcwd())
    name, _, path = target.partition(":")
    found: Any = importlib.import_module(name)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"{target} is a {type(found).__name__}, not a function")
    return found


def described(error: BaseException) -> str:
    """An exception in one line, with the place in the user's code."""
    said = " ".join("".join(traceback.format_exception_only(error)).split())
    place = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in place if not _is_ours(frame.filename)]
    where = f" ({os.path.basename(own[-1].filename)}:{own[-1].lineno})" if own else ""
    return plain(said)[:_DETAIL_CHARS] + plain(where)


_Work = Callable[[Link, Message], tuple[Message, bool]]
"""Works one turn: what to tell the node of its end, and whether this process can go on."""


def _plain(function: Callable[[Any], Any]) -> _Work:
    def work(link: Link, start: Message) -> tuple[Message, bool]:
        turn = SyncTurn(link, start)
        return _ending(turn, lambda: function(turn))

    return work


def _asynchronous(function: Callable[[Any], Awaitable[Any]]) -> _Work:
    import asyncio

    runner = asyncio.Runner()

    async def whole(turn: Turn) -> object:
        try:
            return await function(turn)
        finally:
            # What it left running would act for a seat whose turn is over.
            left = asyncio.all_tasks() - {asyncio.current_task()}
            for task in left:
                task.cancel()
            if left:
                await asyncio.wait(left, timeout=_TIDY_S)

    def work(link: Link, start: Message) -> tuple[Message, bool]:
        turn = Turn(link, start)
        return _ending(turn, lambda: runner.run(whole(turn)))

    return work


def _ending(turn: Turn | SyncTurn, call: Callable[[], object]) -> tuple[Message, bool]:
    try:
        return turn.ending(call()), True
    except BaseException as error:  # noqa: BLE001 -- the user's function may raise what it likes
        return raised(error)


def raised(error: BaseException) -> tuple[Message, bool]:
    """What the node is told of a function that raised, and whether this process can go on."""
    traceback.print_exception(error)
    # What is no Exception asks the process to end, and may have broken its event loop.
    goes_on = isinstance(error, Exception)
    return {"raised": {"detail": described(error), "ends": not goes_on}}, goes_on


def is_async(function: Callable[[Any], Any]) -> bool:
    """Whether what it returns is awaited."""
    called = function if inspect.isroutine(function) else getattr(function, "__call__", function)  # noqa: B004
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(called)


def _is_ours(filename: str) -> bool:
    return filename.startswith(("<frozen", os.path.dirname(__file__))) or filename == importlib.__file__


if __name__ == "__main__":
    # Not `sys.exit`: threads of the user's would keep a process whose turn is over.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
