"""JSON that anybody may have written, as typed values: every way in which it can be wrong is one error."""

from datetime import datetime
from functools import cache
from typing import Annotated, Any, TypeVar

import msgspec

Instant = Annotated[datetime, msgspec.Meta(tz=True)]
"""An instant in a stored value: one without a zone could be compared with no other."""

T = TypeVar("T")


def decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    """A JSON text as a value of a type.

    Raises:
        msgspec.DecodeError: it is none, or it is nested deeper than can be read.
    """
    try:
        return _decoder(kind).decode(data)
    except RecursionError as error:
        raise msgspec.DecodeError("it is nested too deeply") from error
    except UnicodeDecodeError as error:
        raise msgspec.DecodeError(str(error)) from error


@cache
def _decoder(kind: type[T]) -> "msgspec.json.Decoder[Any]":
    return msgspec.json.Decoder(kind)
