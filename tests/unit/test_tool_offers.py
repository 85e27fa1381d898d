"""Which schemas of a server's tools are offered on."""

from typing import Any

import jsonschema
import pytest
from pydantic import BaseModel, Field

from crewlet.adapters.mcp.offers import defect, fitted

OBJECT: dict[str, Any] = {"type": "object"}


def _with(part: Any) -> dict[str, Any]:
    return {**OBJECT, "properties": {"a": part}}


class Page(BaseModel):
    """As a server that is written in Python describes its arguments."""

    title: str | None = Field(default=None, max_length=80, pattern="^[a-z]+$")
    kind: dict[str, list[int | str]] = {}
    size: float = Field(ge=0, lt=10, multiple_of=0.5)
    pair: tuple[int, str] = (1, "")


RIGHT: list[dict[str, Any]] = [
    OBJECT,
    Page.model_json_schema(),
    _with({}),
    _with(True),
    _with({"type": ["string", "null"], "enum": [None, 1], "default": {"type": 7}, "x-own": 7}),
    _with({"type": "array", "items": [{"type": "string"}], "additionalItems": False}),
    _with({"anyOf": [{"const": 1}, {"$ref": "#/$defs/b"}], "not": {"required": []}}),
    _with({"properties": {"required": {"type": "boolean"}, "type": True}}),
    {**OBJECT, "$defs": {"b": {"if": {"minimum": 1.5}, "then": False}}, "additionalProperties": False},
]
WRONG: list[dict[str, Any]] = [
    {},
    {"type": ["object"]},
    {**OBJECT, "properties": []},
    {**OBJECT, "required": [1]},
    _with(None),
    _with({"type": "str"}),
    _with({"type": []}),
    _with({"required": True}),
    _with({"enum": "a, b"}),
    _with({"description": 7}),
    _with({"minLength": -1}),
    _with({"maxItems": True}),
    _with({"minimum": "0"}),
    _with({"items": 7}),
    _with({"oneOf": []}),
    _with({"additionalProperties": {"allOf": [{"not": "x"}]}}),
]


@pytest.mark.parametrize("schema", RIGHT)
def test_a_schema_is_offered_on_as_it_is(schema: dict[str, Any]) -> None:
    assert defect(schema) is None


@pytest.mark.parametrize("schema", WRONG)
def test_what_is_no_schema_of_an_object_is_not(schema: dict[str, Any]) -> None:
    assert defect(schema) is not None
    if schema.get("type") == "object":
        # The definition of JSON schema itself says so too.
        with pytest.raises(jsonschema.SchemaError):
            jsonschema.Draft202012Validator.check_schema(schema)


def test_a_schema_is_looked_at_in_as_many_steps_as_it_has_values_however_deep_it_is() -> None:
    schema: dict[str, Any] = {"type": "nothing"}
    for _ in range(5_000):
        schema = _with(schema)
    said = defect(schema)
    assert said is not None and said.endswith("/type is 'nothing' instead of a type of JSON") and len(said) < 400


def test_a_result_without_tools_stays_as_it_is() -> None:
    assert fitted({"content": [], "tools": 7}) == {"content": [], "tools": 7}
