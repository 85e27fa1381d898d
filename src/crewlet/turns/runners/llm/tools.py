"""The tools of a turn as Pydantic AI takes them, and what is wrong with a model's calls of them."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError
from pydantic_ai import RunContext
from pydantic_ai.messages import ModelResponse, ToolCallPart
from pydantic_ai.tools import ToolDefinition
from pydantic_ai.toolsets import AbstractToolset, ToolsetTool
from pydantic_core import SchemaValidator, core_schema

from crewlet.kit import lines
from crewlet.ports.tools import ToolInfo
from crewlet.turns.runners.llm.prompt import SUBMIT_TOOL
from crewlet.turns.runners.llm.schemas import violation
from crewlet.turns.turn import Tools, TurnResult

_DETAIL_CHARS = 1_000
_LOOKED_AT_CHARS = 2_000
_NO_SUCH_TOOL = "there is no such tool"
_ENDLESS = 1_000_000
"""Retries that Pydantic AI may count: how often a model may be wrong is `rounds`' to say."""

_OBJECT = SchemaValidator(core_schema.dict_schema(core_schema.str_schema(), core_schema.any_schema()))


class Submission(BaseModel):
    """The end of a turn."""

    outcome: Literal["delivered", "no_action", "blocked"] = Field(
        description="delivered: the work is done. no_action: there was nothing to do. blocked: you cannot go on."
    )
    summary: str = Field(min_length=1, description="What was done, or why not, in a sentence or two for people.")
    evidence: list[str] = Field(
        default=[],
        description="What shows it: ids of mail sent, paths, addresses. At least one, unless the outcome is no_action.",
    )

    def problem(self) -> str | None:
        """Why this cannot stand; None when it can."""
        if self.outcome != "no_action" and not any(item.strip() for item in self.evidence):
            return f"the outcome {self.outcome} needs evidence: name at least one thing that a colleague can check"
        return None

    def result(self) -> TurnResult:
        shown = "; ".join(item for item in self.evidence if item.strip())
        return TurnResult(self.outcome, one_line(f"{self.summary} [{shown}]" if shown else self.summary))


def one_line(text: str) -> str:
    """A text as the detail of an outcome."""
    return lines.one_line(text, _DETAIL_CHARS)


class TurnTools(AbstractToolset[object]):
    """A turn's tools. All calls go through the turn's own, one after another, in the model's order.

    Args:
        left_out: the names of those that are not offered; shared by the turns of a tenure.

    Attributes:
        done: calls that were made and did not fail.
    """

    def __init__(self, tools: Tools | None, left_out: set[str]) -> None:
        self._tools = tools
        self._left_out = left_out
        self._infos = {info.name: info for info in _callable(tools) if info.name not in left_out}
        self.done = 0

    @property
    def id(self) -> str:
        return "turn"

    @property
    def infos(self) -> Mapping[str, ToolInfo]:
        return self._infos

    def leave_out_refused(self, refusal: str) -> ToolInfo | None:
        """Offer a server's tool no longer whose schema a provider does not take, by the words of its refusal.

        Returns:
            The tool; None where they name no such tool, or several.
        """
        words = refusal[:_LOOKED_AT_CHARS]
        if "schema" not in words.lower():
            return None
        named = set(re.findall(r"['\"`]([A-Za-z0-9_-]{1,64})['\"`]", words)).intersection(self._infos)
        refused = [info for name in named if (info := self._infos[name]).server]
        if len(named) != 1 or not refused:
            return None
        self._left_out.add(refused[0].name)
        return self._infos.pop(refused[0].name)

    async def get_tools(self, ctx: RunContext[object]) -> dict[str, ToolsetTool[object]]:
        return {
            name: ToolsetTool(toolset=self, tool_def=_definition(info), max_retries=_ENDLESS, args_validator=_OBJECT)
            for name, info in self._infos.items()
        }

    async def call_tool(
        self, name: str, tool_args: dict[str, Any], ctx: RunContext[object], tool: ToolsetTool[object]
    ) -> str:
        assert self._tools is not None
        info = self._infos.get(name)  # gone where it was left out in this very round
        problem = _NO_SUCH_TOOL if info is None else violation(info.schema, tool_args)
        if problem is not None:
            return f"The call was not made: {problem}"
        answer = await self._tools.call(name, tool_args)
        if not answer.is_error:
            self.done += 1
            return answer.text
        return f"The call failed: {answer.text}"


def bad_calls(response: ModelResponse, infos: Mapping[str, ToolInfo]) -> Iterator[str]:
    """What is wrong with the calls in an answer: no such tool, no JSON object, or not what the tool's schema asks."""
    for part in response.parts:
        if isinstance(part, ToolCallPart):
            problem = _problem_of(part, infos)
            if problem is not None:
                yield f"{part.tool_name}: {problem}"


def _problem_of(part: ToolCallPart, infos: Mapping[str, ToolInfo]) -> str | None:
    try:
        arguments = part.args_as_dict(raise_if_invalid=True)
    except (ValueError, AssertionError):
        return "its arguments are not a JSON object"
    if part.tool_name == SUBMIT_TOOL:
        try:
            return Submission.model_validate(arguments).problem()
        except ValidationError as error:
            return str(error.errors()[0]["msg"])
    info = infos.get(part.tool_name)
    return _NO_SUCH_TOOL if info is None else violation(info.schema, arguments)


def _callable(tools: Tools | None) -> Sequence[ToolInfo]:
    """All but the one by which a turn of this kind ends, which is this runner's own."""
    return [info for info in tools.infos if info.name != SUBMIT_TOOL] if tools is not None else ()


def _definition(info: ToolInfo) -> ToolDefinition:
    return ToolDefinition(
        name=info.name,
        description=info.description,
        parameters_json_schema={"type": "object", **info.schema},
        sequential=True,
    )
