"""Which calls leave the system, and what names one so that a repeat can be told: pure."""

from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import msgspec

from crewlet.mail.work_key import call_id
from crewlet.ports.tools import ToolInfo


def reaches_outside(tool: ToolInfo) -> bool:
    """Whether a call of it is an effect that a re-run would repeat.

    A broken turn with such a call is given up instead of run again, so the proof is narrow: a tool that nobody
    classified proves nothing, unless it is on a tool server and does not positively say that it only reads.

    Source: TB-02.
    """
    if tool.is_open_world is True:
        return True
    return tool.server != "" and tool.is_read_only is not True


def canonical(arguments: Mapping[str, Any]) -> bytes:
    """One text for equal arguments, whatever the order of their keys."""
    return msgspec.json.encode(arguments, order="sorted")


class CallNames:
    """Names the calls of one run, alike in each run of the same work that makes them.

    Args:
        handle: the seat.
        work: its work key, or the turn id where that is empty.
    """

    def __init__(self, handle: str, work: str) -> None:
        self._handle = handle
        self._work = work
        self._seen: dict[str, int] = {}

    def next(self, tool: str, arguments: Mapping[str, Any]) -> str:
        """The idempotency key of the next call: its ordinal counts equal calls only, so that others do not shift it."""
        digest = sha256(canonical(arguments)).hexdigest()
        same = f"{tool} {digest}"
        ordinal = self._seen.get(same, 0)
        self._seen[same] = ordinal + 1
        return call_id(self._handle, self._work, tool, digest, ordinal)
