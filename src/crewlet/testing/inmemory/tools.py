"""Stand-ins for tool servers: plain functions, described to the agent as a server describes its tools."""

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from pydantic import TypeAdapter

from crewlet.adapters.mcp.names import tool_name
from crewlet.ports.errors import Misuse
from crewlet.ports.tools import (
    ToolAnswer,
    ToolInfo,
    ToolNotCalled,
    ToolServer,
    ToolServerNotStarted,
    ToolServers,
    ToolServerSpec,
    ToolUnavailable,
)
from crewlet.turns.toolbox import IDEMPOTENCY_KEY

KEY_ARGUMENT = "idempotency_key"
"""A function that takes this gets the key of the call: the same when the work runs again."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool of a stand-in.

    Attributes:
        function: sync or async; what it returns is the answer, what it raises an answer that says it failed.
        is_read_only, is_open_world: its annotations; without any a call counts as an effect outside.
    """

    function: Callable[..., Any]
    is_read_only: bool | None = None
    is_open_world: bool | None = None

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def takes_key(self) -> bool:
        """Whether it can tell a repeat."""
        return KEY_ARGUMENT in inspect.signature(self.function).parameters

    def info(self, server: str) -> ToolInfo:
        """As the server named so describes it."""
        schema = TypeAdapter[Any](cast("Any", self.function)).json_schema()
        if "properties" not in schema and schema.get("type") != "object":
            raise Misuse(f"the tool {self.name} takes arguments without names; give each one")
        properties = {key: value for key, value in schema.get("properties", {}).items() if key != KEY_ARGUMENT}
        required = [key for key in schema.get("required", ()) if key != KEY_ARGUMENT]
        schema = {**schema, "properties": properties, "required": required}
        return ToolInfo(
            tool_name(server, self.name),
            inspect.getdoc(self.function) or self.name,
            schema,
            server,
            self.is_read_only,
            self.is_open_world,
        )

    async def call(self, arguments: Mapping[str, Any], key: str) -> ToolAnswer:
        """Make one call.

        Raises:
            ToolUnavailable: as the function says.
        """
        given = {**arguments, KEY_ARGUMENT: key} if self.takes_key else arguments
        try:
            inspect.signature(self.function).bind(**given)
        except TypeError as wrong:
            return ToolAnswer(f"wrong arguments for {self.name}: {wrong}", is_error=True)
        try:
            answer = self.function(**given)
            if inspect.isawaitable(answer):
                answer = await answer
        except ToolUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 -- the tool says that it failed
            return ToolAnswer(f"{type(error).__name__}: {error}", is_error=True)
        match answer:
            case ToolAnswer():
                return answer
            case str():
                return ToolAnswer(answer)
            case _:
                return ToolAnswer(json.dumps(answer, default=str))


class StandIns(ToolServers):
    """What stands in for the tool servers of a company, by their names."""

    def __init__(self) -> None:
        self.tools: dict[str, Sequence[Tool]] = {}

    def tool(self, name: str, server: str) -> Tool | None:
        """The tool that a seat knows by that name."""
        return next((tool for tool in self.tools.get(server, ()) if tool_name(server, tool.name) == name), None)

    def server(self, spec: ToolServerSpec) -> ToolServer:
        return _StandIn(spec.name, self.tools.get(spec.name))


class _StandIn(ToolServer):
    """One of them during one tenure."""

    def __init__(self, name: str, tools: Sequence[Tool] | None) -> None:
        self._name = name
        self._offered = tools
        self._by_name = {tool_name(name, tool.name): tool for tool in tools or ()}
        self._infos = [tool.info(name) for tool in tools or ()]
        self._is_ended = False

    @property
    def name(self) -> str:
        return self._name

    @property
    def tools(self) -> Sequence[ToolInfo]:
        return self._infos

    @property
    def trouble(self) -> str | None:
        return None

    async def start(self) -> None:
        if self._offered is None:
            raise ToolServerNotStarted(f"nothing stands in for the tool server {self._name!r}")

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        if self._is_ended:
            raise ToolNotCalled(f"the tool server {self._name} has ended")
        return await self._by_name[tool].call(arguments, str(meta[IDEMPOTENCY_KEY]))

    async def end(self, *, grace_s: float = 0.0) -> None:
        del grace_s
        self._is_ended = True
