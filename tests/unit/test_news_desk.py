"""The example of `llm` seats: against the scripted server over HTTP, and against the library's test model."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from llm_desk import SUBMITTED, LlmDesk
from msgspec.structs import force_setattr
from pydantic_ai.models.test import TestModel

import crewlet.examples.news_desk as news_desk
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.document import load_company
from crewlet.company.model import LlmRunner
from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.testing.modelserver import by_seat, model_server, read_script
from crewlet.turns.runners.llm import LlmTurns

FOLDER = Path(news_desk.__file__).parent
COMPANY = load_company(FOLDER / "company.yaml")
HANDLES = [seat.handle for seat in COMPANY.seats]
_TEXT = {"type": "string"}
SEND_MAIL = ToolInfo(
    "send_mail",
    "Send mail to a seat.",
    {"type": "object", "properties": {"to": _TEXT, "subject": _TEXT, "body": _TEXT}, "required": ["to", "body"]},
)


def desk_of(handle: str, url: str | None = None) -> LlmDesk:
    seat = COMPANY.seat(handle)
    assert seat is not None
    assert isinstance(seat.runner, LlmRunner)
    model = replace(seat.runner.model, base_url=url) if url else seat.runner.model
    desk = LlmDesk(replace(seat.runner, model=model))
    force_setattr(desk.turn, "seat", replace(seat, runner=replace(seat.runner, model=model)))
    desk.tools.infos = [SEND_MAIL]

    def sent(arguments: Mapping[str, Any]) -> ToolAnswer:
        return ToolAnswer("sent")

    desk.tools.act = sent
    return desk


async def test_the_seats_work_against_the_scripted_server() -> None:
    async with model_server(by_seat(read_script(FOLDER / "script.json"))) as server:
        reader, writer = desk_of("reader", server.url), desk_of("writer", server.url)
        assert (await reader.run()).outcome == "delivered"
        assert [arguments["to"] for _, arguments in reader.tools.called] == ["writer"]
        assert (await writer.run()).detail.startswith("Six years on, the bridge opens")


@pytest.mark.parametrize("handle", HANDLES)
async def test_the_seats_work_against_the_test_model(handle: str) -> None:
    desk = desk_of(handle)
    models = [TestModel(custom_output_args=SUBMITTED)]
    desk.turns = LlmTurns(
        desk.turn.seat, clock=desk.clock, entropy=SystemEntropy(), variable=desk.variables.get, models=lambda _: models
    )
    assert (await desk.run()).outcome == "delivered"
    assert [name for name, _ in desk.tools.called] == ["send_mail"]
