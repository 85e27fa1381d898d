"""Where the arguments of a call break their tool's schema.

Both come from outside, and what holds one against the other runs on the loop that renews the leases: so it takes a
bounded number of steps, and evaluates no regular expression. What is left out here is the tool's own to refuse.
"""

from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from typing import Any

import jsonschema
from jsonschema import validators
from jsonschema.validators import validator_for
from referencing import Registry

_PROBLEM_CHARS = 300
_MAX_STEPS = 10_000

_NOT_LOOKED_AT = ("pattern", "patternProperties", "uniqueItems", "unevaluatedProperties", "unevaluatedItems")
"""What can take for ever however small it is, or for the square of its size."""

_NOTHING_ELSE: Registry[Any] = Registry()
"""A schema that refers to others elsewhere does not make this node fetch them."""

_steps_left: ContextVar[list[int]] = ContextVar("steps_left")


class _TooMuch(Exception):
    """It takes more steps than a schema is worth, or nobody can count them."""


def violation(schema: Mapping[str, Any], arguments: Mapping[str, Any]) -> str | None:
    """Where arguments break a schema. One that cannot be read, or takes too long, breaks none: the tool decides."""
    token = _steps_left.set([_MAX_STEPS])
    try:
        kind = _bounded(validator_for(schema, default=jsonschema.Draft202012Validator))
        error = next(kind(schema, registry=_NOTHING_ELSE).iter_errors(arguments), None)
    except Exception:  # noqa: BLE001 -- whatever a schema of somebody's makes of its reader
        return None
    finally:
        _steps_left.reset(token)
    if error is None:
        return None
    place = "/".join(str(step) for step in error.absolute_path)
    text = f"{place}: {error.message}" if place else str(error.message)
    return text[:_PROBLEM_CHARS]


_extend: Any = validators.extend  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@cache
def _bounded(kind: Any) -> Any:
    keywords = {name: _counted(check) for name, check in kind.VALIDATORS.items()}
    bounded = _extend(kind, validators=keywords | dict.fromkeys(_NOT_LOOKED_AT, _pass))
    evolve = bounded.evolve

    def for_part(validator: Any, **changes: Any) -> Any:
        # A part that names its own draft would be held against that, without a bound.
        part = changes.get("schema")
        if isinstance(part, Mapping) and "$schema" in part:
            raise _TooMuch
        return evolve(validator, **changes)

    bounded.evolve = for_part
    return bounded


_Check = Callable[[Any, Any, Any, Any], Iterator[Any] | None]


def _counted(check: _Check) -> _Check:
    def counted(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any] | None:
        left = _steps_left.get()
        left[0] -= 1
        if left[0] < 0:
            raise _TooMuch
        if check is _ADDITIONAL and "patternProperties" in schema:
            return None  # which properties are additional is for the patterns to say
        return check(validator, value, instance, schema)

    return counted


_ADDITIONAL: Any = jsonschema.Draft202012Validator.VALIDATORS["additionalProperties"]


def _pass(validator: Any, value: Any, instance: Any, schema: Any) -> None:
    del validator, value, instance, schema
