"""The command line: one file a noun.

Belongs here: arguments, printing, exit codes.
Does not: decisions and I/O that the node or wiring already has.
"""

import signal
import sys
from collections.abc import Sequence
from types import FrameType

OK, FAILED, USAGE, WEDGED, REFUSED, INTERRUPTED = 0, 1, 2, 75, 78, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code.

    0 done, 1 failed, 2 wrong usage, 75 the node was wedged, 78 configuration refused, 130 interrupted; `sim` has
    more of its own. What a user can cause is told in a sentence on standard error.
    """
    args = list(sys.argv[1:] if argv is None else argv)
    if args[:1] in (["up"], ["up-plan"], ["node"]):
        # Whoever asks for stacks too early is told nothing; the default would end what is starting.
        signal.signal(signal.SIGUSR2, _too_early)
    if args[:1] == ["up"]:
        # The parent process of a node stays small: it imports the standard library and nothing else.
        from crewlet.supervisor import parent

        return parent.main(args[1:])
    from crewlet.cli.run import run

    return run(args)


def _too_early(_number: int, _frame: FrameType | None) -> None:
    pass
