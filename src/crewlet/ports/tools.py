"""Servers that offer a seat's agent its tools."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from crewlet.ports.errors import CrewletError


class ToolServerNotStarted(CrewletError):
    """The server could not be brought to answer: names the server, what was tried, and what it said."""


class ToolUnavailable(CrewletError):
    """No answer to a call: the server is gone, or was silent for the call's time-out. The call may have been done."""


class ToolNotCalled(ToolUnavailable):
    """The call was not made: nothing of it has left."""


@dataclass(frozen=True, slots=True)
class ToolInfo:
    """One tool, as its server describes it.

    Attributes:
        name: unique in the seat; `[A-Za-z0-9_-]{1,64}`, which every model provider takes.
        description: for the model.
        schema: JSON schema of the arguments, an object.
        server: the name of the server behind it; "" for Crewlet's own tools.
        is_read_only: what its annotations say; None when they say nothing.
        is_open_world: what its annotations say; None when they say nothing.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    server: str = ""
    is_read_only: bool | None = None
    is_open_world: bool | None = None


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """What a call brought back, for the model.

    Attributes:
        text: bounded by whoever made it.
        is_error: the tool says that it failed; the model may try something else.
    """

    text: str
    is_error: bool = False


@dataclass(frozen=True, slots=True)
class StdioServer:
    """A server that is a program of the seat's own, spoken to on its standard streams.

    Attributes:
        argv: the program and its arguments; no shell is involved.
        env: the whole environment of the child.
        cwd: its working folder, absolute; None is the node's.
    """

    argv: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpServer:
    """A server that is reached over streamable HTTP.

    Attributes:
        url: `http://` or `https://`; never carries a secret.
        headers: sent with each request; may hold secrets.
    """

    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)


@dataclass(frozen=True, slots=True)
class ToolServerSpec:
    """One server of a seat.

    Attributes:
        name: unique in the seat.
        transport: how it is reached.
        call_timeout_s: a call without an answer for so long ends in `ToolUnavailable`.
        start_timeout_s: for its first answer, and the list of its tools.
        secrets: never shown: replaced wherever they stand in what is told, logged or handed on of the server.
    """

    name: str
    transport: StdioServer | HttpServer
    call_timeout_s: float = 60.0
    start_timeout_s: float = 30.0
    secrets: frozenset[str] = field(default=frozenset(), repr=False)


class ToolServer(Protocol):
    """One server of one tenure. After `start` it is kept up until `end`: one that goes away is started again, later and
    later, and meanwhile says so."""

    @property
    def name(self) -> str: ...

    @property
    def tools(self) -> Sequence[ToolInfo]:
        """What it offered when it was started, in its own order. The same for the whole tenure, also while it is down:
        a call of a tool that a restart took away is answered with an error."""
        ...

    @property
    def trouble(self) -> str | None:
        """Why it cannot be called now, in a sentence for people; None while it can."""
        ...

    async def start(self) -> None:
        """Start it, once, and wait until it has named its tools.

        Raises:
            ToolServerNotStarted: nothing is left of it.
            ProgramUnproven: it failed, and something of it may be left: call `end`.

        Cancellation: something of it may be left: call `end`.
        """
        ...

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        """Call one tool and wait for its answer.

        Args:
            tool: a name out of `tools`.
            meta: passed beside the arguments (MCP `_meta`), for instance an idempotency key.

        Raises:
            ToolUnavailable: no answer within the time-out of the server's spec, or the server is gone.
            ToolNotCalled: the server was down. A call is never kept for later: it is refused at once.

        Cancellation: the server is told, as far as it can be; the call may have been done.
        """
        ...

    async def end(self, *, grace_s: float = 0.0) -> None:
        """End it, and everything it started, also in the middle of a call, which then raises `ToolUnavailable`.

        Args:
            grace_s: how long it may take to end by itself, once it was asked to.

        Raises:
            ProgramUnproven: something is left; call again.
        """
        ...


class ToolServers(Protocol):
    """Makes servers."""

    def server(self, spec: ToolServerSpec) -> ToolServer:
        """A server that is not started yet."""
        ...
