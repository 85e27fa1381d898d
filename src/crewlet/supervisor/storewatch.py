"""A server that can no longer write to its store, seen on its own health page and started again once there is room.

After a write that failed, of a full disk above all, nats-server stores nothing more on that stream, also when there is
room again, until it is started anew. It goes on answering, so nobody else would do that.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress

from crewlet.supervisor.broker import Broker
from crewlet.supervisor.page import boottime

ROOM_BYTES = 16 * 1024 * 1024
"""A server that is started with less would soon be where it was."""

_LOOK_EVERY_S = 2.0
_GIVE_UP_S = 10.0
_ENDS_WITHIN_S = 10.0
_REQUEST = b"GET /healthz HTTP/1.0\r\nHost: 127.0.0.1\r\n\r\n"
_SAYS_SO = "write error"  # other ailments, such as a missing quorum, pass by themselves


class StoreWatch:
    """Looks at one broker, and never waits for it.

    Args:
        say: tells people a line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._question = _Question()
        self._is_told = False
        self._kill_at: float | None = None

    def turn(self, broker: Broker) -> None:
        """Look once at a server that runs, and end it where a new start is what it needs."""
        if self._kill_at is not None:
            if boottime() >= self._kill_at:
                broker.signal(signal.SIGKILL)
            return
        problem = self._question.problem(broker.monitor_port)
        if problem is None:
            return
        name = broker.plan.name
        if _free_bytes(broker) < ROOM_BYTES:
            if not self._is_told:
                self._say(
                    f"ALARM: broker {name} cannot write to its store, and stores nothing more until it is started "
                    f"again, which is done once {broker.home} has {ROOM_BYTES >> 20} MiB of room: {problem}."
                )
            self._is_told = True
            return
        self._say(f"broker {name} stores nothing more since a write failed, and is started again: {problem}.")
        broker.signal(signal.SIGTERM)
        self._kill_at = boottime() + _ENDS_WITHIN_S

    def forget(self) -> None:
        """The server has ended: what was known of it is not true of the next."""
        self._question.drop()
        self._is_told, self._kill_at = False, None


class _Question:
    """One HTTP request at a time, a step of it at each call. `boottime` paces it."""

    def __init__(self) -> None:
        self._socket: socket.socket | None = None
        self._next_at = 0.0
        self._is_sent = False
        self._seen = b""

    def problem(self, port: int | None) -> str | None:
        """What the last answer said is wrong with the store; None where nothing is, or none came yet."""
        now = boottime()
        if self._socket is None:
            if port is None or now < self._next_at:
                return None
            self._socket, self._next_at = _connecting(port), now + _LOOK_EVERY_S
        try:
            if not self._is_sent:
                self._socket.sendall(_REQUEST)
                self._is_sent = True
            while more := self._socket.recv(65536):
                self._seen += more
        except BlockingIOError:
            if now >= self._next_at + _GIVE_UP_S:
                self.drop()
            return None
        except OSError:
            self.drop()
            return None
        answer = self._seen
        self.drop()
        return write_error(answer)

    def drop(self) -> None:
        """Ask anew at the next time."""
        if self._socket is not None:
            self._socket.close()
        self._socket, self._is_sent, self._seen = None, False, b""


def _connecting(port: int) -> socket.socket:
    made = socket.socket()
    made.setblocking(False)
    made.connect_ex(("127.0.0.1", port))  # whether it worked shows when something is sent
    return made


def write_error(answer: bytes) -> str | None:
    """What a health page says of a write that failed; None for whatever else it says."""
    head, _, body = answer.partition(b"\r\n\r\n")
    if b" 503" not in head.partition(b"\r\n")[0]:
        return None
    with suppress(ValueError, AttributeError, RecursionError):
        text = str(json.loads(body).get("error", ""))
        return text if _SAYS_SO in text else None
    return None


def _free_bytes(broker: Broker) -> int:
    try:
        disk = os.statvfs(broker.home)
    except OSError:
        return 0
    return disk.f_bavail * disk.f_frsize
