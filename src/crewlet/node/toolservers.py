"""The tool servers of held seats: all of a seat's are up before its mail comes, and seen to end before its lease goes.

What the company document says of them is completed here from this node's environment, at each start. What a variable
stood for is in the server's own environment or headers afterwards, and nowhere else.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Final

from crewlet.company.model import Seat, ToolProgram, ToolSite
from crewlet.kit import logcontext
from crewlet.kit.references import NotAReference, UnsetVariable, substitute
from crewlet.ports.term import Term
from crewlet.ports.tools import HttpServer, StdioServer, ToolServer, ToolServerNotStarted, ToolServers, ToolServerSpec

STARTS_AT_ONCE: Final = 8
"""Servers of this node that are being started at any time: a takeover of many seats must not start hundreds at once."""
STARTS_COUNT_FOR_S: Final = 5.0
"""A start that takes longer counts no more: servers that say nothing must not keep other seats from their own."""


class SeatTools:
    """The servers of this node's seats, by tenure.

    Args:
        servers: makes them; None where this node has none to offer, and a seat that wants one is refused.
        variable: the value of a variable of this node by its name.
        base_env: what every program gets of the node's environment.
        default_cwd: where a program runs that names no folder.
    """

    def __init__(
        self,
        servers: ToolServers | None,
        *,
        variable: Callable[[str], str | None],
        base_env: Mapping[str, str],
        default_cwd: str | None,
    ) -> None:
        self._servers = servers
        self._variable = variable
        self._base_env = base_env
        self._default_cwd = default_cwd
        self._starting = asyncio.Semaphore(STARTS_AT_ONCE)
        self._held: dict[Term, Sequence[ToolServer]] = {}
        self._refused: dict[str, str] = {}

    def of(self, term: Term) -> Sequence[ToolServer]:
        """The servers of a tenure, in the document's order; none when it has none, or ended."""
        return self._held.get(term, ())

    def troubles(self) -> Mapping[str, str]:
        """By handle, which servers of a held seat cannot be called now, or why this node did not take the seat."""
        found = dict(self._refused)
        for term, servers in self._held.items():
            down = [f"the tool server {server.name}: {server.trouble}" for server in servers if server.trouble]
            if down:
                found[_handle(term)] = "; ".join(down)
        return found

    async def start(self, seat: Seat, term: Term) -> None:
        """Start all that the seat has, side by side, and wait for them.

        Raises:
            ToolServerNotStarted: one of them could not be. What was started is left for `end`.
            ProgramUnproven: likewise, and something of it may be left.

        Cancellation: likewise.
        """
        self._refused.pop(seat.handle, None)
        if not seat.tool_servers:
            return
        try:
            if self._servers is None:
                raise ToolServerNotStarted("this node offers no tool servers")
            specs = [self._spec(server) for server in seat.tool_servers]
            servers = self._held[term] = [self._servers.server(spec) for spec in specs]
            # What is told of a server, also later, names its seat.
            with logcontext.bound({"seat": seat.handle, "epoch": term.epoch}):
                await self._start_all(servers)
        except ToolServerNotStarted as refusal:
            self._refused[seat.handle] = f"not taken by this node: {refusal}"
            raise

    async def end(self, term: Term, *, grace_s: float = 0.0) -> None:
        """End a tenure's servers side by side, and see them end.

        Args:
            grace_s: how long they may take to end by themselves.

        Raises:
            ProgramUnproven: something may be left; call again.
        """
        servers = self._held.get(term, ())
        outcomes = await asyncio.gather(*(server.end(grace_s=grace_s) for server in servers), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        self._held.pop(term, None)

    async def _start_all(self, servers: Iterable[ToolServer]) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for server in servers:
                    group.create_task(self._start_one(server), name=f"starting the tool server {server.name}")
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _start_one(self, server: ToolServer) -> None:
        await self._starting.acquire()
        with ExitStack() as slot:
            slot.callback(self._starting.release)
            counted = asyncio.get_running_loop().call_later(STARTS_COUNT_FOR_S, slot.close)
            slot.callback(counted.cancel)
            await server.start()

    def _spec(self, server: ToolProgram | ToolSite) -> ToolServerSpec:
        secrets: set[str] = set()

        def secret(name: str) -> str | None:
            value = self._variable(name)
            if value:
                secrets.add(value)
            return value

        try:
            match server:
                case ToolProgram(env=env):
                    own = {name: substitute(text, secret) for name, text in env.items()}
                    cwd = server.cwd or self._default_cwd
                    transport = StdioServer(server.command, {**self._base_env, **own}, cwd)
                case ToolSite(headers=headers):
                    sent = {name: substitute(text, secret) for name, text in headers.items()}
                    _refuse_unsendable(server.name, sent)
                    secrets.update(sent.values())
                    transport = HttpServer(server.url, sent)
        except UnsetVariable as unset:
            problem = f"the tool server {server.name} needs the variable {unset}, which is not set on this node"
            raise ToolServerNotStarted(problem) from None
        except NotAReference as wrong:
            problem = f"the tool server {server.name} has {str(wrong)!r}, which is not a reference to a variable"
            raise ToolServerNotStarted(problem) from None
        return ToolServerSpec(server.name, transport, server.call_timeout_s, server.start_timeout_s, frozenset(secrets))


def _refuse_unsendable(server: str, headers: Mapping[str, str]) -> None:
    for name, value in headers.items():
        if not value.isascii() or not value.isprintable():
            problem = f"the header {name} of the tool server {server} has a line break or a character outside of ASCII"
            raise ToolServerNotStarted(f"{problem}: look at the variables that it refers to")


def _handle(term: Term) -> str:
    return term.resource.partition(":")[2]
