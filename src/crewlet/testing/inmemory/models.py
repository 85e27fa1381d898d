"""Models for `llm` seats that answer as a test says. The library is imported with this module, and only then."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, cast

from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings
from pydantic_ai.usage import RequestUsage

from crewlet.ports.clock import Clock
from crewlet.ports.errors import Misuse
from crewlet.testing.modelserver import Answer, Refuse, Say


class WatchedModel(WrapperModel):
    """A model whose every answer is a step that a fault can be planted at."""

    def __init__(self, inner: Model, answering: Callable[[], Awaitable[None]]) -> None:
        super().__init__(inner)
        self._answering = answering

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        await self._answering()
        return await super().request(messages, model_settings, model_request_parameters)


def model_of(script: Any, seat: str, clock: Clock) -> Model:
    """The model that a test means.

    Args:
        script: answers, the last of them for ever; a function from the messages so far to one; or a Pydantic AI model.

    Raises:
        Misuse: it is none of these.
    """
    if isinstance(script, Model):
        return cast("Model[Any]", script)
    if callable(script):
        return _function_model(cast("Callable[[list[ModelMessage]], Any]", script), clock)
    answers = list(cast("Sequence[Any]", script))
    if not answers:
        raise Misuse(f"the script of {seat} has no answer")

    def next_answer(messages: list[ModelMessage]) -> Any:
        done = sum(isinstance(message, ModelResponse) for message in messages)
        return answers[min(done, len(answers) - 1)]

    return _function_model(next_answer, clock)


def _function_model(answer: Callable[[list[ModelMessage]], Any], clock: Clock) -> Model:
    async def respond(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        del info
        given = answer(messages)
        if inspect.isawaitable(given):
            given = await given
        if isinstance(given, Say) and given.after_s:
            await clock.sleep(given.after_s)
        return _response(given)

    return FunctionModel(respond, model_name="scripted")


def _response(answer: "Answer | str | ModelResponse | Any") -> ModelResponse:
    match answer:
        case ModelResponse():
            return answer
        case str():
            return _response(Say(answer))
        case Say():
            text = [TextPart(answer.text)] if answer.text else []
            calls = [
                ToolCallPart(call.tool, call.arguments if isinstance(call.arguments, str) else dict(call.arguments))
                for call in answer.calls
            ]
            finish: Any = {"tool_calls": "tool_call"}.get(answer.finish or "", answer.finish)
            usage = RequestUsage(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
            return ModelResponse([*text, *calls], usage=usage, finish_reason=finish)
        case Refuse(status, message):
            raise ModelHTTPError(status, "scripted", {"message": message})
        case _:
            raise Misuse(f"{answer!r} is no answer of a scripted model: give a text, Say, or Refuse")
