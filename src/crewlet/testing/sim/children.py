"""The tool servers of simulated seats: programs that take a moment to start, to answer and to end."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from crewlet.ports.programs import ProgramUnproven
from crewlet.ports.tools import (
    ToolAnswer,
    ToolInfo,
    ToolNotCalled,
    ToolServer,
    ToolServers,
    ToolServerSpec,
    ToolUnavailable,
)
from crewlet.testing.sim.clock import SimClock
from crewlet.testing.sim.dice import Dice

WRITE, READ = "write", "read"
_SLOW_START_S = 1.0
_SLOW_ANSWER_S = 0.5
_SLOW_END_S = 0.1


class ChildObserver(Protocol):
    """Sees the programs of one process, by the seat that each works for."""

    def started(self, handle: str) -> None: ...

    def ended(self, handle: str) -> None: ...

    def called(self, handle: str, tool: str, arguments: Mapping[str, Any], meta: Mapping[str, Any]) -> None: ...


class SimToolServers(ToolServers):
    """Those of one node incarnation.

    Args:
        failing: how often one that is asked to end by itself does not, at present. One that is killed always ends.
    """

    def __init__(self, observer: ChildObserver, failing: Callable[[], float], dice: Dice, clock: SimClock) -> None:
        self.observer = observer
        self.failing = failing
        self.dice = dice
        self.clock = clock

    def server(self, spec: ToolServerSpec) -> ToolServer:
        return SimToolServer(self, spec.name)


class SimToolServer(ToolServer):
    """One server. Its name is the handle of its seat."""

    def __init__(self, servers: SimToolServers, name: str) -> None:
        self._servers = servers
        self._name = name
        self._is_up = False
        self._answers = 0
        self._tools = (
            ToolInfo(f"{name}_{WRITE}", "", {}, server=name),
            ToolInfo(f"{name}_{READ}", "", {}, server=name, is_read_only=True),
        )

    @property
    def name(self) -> str:
        return self._name

    @property
    def tools(self) -> Sequence[ToolInfo]:
        return self._tools

    @property
    def trouble(self) -> str | None:
        return None if self._is_up else "it has ended"

    async def start(self) -> None:
        servers = self._servers
        self._is_up = True
        servers.observer.started(self._name)
        await servers.clock.sleep(_SLOW_START_S * servers.dice.random())

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        servers = self._servers
        if not self._is_up:
            raise ToolNotCalled("it has ended")
        servers.observer.called(self._name, tool, arguments, meta)
        await servers.clock.sleep(_SLOW_ANSWER_S * servers.dice.random())
        if not self._is_up:
            raise ToolUnavailable("it ended meanwhile")
        self._answers += 1
        return ToolAnswer(f"answer {self._answers}")

    async def end(self, *, grace_s: float = 0.0) -> None:
        servers = self._servers
        if not self._is_up:
            return
        if grace_s and servers.dice.chance(servers.failing()):
            raise ProgramUnproven("a planted failure")
        await servers.clock.sleep(_SLOW_END_S * servers.dice.random())
        if self._is_up:
            self._is_up = False
            servers.observer.ended(self._name)
