"""What an answer of a model may be at most, and what of it can be written down. Pure."""

from dataclasses import fields, replace
from typing import Any

from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart

from crewlet.turns.runners.llm.breaks import ModelBroke
from crewlet.turns.toolbox import MAX_ARGUMENT_BYTES

MAX_ANSWER_CHARS = 4_000_000
MAX_CALLS = 256
"""In one answer. Reading them all holds the node up, and each is worked before anything else of the turn."""
MAX_TOKENS = 1_000_000_000
"""Of one answer, in or out: more than any window. To count more would spend the company's whole budget at once."""


def check_usage(response: ModelResponse) -> None:
    """Hold what an answer is said to have cost against what one can cost.

    Raises:
        ModelBroke: `usage_impossible`.
    """
    usage = response.usage
    for tokens in (usage.input_tokens, usage.output_tokens):
        if not 0 <= tokens <= MAX_TOKENS:
            raise ModelBroke("usage_impossible", f"its provider says that one answer cost {tokens:.6g} tokens")


def check_size(response: ModelResponse) -> None:
    """Hold a whole answer against what any turn can use.

    Raises:
        ModelBroke: `answer_too_large`.
    """
    calls = [part for part in response.parts if isinstance(part, ToolCallPart)]
    if len(calls) > MAX_CALLS:
        raise ModelBroke("answer_too_large", f"{len(calls)} calls in one answer, at most {MAX_CALLS} are made")
    for call in calls:
        if len(call.args_as_json_str()) > MAX_ARGUMENT_BYTES:
            raise ModelBroke("answer_too_large", f"a call of {call.tool_name[:100]} with more than any tool takes")
    check_chars(sum(len(part.content) for part in response.parts if isinstance(part, TextPart)))


def check_chars(chars: int) -> None:
    """Hold the text of an answer, as far as it has come, against its bound.

    Raises:
        ModelBroke: `answer_too_large`.
    """
    if chars > MAX_ANSWER_CHARS:
        raise ModelBroke("answer_too_large", f"more than {MAX_ANSWER_CHARS} characters")


def writable(response: ModelResponse) -> ModelResponse:
    """The same without lone surrogates, which JSON can spell and nothing that follows can write."""
    return replace(response, parts=[_writable(part) for part in response.parts])


def _writable(part: Any) -> Any:
    texts = {field.name: getattr(part, field.name) for field in fields(part)}
    wrong = {
        name: text.encode("utf-8", "replace").decode()
        for name, text in texts.items()
        if isinstance(text, str) and not text.isascii() and _is_broken(text)
    }
    return replace(part, **wrong) if wrong else part


def _is_broken(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
