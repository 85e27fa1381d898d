"""`llm` runners in the company document."""

import json

import pytest

from crewlet.company.document import parse_company
from crewlet.company.model import LlmModel, LlmRunner
from crewlet.kit.refusal import ConfigRefused


def runner(*lines: str) -> str:
    body = "\n".join(f"      {line}" for line in lines)
    return f"name: x\nroles:\n  - handle: a\n    runner:\n      type: llm\n{body}"


def read(*lines: str) -> LlmRunner:
    made = parse_company(runner(*lines), "c.yaml").seats[0].runner
    assert isinstance(made, LlmRunner)
    return made


def test_an_llm_seat_needs_nothing_but_a_model() -> None:
    assert read("model: anthropic:claude-sonnet-4-5") == LlmRunner(LlmModel("anthropic:claude-sonnet-4-5"))


def test_everything_that_can_be_said_of_an_llm_seat() -> None:
    made = read(
        "model: openai:gpt-5",
        "base_url: https://models.example/v1",
        "api_key: ${MODELS_KEY}",
        "instructions: |",
        "  Read, then write.",
        "max_rounds: 9",
        "timeout_s: 30",
        "stream: false",
        "settings: {temperature: 0.5, max_tokens: 400, thinking: low}",
        "fallback:",
        "  - openai:gpt-5-mini",
        "  - groq:llama",
        "  - {model: 'openai:qwen', base_url: 'http://127.0.0.1:8000/v1'}",
    )
    assert made == LlmRunner(
        LlmModel("openai:gpt-5", "https://models.example/v1", "MODELS_KEY"),
        fallback=(
            LlmModel("openai:gpt-5-mini", "https://models.example/v1", "MODELS_KEY"),
            LlmModel("groq:llama"),
            LlmModel("openai:qwen", "http://127.0.0.1:8000/v1"),
        ),
        instructions="Read, then write.",
        max_rounds=9,
        timeout_s=30.0,
        is_streamed=False,
        settings={"temperature": 0.5, "max_tokens": 400, "thinking": "low"},
    )


MODEL = "model: openai:gpt-5"
REFUSED: dict[str, tuple[tuple[str, ...], str]] = {
    "no model": ((), "c.yaml:4: roles[0].runner: 'model' is missing; write `provider:name`"),
    "no provider": (("model: gpt-5",), "c.yaml:6: roles[0].runner.model: 'gpt-5' does not name a provider and a model"),
    "another kind's key": ((MODEL, "steps: []"), "c.yaml:7: roles[0].runner.steps: this key is not known"),
    "address": ((MODEL, "base_url: ftp://x/v1"), "roles[0].runner.base_url: 'ftp://x/v1' is no address over HTTP"),
    "password": ((MODEL, "base_url: https://me:pw@x/v1"), "base_url: an address holds no user, password or query"),
    "rounds": ((MODEL, "max_rounds: 0"), "max_rounds: '0' is not a whole number from 1 to 1000"),
    "time": ((MODEL, "timeout_s: 0"), "timeout_s: '0' is not a number from 0.1 to 86400"),
    "stream": ((MODEL, "stream: perhaps"), "stream: 'perhaps' is not known here; write one of true, false"),
    "setting": ((MODEL, "settings: {temprature: 1}"), "temprature: this key is not known; the nearest known one is"),
    "setting's value": ((MODEL, "settings: {top_p: 7}"), "settings.top_p: '7' is not a number from 0 to 1"),
    "fallback": ((MODEL, "fallback: openai:x"), "fallback: this must be a list of models"),
    "fallback's name": ((MODEL, "fallback: [x]"), "fallback[0]: 'x' does not name a provider and a model"),
}


@pytest.mark.parametrize(("lines", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_an_llm_seat_is_told_with_its_place(lines: tuple[str, ...], sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(*lines)
    assert sentence in str(refused.value)


@pytest.mark.parametrize("value", ["sk-live-1234", "Bearer ${KEY}", "${KEY}${OTHER}", "${}", "$KEY"])
def test_a_key_in_the_document_is_refused_and_not_repeated(value: str) -> None:
    with pytest.raises(ConfigRefused, match="a key does not stand in the document") as refused:
        read(MODEL, f"api_key: {json.dumps(value)}")
    assert value not in str(refused.value)
