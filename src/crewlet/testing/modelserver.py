"""A local server with the chat API that most providers of models speak, whose answers are written down beforehand.

For tests, and for companies that run without any provider. It answers over real HTTP, streaming or not as it is asked,
and fails as providers do: with 429 and 500, slowly, with garbage, or in the middle of a stream.

`python -m crewlet.testing.modelserver SCRIPT.json [PORT]` serves a script until it is ended: for each seat the answers
of a turn's rounds in their order, `{"text": ...}` or `{"tool": NAME, "arguments": {...}}`, the last of them for ever.
One with `"after_s": SECONDS` takes its time.
"""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

_MAX_REQUEST_BYTES = 64 * 1_048_576


@dataclass(frozen=True, slots=True)
class Call:
    """A tool that the model calls; arguments given as a text are sent as they are, whatever they are."""

    tool: str
    arguments: Mapping[str, Any] | str


@dataclass(frozen=True, slots=True)
class Say:
    """What the model answers.

    Attributes:
        finish: the reason with which it ends; None takes the one that fits.
        after_s: how long it thinks first.
        after: set when it may answer; it thinks until then.
    """

    text: str = ""
    calls: Sequence[Call] = ()
    input_tokens: int = 10
    output_tokens: int = 5
    finish: str | None = None
    after_s: float = 0.0
    after: asyncio.Event | None = None


@dataclass(frozen=True, slots=True)
class Refuse:
    """An error instead of an answer.

    Attributes:
        retry_after: the value of that header; "" sends none.
    """

    status: int
    message: str = "it is refused"
    code: str = ""
    retry_after: str = ""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection breaks after so many characters of this answer; a request for no stream gets half a body."""

    text: str = "this answer has no"
    is_clean: bool = False


@dataclass(frozen=True, slots=True)
class Garbage:
    """A body that is none of the API's; `encoding` is how it says that it is compressed."""

    body: bytes = b"<html>the gateway is tired</html>\xff\xfe"
    content_type: str = "application/json"
    encoding: str = ""


@dataclass(frozen=True, slots=True)
class Hang:
    """No answer until the client is gone."""


Answer = Say | Refuse | Cut | Garbage | Hang


@dataclass(frozen=True, slots=True)
class Asked:
    """One request as it arrived."""

    path: str
    headers: Mapping[str, str]
    body: dict[str, Any]

    @property
    def messages(self) -> list[dict[str, Any]]:
        return self.body.get("messages", [])


@dataclass(eq=False)
class ModelServer:
    """A running server.

    Attributes:
        url: the `base_url` for a client.
        script: the answer to each request: a list, taken in order, or a function. A request past its end is refused.
        asked: what arrived.
        arrived: set at each request, for whoever waits for one.
    """

    script: "Callable[[Asked], Answer] | list[Answer]"
    asked: list[Asked] = field(default_factory=list[Asked])
    arrived: asyncio.Event = field(default_factory=asyncio.Event)
    url: str = ""
    _open: "dict[asyncio.Task[None], asyncio.StreamWriter]" = field(
        default_factory=dict["asyncio.Task[None]", asyncio.StreamWriter]
    )

    @property
    def connections(self) -> int:
        """How many are open."""
        return len(self._open)

    def answer(self, asked: Asked) -> Answer:
        """The answer to the request that has just arrived."""
        if callable(self.script):
            return self.script(asked)
        return self.script.pop(0) if self.script else Refuse(400, "the script has no further answer")

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, for as long as it lasts."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = writer
        try:
            while (asked := await _read(reader)) is not None:
                self.asked.append(asked)
                self.arrived.set()
                if not await self._reply(asked, reader, writer):
                    break
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client is gone
        finally:
            del self._open[task]
            writer.close()

    async def close(self) -> None:
        """Break every connection, and see them end."""
        for writer in self._open.values():
            writer.transport.abort()
        if self._open:
            await asyncio.wait(tuple(self._open))

    async def _reply(self, asked: Asked, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request. False when the connection is to be closed."""
        is_streamed = bool(asked.body.get("stream"))
        match self.answer(asked):
            case Say() as say:
                if say.after_s and await _is_gone(reader, asyncio.sleep(say.after_s)):
                    return False
                if say.after is not None and await _is_gone(reader, say.after.wait()):
                    return False
                if is_streamed:
                    _head(writer, 200, "text/event-stream")
                    for chunk in _chunks(say, asked):
                        _send_chunk(writer, b"data: " + json.dumps(chunk).encode() + b"\n\n")
                    _send_chunk(writer, b"data: [DONE]\n\n")
                    _send_chunk(writer, b"")
                else:
                    _whole(writer, 200, json.dumps(_completion(say, asked)).encode())
            case Refuse(status, message, code, retry_after):
                body = {"error": {"message": message, "type": "error", "code": code or None}}
                headers = {"Retry-After": retry_after} if retry_after else {}
                _whole(writer, status, json.dumps(body).encode(), headers=headers)
            case Cut(text, is_clean):
                _head(writer, 200, "text/event-stream" if is_streamed else "application/json")
                half = b"data: " + json.dumps(_chunk(asked, {"role": "assistant", "content": text})).encode() + b"\n\n"
                _send_chunk(writer, half if is_streamed else half[6 : len(half) // 2])
                if is_clean:
                    _send_chunk(writer, b"")
                await writer.drain()
                return False
            case Garbage(body, content_type, encoding):
                content_type = "text/event-stream" if is_streamed else content_type
                headers = {"Content-Encoding": encoding} if encoding else {}
                _whole(writer, 200, body, content_type=content_type, headers=headers)
            case Hang():
                await reader.read(1)
                return False
        await writer.drain()
        return True


@contextlib.asynccontextmanager
async def model_server(
    script: Callable[[Asked], Answer] | Iterable[Answer], *, host: str = "127.0.0.1", port: int = 0
) -> AsyncGenerator[ModelServer]:
    """Serve a script on a free port."""
    server = ModelServer(script if callable(script) else list(script))
    listening = await asyncio.start_server(server.serve, host, port, limit=_MAX_REQUEST_BYTES)
    server.url = f"http://{host}:{listening.sockets[0].getsockname()[1]}/v1"
    try:
        yield server
    finally:
        listening.close()
        await server.close()


async def _read(reader: asyncio.StreamReader) -> Asked | None:
    head = await reader.readuntil(b"\r\n\r\n") if not reader.at_eof() else b""
    if not head:
        return None
    first, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split(" ")[1], headers, json.loads(body) if body else {})


async def _is_gone(reader: asyncio.StreamReader, thinking: Coroutine[Any, Any, object]) -> bool:
    """Think, unless the client hangs up before."""
    thought, gone = asyncio.ensure_future(thinking), asyncio.ensure_future(reader.read(1))
    try:
        await asyncio.wait((thought, gone), return_when=asyncio.FIRST_COMPLETED)
        return gone.done()
    finally:
        thought.cancel()
        gone.cancel()
        await asyncio.gather(thought, gone, return_exceptions=True)


def _head(writer: asyncio.StreamWriter, status: int, content_type: str) -> None:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {content_type}\r\nTransfer-Encoding: chunked\r\n\r\n"
    writer.write(head.encode())


def _send_chunk(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")


def _whole(
    writer: asyncio.StreamWriter,
    status: int,
    body: bytes,
    *,
    content_type: str = "application/json",
    headers: Mapping[str, str] | None = None,
) -> None:
    lines = {"Content-Type": content_type, "Content-Length": str(len(body)), **(headers or {})}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
    writer.write(f"HTTP/1.1 {status} -\r\n{head}\r\n".encode() + body)


def _tool_calls(say: Say) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call-{index}",
            "index": index,
            "type": "function",
            "function": {
                "name": call.tool,
                "arguments": call.arguments if isinstance(call.arguments, str) else json.dumps(call.arguments),
            },
        }
        for index, call in enumerate(say.calls)
    ]


def _finish(say: Say) -> str:
    return say.finish or ("tool_calls" if say.calls else "stop")


def _usage(say: Say) -> dict[str, int]:
    return {
        "prompt_tokens": say.input_tokens,
        "completion_tokens": say.output_tokens,
        "total_tokens": say.input_tokens + say.output_tokens,
    }


def _completion(say: Say, asked: Asked) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": say.text or None}
    if say.calls:
        message["tool_calls"] = _tool_calls(say)
    choice = {"index": 0, "message": message, "finish_reason": _finish(say)}
    return {**_frame(asked, "chat.completion"), "choices": [choice], "usage": _usage(say)}


def _chunks(say: Say, asked: Asked) -> Iterable[dict[str, Any]]:
    """The same as a stream: its text in three pieces, each call in two."""
    yield _chunk(asked, {"role": "assistant", "content": ""})
    third = max(1, len(say.text) // 3)
    for start in range(0, len(say.text), third):
        yield _chunk(asked, {"content": say.text[start : start + third]})
    for call in _tool_calls(say):
        arguments = call["function"]["arguments"]
        half = len(arguments) // 2
        begun = {**call, "function": {**call["function"], "arguments": arguments[:half]}}
        yield _chunk(asked, {"tool_calls": [begun]})
        yield _chunk(asked, {"tool_calls": [{"index": call["index"], "function": {"arguments": arguments[half:]}}]})
    yield _chunk(asked, {}, finish=_finish(say))
    yield {**_frame(asked, "chat.completion.chunk"), "choices": [], "usage": _usage(say)}


def _chunk(asked: Asked, delta: Mapping[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {**_frame(asked, "chat.completion.chunk"), "choices": [choice]}


def _frame(asked: Asked, kind: str) -> dict[str, Any]:
    return {"id": "chat-1", "object": kind, "created": 1_700_000_000, "model": asked.body.get("model", "scripted")}


def by_seat(script: Mapping[str, Sequence[Answer]]) -> Callable[[Asked], Answer]:
    """Answers for a whole company, the same whenever a turn runs again: by the seat that asks, and the round it is in.

    Args:
        script: the answers of a turn's rounds by the seat's handle; the last is given for ever.
    """

    def answer(asked: Asked) -> Answer:
        told = str(asked.messages[0].get("content", "")) if asked.messages else ""
        done = sum(message.get("role") == "assistant" for message in asked.messages)
        for handle, answers in script.items():
            if f"the seat `{handle}`" in told and answers:
                return answers[min(done, len(answers) - 1)]
        return Refuse(400, "the script has no answer for this seat")

    return answer


def read_script(path: Path) -> dict[str, list[Answer]]:
    """The script in a file: JSON, see the module.

    Raises:
        ValueError: it is none.
    """
    seats = cast("dict[str, list[dict[str, Any]]]", json.loads(path.read_text(encoding="utf-8")))
    return {handle: [_read_answer(entry) for entry in answers] for handle, answers in seats.items()}


def _read_answer(entry: dict[str, Any]) -> Answer:
    after_s = float(entry.get("after_s", 0))
    match entry:
        case {"tool": str(tool)}:
            return Say(calls=[Call(tool, cast("dict[str, Any]", entry.get("arguments", {})))], after_s=after_s)
        case {"text": str(text)}:
            return Say(text, after_s=after_s)
        case _:
            raise ValueError(f"this is no answer: {json.dumps(entry)[:200]}")


async def _main(path: Path, port: int) -> None:
    async with model_server(by_seat(read_script(path)), port=port) as server:
        print(server.url, flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        raise SystemExit("usage: python -m crewlet.testing.modelserver SCRIPT.json [PORT]")
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) == 3 else 0))
