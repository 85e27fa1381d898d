"""Reading an `llm` runner: `{type: llm, model: "provider:name", ...}`.

A key never stands in the document: `api_key` names the variable of the node that holds it. Which providers there are
is the library's to say, on the node that asks them.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

from crewlet.company.model import LlmModel, LlmRunner, Setting
from crewlet.company.rules import read_address
from crewlet.kit.fields import Block, Field
from crewlet.kit.yamlfile import ListNode, MapNode

MAX_ROUNDS: Final = 1_000
MAX_FALLBACKS: Final = 8
_MAX_TIMEOUT_S: Final = 24 * 3600

_REACH: Final = ("base_url", "api_key")
LLM_KEYS: Final = (
    "type",
    "model",
    *_REACH,
    "fallback",
    "instructions",
    "max_rounds",
    "timeout_s",
    "stream",
    "settings",
)

_MODEL = re.compile(r"([a-z0-9][a-z0-9/_-]*):(\S+)")
_KEY = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")

_EFFORTS: Final = ("minimal", "low", "medium", "high")
_SETTINGS: Final[Mapping[str, Callable[[Field], Setting]]] = {
    "max_tokens": lambda field: field.integer(1, 10_000_000),
    "temperature": lambda field: field.number(0, 2),
    "top_p": lambda field: field.number(0, 1),
    "top_k": lambda field: field.integer(1, 1_000_000),
    "seed": lambda field: field.integer(-(2**31), 2**31 - 1),
    "presence_penalty": lambda field: field.number(-2, 2),
    "frequency_penalty": lambda field: field.number(-2, 2),
    "thinking": lambda field: field.choice(_EFFORTS),
}


def read_llm(block: Block) -> LlmRunner:
    """The runner that a block with `LLM_KEYS` describes.

    Raises:
        ConfigRefused: with source, line, field and remedy.
    """
    model = _read_model(block, block.require("model", _MODEL_REMEDY))
    fallback, instructions = block.get("fallback"), block.get("instructions")
    rounds, timeout = block.get("max_rounds"), block.get("timeout_s")
    stream, settings = block.get("stream"), block.get("settings")
    return LlmRunner(
        model=model,
        fallback=_read_fallback(fallback, model) if fallback else (),
        instructions=instructions.text().strip() if instructions else "",
        max_rounds=rounds.integer(1, MAX_ROUNDS) if rounds else 24,
        timeout_s=timeout.number(0.1, _MAX_TIMEOUT_S) if timeout else 600.0,
        is_streamed=stream.choice(("true", "false")) == "true" if stream else True,
        settings=_read_settings(settings) if settings else {},
    )


_MODEL_REMEDY: Final = "write `provider:name`, for instance `openai:gpt-5` or `anthropic:claude-sonnet-4-5`"


def _read_model(block: Block, field: Field) -> LlmModel:
    url, key = block.get("base_url"), block.get("api_key")
    return LlmModel(
        name=_read_name(field),
        base_url=_read_url(url) if url else None,
        api_key=_read_key(key) if key else None,
    )


def _read_name(field: Field) -> str:
    name = field.line_of_text()
    if not _MODEL.fullmatch(name):
        field.refuse(f"{name!r} does not name a provider and a model", _MODEL_REMEDY)
    return name


def _read_url(field: Field) -> str:
    remedy = "write `https://host/v1`, and put what is secret into a variable that `api_key:` names"
    secret = "an address holds no user, password or query here: it shows in lists and logs"
    text, parts = read_address(field, remedy, secret=secret)
    if parts.query or parts.fragment:
        field.refuse(secret, remedy)
    return text


def _read_key(field: Field) -> str:
    """The name of the variable. What stands there instead may be a key, so it is not repeated."""
    match = _KEY.fullmatch(field.text().strip())
    if match is None:
        field.refuse(
            "a key does not stand in the document; this must be a reference to one variable of the node",
            "write `${NAME}`, for instance `${OPENAI_API_KEY}`, and set that variable where the node runs",
        )
    return match.group(1)


def _read_fallback(field: Field, model: LlmModel) -> tuple[LlmModel, ...]:
    if not isinstance(field.node, ListNode):
        field.refuse("this must be a list of models", "write each after `- `, as `provider:name` or as a mapping")
    models = tuple(_read_other(item, model) for item in field.items())
    if len(models) > MAX_FALLBACKS:
        field.refuse(f"there are at most {MAX_FALLBACKS} fallback models, here {len(models)}", "remove some")
    return models


def _read_other(item: Field, model: LlmModel) -> LlmModel:
    """A fallback. One that is only a name and has the provider of the seat's model is reached in the same way."""
    if isinstance(item.node, MapNode):
        block = item.block(("model", *_REACH))
        return _read_model(block, block.require("model", _MODEL_REMEDY))
    name = _read_name(item)
    if name.partition(":")[0] == model.name.partition(":")[0]:
        return LlmModel(name, model.base_url, model.api_key)
    return LlmModel(name)


def _read_settings(field: Field) -> Mapping[str, Setting]:
    block = field.block(_SETTINGS)
    given = {name: block.read(name, _SETTINGS[name], None) for name in block.node.values if name in _SETTINGS}
    return {name: value for name, value in given.items() if value is not None}
