"""Telling a service manager that this process is ready, alive or stopping. Standard library only.

It is systemd's notify protocol: lines in datagrams to the socket that `NOTIFY_SOCKET` names. Without that variable
nobody is told. Nothing here blocks or raises: a manager that does not listen is its own affair.
"""

import os
import socket
from contextlib import suppress
from typing import Self

SOCKET_ENV = "NOTIFY_SOCKET"
_OTHERS = ("WATCHDOG_USEC", "WATCHDOG_PID")


class Notify:
    """The way to the service manager.

    Args:
        address: of its socket, a path or `@` and an abstract name; empty for none.
    """

    def __init__(self, address: str = "") -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._said: set[str] = set()

    @classmethod
    def taken_from_environment(cls) -> Self:
        """The manager of this process. No child inherits it: what a child says there would count for us."""
        for name in _OTHERS:
            os.environ.pop(name, None)
        return cls(os.environ.pop(SOCKET_ENV, ""))

    def ready(self) -> None:
        """It has come up. Said once."""
        self._tell_once("READY=1")

    def alive(self) -> None:
        """It turns. Without this for `WatchdogSec` the manager ends it."""
        self._tell("WATCHDOG=1")

    def stopping(self) -> None:
        """It was told to stop, which may take as long as it needs. Said once."""
        self._tell_once("STOPPING=1")

    def _tell_once(self, line: str) -> None:
        if line not in self._said:
            self._said.add(line)
            self._tell(line)

    def _tell(self, line: str) -> None:
        if not self._address:
            return
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as way:
            way.setblocking(False)
            way.sendto(line.encode(), self._address)
