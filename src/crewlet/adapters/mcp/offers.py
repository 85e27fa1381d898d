"""What a server offers, made fit to be read: one tool that is described wrongly costs its server no other. Pure.

A description that no provider of models would take, sent along with the others, would break each turn of the seat.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, cast

LEFT_OUT: Final = "crewlet/left-out"
"""Where it stands, in the `_meta` of a tool that is not offered to anybody, what is wrong with it."""

_SHOWN_CHARS = 100
_EMPTY: Final = {"type": "object"}
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_ONE = frozenset({"additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then"})
_SEVERAL = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_NAMED = frozenset({"$defs", "definitions", "dependentSchemas", "patternProperties", "properties"})
_TEXTS = frozenset({"$ref", "$schema", "description", "format", "pattern", "title"})
_COUNTS = frozenset(
    {"maxItems", "maxLength", "maxProperties", "minItems", "minLength", "minProperties", "maxContains", "minContains"}
)
_NUMBERS = frozenset({"maximum", "minimum"})


def fitted(result: Mapping[str, Any]) -> dict[str, Any]:
    """A result with its tools, if it has any, as the client of `mcp` takes them: each with what is used of it, or with
    what is wrong with it."""
    tools = result.get("tools")
    if not isinstance(tools, list):
        return dict(result)
    return {**result, "tools": [_fitted(tool, number) for number, tool in enumerate(cast("list[Any]", tools), 1)]}


def _fitted(tool: Any, number: int) -> dict[str, Any]:
    if not isinstance(tool, dict):
        return _left_out(f"number {number}", "it is no object")
    said = cast("dict[str, Any]", tool)
    name, schema = said.get("name"), said.get("inputSchema")
    if not isinstance(name, str):
        return _left_out(f"number {number}", "it has no name")
    if not isinstance(schema, dict):
        return _left_out(name, "it has no schema of its arguments")
    schema = {**_EMPTY, **cast("dict[str, Any]", schema)}
    problem = defect(schema)
    if problem is not None:
        return _left_out(name, f"the schema of its arguments is none: {problem}")
    texts = {key: text for key in ("title", "description") if isinstance(text := said.get(key), str)}
    return {"name": name, "inputSchema": schema, **texts, "annotations": _hints(said.get("annotations"))}


def _left_out(name: str, problem: str) -> dict[str, Any]:
    return {"name": name, "inputSchema": _EMPTY, "_meta": {LEFT_OUT: problem}}


def _hints(annotations: Any) -> dict[str, bool]:
    """Those that are read. One that is neither true nor false says nothing."""
    if not isinstance(annotations, dict):
        return {}
    said = cast("dict[str, Any]", annotations)
    return {key: hint for key in ("readOnlyHint", "openWorldHint") if isinstance(hint := said.get(key), bool)}


def defect(schema: Mapping[str, Any]) -> str | None:
    """Where a schema of arguments is no JSON schema of an object; None where nothing is found.

    Looks at each value once, and at the keywords that have had one meaning since draft 4. What is left out here is a
    provider's to refuse.
    """
    if schema.get("type") != "object":
        return f'its type is {_shown(schema.get("type"))} instead of "object"'
    left: list[tuple[str, Any]] = [("", schema)]
    while left:
        place, part = left.pop()
        if isinstance(part, bool):
            continue
        if not isinstance(part, dict):
            return f"{place} is {_shown(part)} instead of a schema"
        for keyword, value in cast("dict[str, Any]", part).items():
            at = f"{place}/{keyword}" if place else keyword
            wrong = _wrong(keyword, value)
            if wrong is not None:
                return f"{at[-_SHOWN_CHARS:]} is {_shown(value)} instead of {wrong}"
            left += _below(keyword, value, at)
    return None


def _wrong(keyword: str, value: Any) -> str | None:
    """What the value of a keyword should be; None where it may be that."""
    match keyword:
        case "type":
            named = cast("Sequence[Any]", value) if isinstance(value, list) else (value,)
            is_right = bool(named) and all(isinstance(name, str) and name in _TYPES for name in named)
            return None if is_right else "a type of JSON"
        case "required":
            is_right = isinstance(value, list) and all(isinstance(name, str) for name in cast("list[Any]", value))
            return None if is_right else "a list of names"
        case "enum":
            return None if isinstance(value, list) else "a list of values"
        case _ if keyword in _TEXTS:
            return None if isinstance(value, str) else "a text"
        case _ if keyword in _COUNTS:
            is_count = isinstance(value, int | float) and not isinstance(value, bool) and value >= 0
            return None if is_count else "a count"
        case _ if keyword in _NUMBERS:
            return None if isinstance(value, int | float) and not isinstance(value, bool) else "a number"
        case _ if keyword in _SEVERAL:
            return None if isinstance(value, list) and value else "a list of schemas"
        case _ if keyword in _NAMED:
            return None if isinstance(value, dict) else "an object of schemas"
        case _:
            return None


def _below(keyword: str, value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """The schemas in the value of a keyword, each with its place."""
    if keyword in _NAMED:
        yield from ((f"{at}/{name}"[-_SHOWN_CHARS:], part) for name, part in cast("dict[str, Any]", value).items())
    elif keyword in _SEVERAL or (keyword == "items" and isinstance(value, list)):
        yield from ((f"{at}/{number}", part) for number, part in enumerate(cast("list[Any]", value)))
    elif keyword in _ONE:
        yield at, value


def _shown(value: Any) -> str:
    return repr(value)[:_SHOWN_CHARS]
