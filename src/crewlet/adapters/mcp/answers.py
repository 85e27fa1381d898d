"""What a server says, as values of the port: lists of tools, and answers to calls. Bounded. Pure."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, assert_never

import mcp_types as types

from crewlet.adapters.mcp.names import tool_name
from crewlet.adapters.mcp.offers import LEFT_OUT
from crewlet.adapters.mcp.redact import SHOWN_CHARS, Redaction
from crewlet.kit import lines
from crewlet.ports.tools import ToolAnswer, ToolInfo

MAX_ANSWER_CHARS: Final = 200_000
MAX_DESCRIPTION_CHARS: Final = 8_000


def tool_infos(server: str, tools: Sequence[types.Tool], redact: Redaction) -> dict[str, tuple[ToolInfo, str]]:
    """Each tool under its name in the seat, with its name on the server. Of equal names the first counts.

    Those that are left out are not among them.
    """
    found: dict[str, tuple[ToolInfo, str]] = {}
    seen: set[str] = set()
    for tool in tools:
        if tool.name in seen or LEFT_OUT in (tool.meta or {}):
            continue
        seen.add(tool.name)
        name = tool_name(server, tool.name, found)
        hints = tool.annotations
        found[name] = (
            ToolInfo(
                name=name,
                description=cut(redact(tool.description or tool.title or ""), MAX_DESCRIPTION_CHARS),
                schema=redact.within(tool.input_schema),
                server=server,
                is_read_only=hints.read_only_hint if hints else None,
                is_open_world=hints.open_world_hint if hints else None,
            ),
            tool.name,
        )
    return found


def left_out(tools: Sequence[types.Tool], redact: Redaction) -> Mapping[str, str]:
    """What is wrong with the tools that are left out, by their names on the server. For people."""
    wrong = [(tool.name, str(tool.meta[LEFT_OUT])) for tool in tools if tool.meta and LEFT_OUT in tool.meta]
    return {_for_people(name, redact): _for_people(problem, redact) for name, problem in wrong}


def _for_people(text: str, redact: Redaction) -> str:
    return lines.one_line(redact(text), SHOWN_CHARS)


def answer_of(result: types.CallToolResult, redact: Redaction) -> ToolAnswer:
    """The answer as one text. What is no text is named with its kind and size, and left out."""
    parts = [_text_of(block) for block in result.content]
    if not parts and result.structured_content is not None:
        parts = [_json(result.structured_content)]
    return ToolAnswer(cut(redact("\n".join(parts)), MAX_ANSWER_CHARS), bool(result.is_error))


def _text_of(block: types.ContentBlock) -> str:
    match block:
        case types.TextContent():
            return block.text
        case types.ImageContent() | types.AudioContent():
            return f"[{block.type} left out: {block.mime_type}, {len(block.data) * 3 // 4} bytes]"
        case types.ResourceLink():
            return f"[link: {block.name} {block.uri}]"
        case types.EmbeddedResource(resource=types.TextResourceContents() as resource):
            return f"[{resource.uri}]\n{resource.text}"
        case types.EmbeddedResource(resource=resource):
            kind = resource.mime_type or "unknown type"
            return f"[{resource.uri} left out: {kind}, {_blob_bytes(resource)} bytes]"
        case _:
            assert_never(block)


def _blob_bytes(resource: object) -> int:
    return len(resource.blob) * 3 // 4 if isinstance(resource, types.BlobResourceContents) else 0


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def cut(text: str, limit: int) -> str:
    """The text, or its beginning and how long it was."""
    # A lone surrogate can be written in JSON and cannot be written to anything else.
    text = text.encode("utf-8", "replace").decode("utf-8") if not text.isascii() else text
    return text if len(text) <= limit else f"{text[:limit]}\n[cut: {len(text)} characters in all]"
