"""What an `llm` seat does while its provider does not answer, in virtual time."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import pytest
from llm_desk import SUBMITTED, LlmDesk
from msgspec.structs import force_setattr
from pydantic_ai import exceptions as failures
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models import Model
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.test import TestModel

from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import LlmModel, LlmRunner
from crewlet.ports.errors import Fenced
from crewlet.ports.tools import ToolAnswer
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.runners.llm import ModelBroke
from crewlet.turns.runners.llm.engine import Engine
from crewlet.turns.runners.llm.rounds import PATIENCE_S
from crewlet.turns.turn import TurnResult

SUBMITS = ModelResponse([ToolCallPart("submit_work", SUBMITTED)])


def limited(after_s: float | None = None) -> Exception:
    headers = {"retry-after": f"{after_s:g}"} if after_s is not None else None
    return failures.ModelHTTPError.for_category(
        failures.ModelRateLimitError,
        status_code=429,
        model_name="m",
        body={"message": "too many requests"},
        headers=headers,
    )


class Scripted:
    """A model that gives these answers, one a request, and the last for ever; and remembers when it was asked."""

    def __init__(self, *answers: ModelResponse | Exception | float, name: str = "m") -> None:
        self._answers = list(answers)
        self.asked_at: list[float] = []
        self.model: Model = FunctionModel(self._answer, model_name=name)

    async def _answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        self.asked_at.append(asyncio.get_running_loop().time())
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, float | int):
            await asyncio.sleep(answer)
            return SUBMITS
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stage:
    """One seat with these models."""

    def __init__(self, *models: Scripted | Model, is_streamed: bool = False, timeout_s: float = 600) -> None:
        runner = LlmRunner(LlmModel("test:m"), is_streamed=is_streamed, timeout_s=timeout_s)
        self.desk = LlmDesk(runner, clock=VirtualClock())
        made: Sequence[Model] = [each.model if isinstance(each, Scripted) else each for each in models]
        clock, entropy = self.desk.clock, SystemEntropy()
        self.engine = Engine(runner, clock=clock, entropy=entropy, variable=lambda _: None, models=made)

    async def run(self) -> TurnResult:
        return await self.engine.run(self.desk.turn)


@in_virtual_time
async def test_a_model_that_is_busy_is_asked_again_later_and_later_and_the_seat_shows_as_waiting_for_it() -> None:
    model = Scripted(limited(), limited(), limited(), SUBMITS)
    stage = Stage(model)
    assert (await stage.run()).outcome == "delivered"
    gaps = [after - before for before, after in zip(model.asked_at, model.asked_at[1:], strict=False)]
    assert [0.75 * 2**n <= gap <= 2**n for n, gap in enumerate(gaps)] == [True] * 3
    assert stage.desk.rounds == [1]
    assert stage.desk.waits[0] == "waiting for its provider, next try in 1 s: m: 429 too many requests"
    assert stage.desk.waits[-1] == ""
    assert stage.desk.progress == stage.desk.waits[:-1]


@in_virtual_time
async def test_a_provider_is_not_asked_before_the_time_that_it_named() -> None:
    model = Scripted(limited(40), SUBMITS)
    await Stage(model).run()
    assert model.asked_at[1] >= 40


@in_virtual_time
async def test_a_model_that_stays_away_breaks_the_turn_within_its_patience() -> None:
    model = Scripted(limited())
    stage = Stage(model)
    with pytest.raises(ModelBroke, match=r"^model_unavailable: m: 429 too many requests$"):
        await stage.run()
    assert asyncio.get_running_loop().time() <= PATIENCE_S
    assert len(model.asked_at) > 5


@in_virtual_time
async def test_a_turn_that_comes_back_asks_again_at_once_where_the_wait_would_outlast_its_patience() -> None:
    model = Scripted(limited(3600), SUBMITS)
    stage = Stage(model)
    with pytest.raises(ModelBroke):
        await stage.run()
    assert (await stage.run()).outcome == "delivered"
    assert asyncio.get_running_loop().time() < 1


@in_virtual_time
async def test_while_the_model_rests_its_fallback_works_and_then_it_is_the_first_again() -> None:
    calls = ModelResponse([ToolCallPart("look", {"page": 7})])
    first = Scripted(limited(30), SUBMITS, name="one")
    second = Scripted(calls, name="two")
    stage = Stage(first, second)
    pages = iter(range(100))

    def turn_pages(arguments: Mapping[str, Any]) -> ToolAnswer:
        return ToolAnswer(f"{next(pages)}")

    async def slow(number: int) -> None:
        await asyncio.sleep(10)

    force_setattr(stage.desk.turn, "begin_round", slow)
    stage.desk.tools.act = turn_pages
    assert (await stage.run()).outcome == "delivered"
    assert [usage.model for usage in stage.desk.usage] == ["two", "two", "two", "one"]
    assert stage.desk.waits == []


@in_virtual_time
async def test_when_all_models_rest_the_one_that_is_back_first_is_asked() -> None:
    first, second = Scripted(limited(60), SUBMITS, name="one"), Scripted(limited(20), SUBMITS, name="two")
    stage = Stage(first, second)
    await stage.run()
    assert [usage.model for usage in stage.desk.usage] == ["two"]
    assert 20 <= asyncio.get_running_loop().time() < 21


@in_virtual_time
async def test_a_fence_that_closes_while_the_seat_waits_lets_no_further_request_leave() -> None:
    model = Scripted(limited(30), SUBMITS)
    stage = Stage(model)
    asyncio.get_running_loop().call_later(10, stage.desk.fence.close, "lost")
    with pytest.raises(Fenced):
        await stage.run()
    assert len(model.asked_at) == 1


@in_virtual_time
async def test_a_turn_that_is_cancelled_while_it_waits_ends_at_once() -> None:
    model = Scripted(limited(30), SUBMITS)
    turn = asyncio.create_task(Stage(model).run())
    await asyncio.sleep(10)
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert asyncio.get_running_loop().time() == pytest.approx(10)


@in_virtual_time
async def test_an_answer_that_takes_longer_than_the_seat_allows_is_asked_for_again() -> None:
    model = Scripted(500.0, SUBMITS)
    stage = Stage(model, timeout_s=30)
    assert (await stage.run()).outcome == "delivered"
    assert model.asked_at[1] == pytest.approx(31, abs=0.5)


@in_virtual_time
async def test_a_defect_of_the_provider_s_client_is_a_provider_that_did_not_answer() -> None:
    model = Scripted(AttributeError("'str' object has no attribute 'choices'"), SUBMITS)
    assert (await Stage(model).run()).outcome == "delivered"


@in_virtual_time
async def test_a_long_answer_shows_as_progress_while_it_comes() -> None:
    async def slowly(messages: list[ModelMessage], info: AgentInfo) -> AsyncGenerator[str]:
        for _ in range(30):
            await asyncio.sleep(1)
            yield "word "

    stage = Stage(FunctionModel(stream_function=slowly), is_streamed=True)
    assert (await stage.run()).outcome == "delivered"
    assert stage.desk.progress == ["round 1: 55 characters so far", "round 1: 105 characters so far"]


@in_virtual_time
async def test_the_same_seat_runs_against_the_library_s_own_test_model() -> None:
    model = TestModel(custom_output_args=SUBMITTED)
    stage = Stage(model)
    assert await stage.run() == TurnResult("delivered", "All done. [page 7]")
    assert stage.desk.tools.called == [("look", {"page": 0})]
    assert stage.desk.rounds == [1, 2]


@in_virtual_time
async def test_text_that_is_only_blank_is_no_answer() -> None:
    model = Scripted(ModelResponse([TextPart("  ")]), SUBMITS)
    assert (await Stage(model).run()).outcome == "delivered"
    assert len(model.asked_at) == 2
