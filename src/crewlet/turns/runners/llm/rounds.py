"""The model of a turn: each request is a round, passes the fence, and is answered by whichever model answers."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import structlog
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model, ModelRequestParameters
from pydantic_ai.models.wrapper import WrapperModel
from pydantic_ai.settings import ModelSettings

from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.turns.guards import Rounds
from crewlet.turns.runners.llm.bounds import check_chars, check_size, check_usage, writable
from crewlet.turns.runners.llm.breaks import ModelBroke
from crewlet.turns.runners.llm.models import Candidate, Trouble, trouble_of
from crewlet.turns.runners.llm.tools import TurnTools, bad_calls
from crewlet.turns.runners.llm.wire import broken_by
from crewlet.turns.turn import RoundUsage, Turn

_log = structlog.get_logger()

PATIENCE_S = 120.0
"""How long a round waits for a provider. A turn holds a slot that others could use, and its mail comes back."""

FIRST_REST_S = 1.0
LONGEST_REST_S = 60.0
TRIES = 3
"""How often running a model may answer nothing, or call tools wrongly."""

_SHOWN_EVERY_S = 10.0


class RoundsModel(WrapperModel):
    """Asks the first candidate that is not resting, and the next when it does not answer.

    Attributes:
        ended_by: what this raised, whatever the library makes of it on the way.
    """

    def __init__(
        self,
        turn: Turn,
        candidates: Sequence[Candidate],
        tools: TurnTools,
        *,
        rounds: Rounds,
        is_streamed: bool,
        timeout_s: float,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        super().__init__(candidates[0].model)
        self._turn = turn
        self._candidates = candidates
        self._tools = tools
        self._rounds = rounds
        self._is_streamed = is_streamed
        self._timeout_s = timeout_s
        self._clock = clock
        self._entropy = entropy
        self._empty = 0
        self._bad = 0
        self._is_waiting = False
        self.ended_by: BaseException | None = None

    def customize_request_parameters(self, model_request_parameters: ModelRequestParameters) -> ModelRequestParameters:
        return model_request_parameters

    def prepare_request(
        self, model_settings: ModelSettings | None, model_request_parameters: ModelRequestParameters
    ) -> tuple[ModelSettings | None, ModelRequestParameters]:
        return model_settings, model_request_parameters  # each candidate prepares for itself

    def prepare_messages(
        self, messages: list[ModelMessage], model_request_parameters: ModelRequestParameters | None = None
    ) -> list[ModelMessage]:
        return messages

    async def request(
        self,
        messages: list[ModelMessage],
        model_settings: ModelSettings | None,
        model_request_parameters: ModelRequestParameters,
    ) -> ModelResponse:
        try:
            return await self._round(_Request(messages, model_settings, model_request_parameters))
        except BaseException as error:
            self.ended_by = error
            raise

    async def _round(self, request: "_Request") -> ModelResponse:
        turn = self._turn
        turn.fence.check()
        number = self._rounds.begin()
        await turn.begin_round(number)
        asked, response = await self._answered(request)
        response = writable(response)
        check_usage(response)
        usage = response.usage
        await turn.usage(RoundUsage(number, asked.name, usage.input_tokens, usage.output_tokens))
        self._judge(response)
        return replace(response, parts=[part for part in response.parts if not _is_blank(part)])

    async def _answered(self, request: "_Request") -> tuple[Candidate, ModelResponse]:
        """Ask until somebody answers, later and later, for as long as a round's patience."""
        give_up_at = self._clock.elapsed() + PATIENCE_S
        while True:
            candidate = min(self._candidates, key=lambda each: max(0.0, each.rests_until - self._clock.elapsed()))
            wait_s = candidate.rests_until - self._clock.elapsed()
            if wait_s > 0 and candidate.rests_until <= give_up_at:  # one that rests longer is asked now, or never
                self._show_wait(candidate, wait_s)
                await self._clock.sleep(wait_s)
            self._turn.fence.check()
            try:
                response = await self._ask(candidate.model, request)
            except Exception as error:  # noqa: BLE001 - whatever a provider's answer made of its client
                if (broke := broken_by(error)) is not None:
                    raise broke from None
                trouble = trouble_of(error)
                if trouble.kind != "model_rejected" or (less := self._less(request, candidate, trouble)) is None:
                    self._rest(candidate, trouble, give_up_at)
                else:
                    request = less
                continue
            candidate.failures, candidate.rests_until = 0, 0.0
            self._show_going_on()
            return candidate, response

    def _less(self, request: "_Request", candidate: Candidate, trouble: Trouble) -> "_Request | None":
        """The request without the tool for which it was refused; None where that is not told."""
        refused = self._tools.leave_out_refused(trouble.text)
        if refused is None:
            return None
        reason = candidate.blotted(f"{candidate.name}: {trouble.text}")
        _log.warning("tool_left_out", server=refused.server, tool=refused.name, reason=reason)
        offered = [tool for tool in request.parameters.function_tools if tool.name != refused.name]
        return replace(request, parameters=replace(request.parameters, function_tools=offered))

    def _rest(self, candidate: Candidate, trouble: Trouble, give_up_at: float) -> None:
        """Let a model rest that did not answer.

        Raises:
            ModelBroke: nobody else can be asked in time.
        """
        candidate.trouble = candidate.blotted(f"{candidate.name}: {trouble.text}")
        if not trouble.is_passing:
            raise ModelBroke(trouble.kind, candidate.trouble) from None
        rest_s = self._rest_s(candidate.failures)
        if trouble.retry_after_s is not None:
            rest_s = max(rest_s, trouble.retry_after_s)
        candidate.failures += 1
        candidate.rests_until = self._clock.elapsed() + rest_s
        _log.warning("llm_unanswered", model=candidate.name, error=candidate.trouble, rest_s=round(rest_s, 3))
        if min(each.rests_until for each in self._candidates) > give_up_at:
            raise ModelBroke(trouble.kind, candidate.trouble) from None

    def _rest_s(self, failures: int) -> float:
        """Longer after each failure, and not the same for all who wait."""
        longest = min(FIRST_REST_S * 2 ** min(failures, 20), LONGEST_REST_S)
        return longest * (0.75 + 0.25 * self._entropy.random())

    def _show_wait(self, candidate: Candidate, wait_s: float) -> None:
        line = f"waiting for its provider, next try in {wait_s:.0f} s: {candidate.trouble}"
        self._is_waiting = True
        self._turn.waiting(line)
        self._turn.progress(line)

    def _show_going_on(self) -> None:
        if self._is_waiting:
            self._is_waiting = False
            self._turn.waiting("")

    async def _ask(self, model: Model, request: "_Request") -> ModelResponse:
        messages = model.prepare_messages(request.messages, request.parameters)
        async with asyncio.timeout(self._timeout_s):
            if not self._is_streamed:
                return await model.request(messages, request.settings, request.parameters)
            async with model.request_stream(messages, request.settings, request.parameters) as stream:
                await self._drain(stream)
                return stream.get()

    async def _drain(self, stream: Any) -> None:
        """Take an answer as it comes, and show that it does."""
        chars, shown_at = 0, self._clock.elapsed()
        async for event in stream:
            chars += _size(event)
            check_chars(chars)
            now = self._clock.elapsed()
            if now - shown_at >= _SHOWN_EVERY_S:
                shown_at = now
                self._turn.progress(f"round {self._rounds.done}: {chars} characters so far")

    def _judge(self, response: ModelResponse) -> None:
        """Hold an answer against what no turn gets over.

        Raises:
            ModelBroke: see its kinds.
        """
        check_size(response)
        if response.finish_reason == "length":
            raise ModelBroke("answer_cut", "it came to the limit of its tokens: raise `max_tokens`, or ask for less")
        is_empty = not any(_says_something(part) for part in response.parts)
        self._empty = self._empty + 1 if is_empty else 0
        if self._empty >= TRIES and response.finish_reason != "content_filter":
            raise ModelBroke("answer_empty", f"{TRIES} answers without a word or a call")
        problems = list(bad_calls(response, self._tools.infos))
        self._bad = self._bad + 1 if problems else 0
        if self._bad >= TRIES:
            raise ModelBroke("bad_calls", f"{TRIES} times running, at last {problems[0]}")


@dataclass(frozen=True, slots=True)
class _Request:
    messages: list[ModelMessage]
    settings: ModelSettings | None
    parameters: ModelRequestParameters


def _is_blank(part: Any) -> bool:
    return isinstance(part, TextPart) and not part.content.strip()


def _says_something(part: Any) -> bool:
    return isinstance(part, ToolCallPart) or (isinstance(part, TextPart) and not _is_blank(part))


def _size(event: Any) -> int:
    """Characters that an event of a stream brought."""
    delta: Any = getattr(event, "delta", None) or getattr(event, "part", None)
    texts = (getattr(delta, name, None) for name in ("content_delta", "args_delta", "content", "args"))
    return sum(len(text) for text in texts if isinstance(text, str))
