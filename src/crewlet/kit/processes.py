"""What the kernel says of a process of this machine at this moment, by its `/proc`. Linux."""

import os
from typing import Final, NamedTuple

_MOST_BYTES: Final = 1024


class ProcessLine(NamedTuple):
    """One line of `/proc/[pid]/stat`. `started` is in clock ticks since boot; with the id it names one process."""

    pid: int
    ppid: int
    group: int
    session: int
    state: str
    name: str
    started: int

    @property
    def is_dead(self) -> bool:
        return self.state in "ZX"

    @property
    def stands_still(self) -> bool:
        """By a signal, or under a debugger."""
        return self.state in "Tt"


def look_at(pid: int) -> ProcessLine | None:
    """None for a process that is not there any more, or is nobody's business here.

    Raises:
        OSError: it cannot be seen, as without a free descriptor; that says nothing of the process.
    """
    try:
        handle = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        text = os.read(handle, _MOST_BYTES)
    except ProcessLookupError:
        return None
    finally:
        os.close(handle)
    # The name stands in parentheses and may hold anything, more parentheses and blanks included.
    end = text.rindex(b")")
    state, ppid, group, session, *rest = text[end + 2 :].split()
    name = text[text.index(b"(") + 1 : end].decode(errors="replace")
    return ProcessLine(pid, int(ppid), int(group), int(session), state.decode(), name, int(rest[15]))
