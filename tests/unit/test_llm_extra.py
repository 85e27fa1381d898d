"""A node without the extra of `llm` seats."""

import importlib

import pytest
from llm_desk import LlmDesk, at

from crewlet.company.model import LlmModel, LlmRunner, Seat
from crewlet.kit.refusal import ConfigRefused
from crewlet.turns.runners import llm
from crewlet.turns.runners.llm import refuse_without_extra
from crewlet.turns.turn import AgentNotReady

SEATS = [Seat("a"), Seat("b", runner=LlmRunner(LlmModel("openai:x")))]


def test_a_company_with_llm_seats_is_refused_where_their_extra_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(llm, "_LIBRARY", "a_library_that_nobody_has")
    with pytest.raises(ConfigRefused, match=r"the seat 'b' is an `llm` seat, and the extra `llm` is not installed"):
        refuse_without_extra(SEATS)
    refuse_without_extra(SEATS[:1])


def test_a_company_with_llm_seats_is_taken_where_their_extra_is_installed() -> None:
    refuse_without_extra(SEATS)


async def test_a_seat_that_came_later_to_a_node_without_the_extra_is_not_ready_and_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> object:
        raise ImportError("No module named 'pydantic_ai'")

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(AgentNotReady, match=r"^library_missing: the extra `llm` is not installed here"):
        await LlmDesk(LlmRunner(at("http://127.0.0.1:9/v1"))).run()
