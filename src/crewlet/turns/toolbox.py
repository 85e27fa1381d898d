"""The tools of one turn: the one way from an agent to the world, whatever runs the agent.

Each call passes the fence, is bounded, is recorded before it leaves when it may be an effect, carries a key by which a
repeat can be told, and is held against the guards when it has come back. Runners only say what to call.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import msgspec
import structlog

from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo, ToolNotCalled, ToolServer, ToolUnavailable
from crewlet.turns.effects import CallNames, canonical, reaches_outside
from crewlet.turns.guards import Stall
from crewlet.turns.turn import Fence

_log = structlog.get_logger()

MAX_ARGUMENT_BYTES = 1_048_576
MAX_ANSWER_CHARS = 200_000

IDEMPOTENCY_KEY = "crewlet/idempotency-key"
"""Where the key of a call stands in the `_meta` of an MCP request. Its value is the same at a re-run of the work."""
RESOURCE = "crewlet/resource"
"""Where it says for which seat the call is made, as `seat:` and its handle."""
EPOCH = "crewlet/epoch"
"""Where the fencing token stands: a server that refuses one older than it has seen is safe from a former owner."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call that passed the fence.

    Attributes:
        tool: what is called.
        arguments: a JSON object.
        key: the same in each run of the same work that makes this call.
    """

    tool: ToolInfo
    arguments: Mapping[str, Any]
    key: str


Act = Callable[[Call], Awaitable[ToolAnswer]]
"""Makes a call. Raises `ToolUnavailable` when no answer came, `ToolNotCalled` when it was not made, and may raise
`Fenced`."""


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool and what makes its calls."""

    info: ToolInfo
    act: Act


class Journal(Protocol):
    """Who is told of the calls of a turn, in this order for each: `leaving`, perhaps `not_made`, `called`."""

    async def leaving(self, call: Call, *, is_effect: bool) -> None:
        """The call is about to leave. What is written here is there before it does.

        Args:
            is_effect: it may change something outside, which a re-run of the work would do again.

        Raises:
            Fenced, Unavailable: the call does not leave.
        """
        ...

    def not_made(self, call: Call) -> None:
        """Nothing of the call has left after all: it is no effect. `called` follows."""
        ...

    def called(self, call: Call, answer: ToolAnswer) -> None:
        """The call came back, or was given up: then the answer says so."""
        ...


class Toolbox:
    """The tools of one turn.

    Args:
        work: the work key, or the turn id where that is empty.
        tools: makes them when they are first asked for, since many turns need none; with distinct names.
    """

    def __init__(
        self, *, handle: str, work: str, fence: Fence, tools: Callable[[], Sequence[Tool]], journal: Journal
    ) -> None:
        self._make = tools
        self._fence = fence
        self._journal = journal
        self._names = CallNames(handle, work)
        self._stall = Stall()

    @cached_property
    def _tools(self) -> dict[str, Tool]:
        return {tool.info.name: tool for tool in self._make()}

    @property
    def infos(self) -> Sequence[ToolInfo]:
        """What may be called."""
        return [tool.info for tool in self._tools.values()]

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """Make one call, and return what the agent is told of it.

        A call that the agent got wrong, or that nobody answered, is answered with an error, for the agent to deal with.

        Raises:
            Fenced: the fence is closed; nothing has left.
            GuardBreached: the turn goes nowhere.
            Unavailable: the call could not be recorded; nothing has left.

        Fencing: checked before the record of the call, and once more after it, in the step in which the call is handed
        on. Crewlet's own tools check again at each send; the client of a tool server sends in steps of its own.
        """
        self._fence.check()
        tool = self._tools.get(name)
        if tool is None:
            known = ", ".join(sorted(self._tools)) or "none"
            return ToolAnswer(f"there is no tool {name!r}; there are: {known}", is_error=True)
        try:
            packed = canonical(arguments)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            return ToolAnswer(f"the arguments are not JSON: {error}", is_error=True)
        if len(packed) > MAX_ARGUMENT_BYTES:
            problem = f"the arguments have {len(packed)} bytes, at most {MAX_ARGUMENT_BYTES} are taken"
            return ToolAnswer(problem, is_error=True)
        call = Call(tool.info, arguments, self._names.next(name, arguments))
        await self._journal.leaving(call, is_effect=reaches_outside(tool.info))
        self._fence.check()
        try:
            answer = _bounded(await tool.act(call))
        except ToolNotCalled as error:
            self._journal.not_made(call)
            if tool.info.server:
                _log.warning("tool_unavailable", tool=name, server=tool.info.server, error=str(error))
            answer = ToolAnswer(str(error), is_error=True)
        except ToolUnavailable as error:
            _log.warning("tool_unavailable", tool=name, server=tool.info.server, error=str(error))
            answer = ToolAnswer(f"no answer from {name}: {error}", is_error=True)
        self._journal.called(call, answer)
        self._stall.note(name, packed, answer.text)
        return answer


def served(server: ToolServer, term: Term) -> Sequence[Tool]:
    """The tools of a server. It is told the key of each call, to tell a repeat by, and under which term it is made."""

    async def act(call: Call) -> ToolAnswer:
        meta = {IDEMPOTENCY_KEY: call.key, RESOURCE: term.resource, EPOCH: term.epoch}
        return await server.call(call.tool.name, call.arguments, meta=meta)

    return [Tool(info, act) for info in server.tools]


def _bounded(answer: ToolAnswer) -> ToolAnswer:
    if len(answer.text) <= MAX_ANSWER_CHARS:
        return answer
    cut = f"{answer.text[:MAX_ANSWER_CHARS]}\n[cut: {len(answer.text)} characters in all]"
    return ToolAnswer(cut, answer.is_error)
