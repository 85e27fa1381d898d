"""Tools whose schemas a model's provider does not take, though they are right: they cost the seat no other."""

import pytest
from llm_desk import LOOK, SUBMITTED, LlmDesk, at
from structlog.testing import capture_logs

from crewlet.company.model import LlmRunner
from crewlet.ports.tools import ToolInfo
from crewlet.testing.modelserver import Asked, Call, Refuse, Say, model_server
from crewlet.turns.runners.llm.breaks import ModelBroke
from crewlet.turns.runners.llm.prompt import SUBMIT_TOOL

SUBMITS = Say(calls=[Call(SUBMIT_TOOL, SUBMITTED)])
LIST = {"type": "object", "properties": {"pages": {"type": "array"}}}
TOOLS = [LOOK, *(ToolInfo(f"files__{name}", "", LIST, "files") for name in ("read", "read_all"))]
WHY = "Invalid schema for function '{}': In context=('properties', 'pages'), array schema missing items."


def _offered(asked: Asked) -> list[str]:
    return [tool["function"]["name"] for tool in asked.body["tools"]]


async def test_a_tool_that_its_provider_does_not_take_is_left_out_for_the_tenure_and_told_of_once() -> None:
    def answer(asked: Asked) -> Refuse | Say:
        refused = next((name for name in _offered(asked) if name.startswith("files__")), None)
        return Refuse(400, WHY.format(refused)) if refused is not None else SUBMITS

    async with model_server(answer) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        desk.tools.infos = TOOLS
        with capture_logs() as logs:
            for _ in range(2):
                assert (await desk.run()).outcome == "delivered"
        assert [len(_offered(asked)) for asked in server.asked] == [4, 3, 2, 2]
    told = [(line["server"], line["tool"], line["reason"]) for line in logs if line["event"] == "tool_left_out"]
    assert [(server, tool) for server, tool, _ in told] == [("files", "files__read"), ("files", "files__read_all")]
    assert "array schema missing items" in told[0][2]
    # What was refused was no round of the turn.
    assert desk.rounds == [1, 1]


@pytest.mark.parametrize(
    "why",
    [
        "Invalid schema for function 'look'",
        "Invalid schema for function 'nothing'",
        "Invalid schema for function 'files__read' or 'files__read_all'",
        "You may not use 'files__read' here",
        "Invalid schema",
    ],
    ids=["Crewlet's own", "nobody's", "one of two", "another reason", "no name"],
)
async def test_a_refusal_that_names_no_servers_tool_for_its_schema_breaks_the_turn_as_before(why: str) -> None:
    async with model_server([Refuse(400, why)]) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        desk.tools.infos = TOOLS
        with pytest.raises(ModelBroke, match="model_rejected"):
            await desk.run()
        assert len(server.asked) == 1


async def test_a_call_of_a_tool_that_was_left_out_is_told_to_the_model_and_not_made() -> None:
    script = [Refuse(400, WHY.format("files__read")), Say(calls=[Call("files__read", {})]), SUBMITS]
    async with model_server(script) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        desk.tools.infos = TOOLS
        assert (await desk.run()).outcome == "delivered"
    assert desk.tools.called == []
