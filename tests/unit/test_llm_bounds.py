"""What a model, or the schema of a server's tool, may do to the node that reads it: nothing but break its own turn."""

import gzip
import json
from contextlib import suppress
from typing import Any

import pytest
from llm_desk import SUBMITTED, LlmDesk, at

from crewlet.company.model import LlmRunner
from crewlet.ports.tools import ToolInfo
from crewlet.testing.modelserver import Answer, Call, Garbage, Refuse, Say, model_server
from crewlet.turns.runners.llm import ModelBroke
from crewlet.turns.runners.llm.bounds import MAX_CALLS, MAX_TOKENS
from crewlet.turns.runners.llm.schemas import violation
from crewlet.turns.runners.llm.wire import MAX_BODY_BYTES

LOOKS, SUBMITS = Say(calls=[Call("look", {"page": 7})]), Say(calls=[Call("submit_work", SUBMITTED)])
streamed = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@streamed
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Say("hi", input_tokens=MAX_TOKENS + 1), "usage_impossible"),
        (Say("hi", output_tokens=10**30), "usage_impossible"),
        (Say(calls=[Call("look", {"page": page}) for page in range(MAX_CALLS + 1)]), "answer_too_large"),
        (Say("x" * 4_000_001), "answer_too_large"),
    ],
    ids=["tokens", "more tokens than a number holds", "calls", "text"],
)
async def test_an_answer_beyond_all_bounds_breaks_its_turn_before_anything_follows_from_it(
    answer: Answer, kind: str, is_streamed: bool
) -> None:
    async with model_server([answer]) as server:
        desk = LlmDesk(LlmRunner(at(server.url), is_streamed=is_streamed))
        with pytest.raises(ModelBroke) as broke:
            await desk.run()
    assert broke.value.kind == kind
    assert (desk.tools.called, desk.sent) == ([], [])
    assert all(usage.input_tokens + usage.output_tokens <= 2 * MAX_TOKENS for usage in desk.usage)


@streamed
@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (Garbage(gzip.compress(b" " * 50_000_000), encoding="gzip"), "model_misbehaved"),
        (Garbage(b"data: " + b"x" * (MAX_BODY_BYTES + 1)), "answer_too_large"),
    ],
    ids=["compressed", "without an end"],
)
async def test_an_answer_is_neither_unpacked_nor_read_beyond_its_bound(
    answer: Answer, kind: str, is_streamed: bool
) -> None:
    async with model_server([answer]) as server:
        with pytest.raises(ModelBroke) as broke:
            await LlmDesk(LlmRunner(at(server.url), is_streamed=is_streamed)).run()
    assert broke.value.kind == kind
    assert server.asked[0].headers["accept-encoding"] == "identity"


async def test_tokens_below_nothing_take_nothing_from_a_budget() -> None:
    async with model_server([Say("hi", input_tokens=-(10**9), output_tokens=5)]) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        with suppress(ModelBroke):
            await desk.run()
    assert all(usage.input_tokens >= 0 and usage.output_tokens >= 0 for usage in desk.usage)


@streamed
async def test_what_no_store_can_keep_is_replaced_in_an_answer(is_streamed: bool) -> None:
    async with model_server([Say("a\ud800b\x1b[31m\x00c")]) as server:
        desk = LlmDesk(LlmRunner(at(server.url), is_streamed=is_streamed), sources=("seat:bob",))
        result = await desk.run()
    assert result.detail == "a?b [31m c"
    desk.sent[0].body.encode()


async def test_a_call_by_a_name_that_cannot_be_written_is_a_call_of_no_tool() -> None:
    async with model_server([Say(calls=[Call("lo\ud800ok", {})]), SUBMITS]) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        assert (await desk.run()).outcome == "delivered"
    assert desk.tools.called == []


async def test_what_a_provider_says_of_its_error_is_one_line_that_can_be_written() -> None:
    async with model_server([Refuse(400, "a\x00b\ud800\x1b]0;c")]) as server:
        with pytest.raises(ModelBroke, match="model_rejected") as broke:
            await LlmDesk(LlmRunner(at(server.url))).run()
    assert str(broke.value).isprintable()


def _completion(message: dict[str, Any]) -> Garbage:
    choice = {"index": 0, "message": {"role": "assistant", **message}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    frame = {"id": "c", "object": "chat.completion", "created": 1, "model": "m"}
    return Garbage(json.dumps({**frame, "choices": [choice], "usage": usage}).encode())


@pytest.mark.parametrize(
    "arguments",
    [
        '{"page": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"page": NaN}',
        '{"page": ' + "9" * 5_000 + "}",
        '{"page": "\\ud800"}',
        "[7]",
        "null",
    ],
    ids=["deep", "NaN", "a number of 5,000 digits", "a lone surrogate", "a list", "null"],
)
async def test_arguments_that_are_hardly_json_are_told_to_the_model_and_the_call_is_not_made(arguments: str) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": arguments}}
    async with model_server([_completion({"content": None, "tool_calls": [call]}), SUBMITS]) as server:
        desk = LlmDesk(LlmRunner(at(server.url), is_streamed=False))
        assert (await desk.run()).outcome == "delivered"
    assert desk.tools.called == []


_DRAFT = "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("schema", "page"),
    [
        ({"pattern": "^(a+)+$"}, "a" * 60 + "!"),
        ({"pattern": "("}, "a"),
        ({"patternProperties": {"^(a+)+$": {}}, "additionalProperties": False}, {"a" * 60 + "!": 1}),
        ({"uniqueItems": True}, [{"a": number} for number in range(20_000)]),
        ({"multipleOf": 0}, 1),
        ({"$ref": "#/properties/page"}, 1),
        ({"anyOf": [{"$ref": "#/properties/page"}] * 2}, 1),
        ({"$ref": "#/$defs/d0"}, 1),
        ({"$schema": _DRAFT, "pattern": "^(a+)+$"}, "a" * 60 + "!"),
        ({"not": {"$schema": _DRAFT, "pattern": "^(a+)+$"}}, "a" * 60 + "!"),
        ({"$ref": _DRAFT}, {"required": [0, "a"] * 10_000}),
    ],
    ids=[
        "slow pattern",
        "no pattern",
        "slow names",
        "unique",
        "zero",
        "itself",
        "itself twice",
        "doubling",
        "of another draft",
        "inside of another draft",
        "a draft's own",
    ],
)
async def test_a_schema_that_would_take_for_ever_holds_nobody_up_and_leaves_the_call_to_its_tool(
    schema: dict[str, Any], page: object
) -> None:
    doubling = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(40)}
    whole = {"type": "object", "properties": {"page": schema}, "$defs": {**doubling, "d40": {}}}
    async with model_server([Say(calls=[Call("look", {"page": page})]), SUBMITS]) as server:
        desk = LlmDesk(LlmRunner(at(server.url)))
        desk.tools.infos = [ToolInfo("look", "", whole)]
        assert (await desk.run()).outcome == "delivered"
    assert desk.tools.called == [("look", {"page": page})]


def test_what_a_schema_asks_without_patterns_is_still_asked() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}
    assert violation(schema, {"a": 1}) is None
    assert violation(schema, {"a": "x"}) == "a: 'x' is not of type 'integer'"
    assert "unexpected" in str(violation(schema, {"b": 1}))
    assert violation(schema | {"patternProperties": {"b": {}}}, {"b": 1}) is None
