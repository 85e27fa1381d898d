"""What may come in over the wire of a model's provider: nothing compressed, and nothing without an end."""

from collections.abc import AsyncIterator
from typing import Any

import httpx2
from pydantic_ai.models import Model

from crewlet.turns.runners.llm.breaks import ModelBroke

MAX_BODY_BYTES = 16_777_216
"""Of a whole answer, or of one line of a stream. What its text may be is `bounds`' to say."""


def bound_answers(model: Model) -> None:
    """Have the client of a model read no more of an answer than that. A client that is not known is left as it is."""
    http: Any = getattr(getattr(model.provider, "client", None), "_client", None)
    if isinstance(http, httpx2.AsyncClient):
        http.headers["accept-encoding"] = "identity"
        hooks = http.event_hooks
        http.event_hooks = {**hooks, "response": [*hooks.get("response", []), _look]}


def broken_by(error: BaseException) -> ModelBroke | None:
    """What was raised here and came back as an error of the client's own."""
    seen: BaseException | None = error
    while seen is not None and not isinstance(seen, ModelBroke):
        seen = seen.__cause__ or seen.__context__
    return seen


async def _look(response: httpx2.Response) -> None:
    """See each answer before its body is read."""
    if response.headers.get("content-encoding", "identity") != "identity":
        raise ModelBroke("model_misbehaved", "its provider's answer is compressed, which was not asked for")
    assert isinstance(response.stream, httpx2.AsyncByteStream)
    is_stream = response.headers.get("content-type", "").startswith("text/event-stream")
    response.stream = _Bounded(response.stream, is_stream=is_stream)


class _Bounded(httpx2.AsyncByteStream):
    """The body of one answer."""

    def __init__(self, body: httpx2.AsyncByteStream, *, is_stream: bool) -> None:
        self._body = body
        self._is_stream = is_stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for chunk in self._body:
            end = chunk.rfind(b"\n") if self._is_stream else -1
            size = size + len(chunk) if end < 0 else len(chunk) - end
            if size > MAX_BODY_BYTES:
                raise ModelBroke("answer_too_large", f"more than {MAX_BODY_BYTES} bytes at once")
            yield chunk

    async def aclose(self) -> None:
        await self._body.aclose()
