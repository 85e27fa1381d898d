"""One `llm` seat on Pydantic AI: an agent whose model and tools are the turn's own."""

from collections.abc import Callable, Sequence
from typing import Any, cast

from pydantic_ai import Agent, ModelRetry, ToolOutput, UsageLimits
from pydantic_ai import exceptions as failures
from pydantic_ai.models import Model
from pydantic_ai.settings import ModelSettings

from crewlet.company.model import LlmRunner
from crewlet.mail.channel import ChannelClosed
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.mail import MailRefused
from crewlet.turns.guards import MAX_DELEGATION_DEPTH, Rounds
from crewlet.turns.runners.llm import prompt
from crewlet.turns.runners.llm.breaks import ModelBroke
from crewlet.turns.runners.llm.models import Candidate, candidate
from crewlet.turns.runners.llm.rounds import RoundsModel
from crewlet.turns.runners.llm.tools import Submission, TurnTools, one_line
from crewlet.turns.runners.thread import answer_questions, conversation_of, writers_of
from crewlet.turns.turn import OutgoingMail, Turn, TurnResult

_ENDLESS = 1_000_000


class Engine:
    """Runs the turns of one seat during one tenure; see `LlmTurns`.

    Raises:
        ModelBroke: a model that the seat names cannot be asked from here.
    """

    def __init__(
        self,
        runner: LlmRunner,
        *,
        clock: Clock,
        entropy: Entropy,
        variable: Callable[[str], str | None],
        models: Sequence[Model] | None = None,
    ) -> None:
        self._runner = runner
        self._left_out: set[str] = set()
        self._clock = clock
        self._entropy = entropy
        if models is None:
            self._candidates = [candidate(model, variable) for model in runner.models]
        else:
            self._candidates = [Candidate(model.model_name, model) for model in models]
        self._agent = Agent(
            output_type=[str, ToolOutput(_submitted, name=prompt.SUBMIT_TOOL, max_retries=_ENDLESS)],
            retries=_ENDLESS,
            model_settings=cast("ModelSettings", dict(runner.settings)),
        )

    async def run(self, turn: Turn) -> TurnResult:
        """See `LlmTurns.run`."""
        tools = TurnTools(turn.tools, self._left_out)
        model = RoundsModel(
            turn,
            self._candidates,
            tools,
            rounds=Rounds(self._runner.max_rounds),
            is_streamed=self._runner.is_streamed,
            timeout_s=self._runner.timeout_s,
            clock=self._clock,
            entropy=self._entropy,
        )
        try:
            run = await self._agent.run(
                prompt.mail(turn),
                model=model,
                toolsets=[tools],
                instructions=prompt.instructions(turn.seat, self._runner),
                usage_limits=UsageLimits(request_limit=None),
            )
        except failures.AgentRunError as error:
            if model.ended_by is not None:
                raise model.ended_by from None
            raise _broke(error) from None
        except failures.UserError as error:
            raise ModelBroke("model_misbehaved", one_line(str(error))) from None
        output: Any = run.output
        return output.result() if isinstance(output, Submission) else await _answered(turn, str(output), tools)


async def _submitted(submission: Submission) -> Submission:
    """Holds a submission against what its schema cannot say."""
    problem = submission.problem()
    if problem is not None:
        raise ModelRetry(problem)
    return submission


async def _answered(turn: Turn, text: str, tools: TurnTools) -> TurnResult:
    """The model just answered. Its words answer the questions in its mail about which it has done nothing yet.

    Where there was none they are its work, unless it has done some with its tools: they go to the seats that wrote, as
    far as work may still be passed on, so that two models that thank each other come to an end. People and programs
    have no inbox: they read the outcome.
    """
    try:
        if not await answer_questions(turn, text) and not tools.done:
            await _reply(turn, text)
    except (UnknownSeat, MailRefused, ChannelClosed) as refused:
        return TurnResult("failed", str(refused))
    return TurnResult("delivered", one_line(text))


async def _reply(turn: Turn, text: str) -> None:
    if max(event.delegation_depth for event in turn.mail) < MAX_DELEGATION_DEPTH:
        for writer in writers_of(turn):
            turn.fence.check()
            await turn.send(OutgoingMail(writer, text, conversation=conversation_of(turn)))


def _broke(error: failures.AgentRunError) -> ModelBroke:
    match error:
        case failures.ContentFilterError():
            return ModelBroke("answer_filtered", one_line(error.message))
        case failures.OutputTokenLimitExceeded():
            return ModelBroke("answer_cut", one_line(error.message))
        case _:
            return ModelBroke("model_misbehaved", one_line(error.message))
