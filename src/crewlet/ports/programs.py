"""Operating-system processes that work for a seat."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from crewlet.ports.errors import CrewletError


class ProgramNotStarted(CrewletError):
    """The program could not be started: not found, not executable, or its folder is missing. Says which."""


class ProgramUnproven(CrewletError):
    """It could not be proven that every process of the program has ended. Names the process ids left."""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """What to run.

    Attributes:
        argv: the program and its arguments; no shell is involved.
        env: the whole environment of the child. Nothing of this process's environment is added.
        cwd: its working folder; None is this process's.
        max_line_bytes: a longer line of output ends the program's output with an `OutputFlood`.
        max_output_bytes: more output than this in all ends it likewise.
    """

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str | None = None
    max_line_bytes: int = 1_048_576
    max_output_bytes: int = 16_777_216


class OutputFlood(CrewletError):
    """The program wrote a line or a total beyond its limit."""


class Program(Protocol):
    """One running program and whatever it started."""

    @property
    def pid(self) -> int: ...

    async def write_line(self, line: bytes) -> None:
        """Write a line (the newline is added) to its standard input. A closed input is no error."""
        ...

    def close_input(self) -> None: ...

    def lines(self) -> AsyncIterator[bytes]:
        """Lines of its standard output, without the newline, until it closes it.

        Raises:
            OutputFlood: a limit of the spec was passed.
        """
        ...

    def error_bytes(self) -> int:
        """How much it has written to its standard error by now. Never raises."""
        ...

    def error_tail(self, since: int = 0) -> str:
        """The last 2,000 bytes or so of its standard error, as text. Never raises.

        Args:
            since: nothing from before the reading of `error_bytes` that was this.
        """
        ...

    async def wait(self) -> int:
        """The exit code of the program itself; minus the signal number when a signal ended it."""
        ...

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End the program and every process that it started, new sessions and double forks included.

        With a grace the program itself gets SIGTERM first. Returns when every process was *seen* to end.

        Raises:
            ProgramUnproven: some are left; a further call tries again.

        Cancellation: the kill has been sent; the proof is missing.
        """
        ...


class Programs(Protocol):
    """Starts programs."""

    async def spawn(self, spec: ProgramSpec) -> Program:
        """Start a program in a process group of its own. It dies with this process.

        Raises:
            ProgramNotStarted: it could not be started.
        """
        ...

    async def look(self, spec: ProgramSpec) -> None:
        """Look whether a program seems to be there, and start nothing.

        Raises:
            ProgramNotStarted: it could not be started now. One that passes may fail to start all the same.
        """
        return
