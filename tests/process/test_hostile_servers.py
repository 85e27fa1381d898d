"""Tool servers that mean harm, as programs: each case has a name, costs nobody else, and leaves nothing."""

import asyncio
import re
import resource
import time
from contextlib import AbstractAsyncContextManager, AsyncExitStack

import pytest
from hostile_kit import Listening
from process_kit import ENV, children, is_running, python, until
from structlog.testing import capture_logs
from toolserver_kit import started_program

from crewlet.adapters.mcp import McpServers
from crewlet.adapters.process import LocalPrograms
from crewlet.ports.tools import (
    StdioServer,
    ToolAnswer,
    ToolServer,
    ToolServerNotStarted,
    ToolServerSpec,
    ToolUnavailable,
)

pytestmark = [pytest.mark.process, pytest.mark.timeout(120)]

MIB = 1_048_576


def _started(how: str, *, call_s: float = 30.0) -> AbstractAsyncContextManager[ToolServer]:
    """A hostile server, ended afterwards."""
    return started_program(ToolServerSpec("raw", StdioServer(python("hostile.py", how), ENV), call_s, 30.0))


async def _told(server: ToolServer) -> str:
    """What the agent is told of a call: in few words that a terminal can show, whatever the server said."""
    try:
        answer = await server.call("raw__t", {}, meta={})
    except ToolUnavailable as error:
        answer = ToolAnswer(str(error))
        assert answer.text.isprintable() and len(answer.text) < 1_200
    return answer.text


def _memory() -> int:
    """The most that this process ever had, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1_024


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("dies first", "it exited with code 4"),
        ("says no", "it refused: no [2J way"),
        ("old", "Unsupported protocol version from the server: 1999-01-01"),
        ("wrong kind", "in its form"),
        ("dies", "it exited with code 4"),
        ("many values", "it wrote a message of more than 20000 values"),
        ("five megabytes", "it wrote a line of more than 4194304 bytes"),
        ("thousand", "it offers more than 256 tools"),
    ],
)
async def test_a_server_that_cannot_be_used_is_refused_by_name(how: str, says: str) -> None:
    programs, before = LocalPrograms(), children()
    spec = ToolServerSpec("raw", StdioServer(python("hostile.py", how), ENV), 30.0, 30.0)
    server = McpServers(programs).server(spec)
    with pytest.raises(ToolServerNotStarted, match=r"^the tool server raw did not start: ") as refused:
        await server.start()
    assert says in str(refused.value) and str(refused.value).isprintable()
    # Nothing is left of it, though nobody has ended it.
    assert programs.running == frozenset() and children() <= before


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("hundred megabytes", "it wrote a line of more than 4194304 bytes"),
        ("many answers", "it wrote a message of more than 20000 values"),
        ("begs", "it wrote more than 32 requests without taking an answer"),
        ("notes", "it did not answer within 2 s"),
    ],
)
async def test_what_is_no_answer_has_a_name_costs_little_and_the_server_is_there_again(how: str, says: str) -> None:
    async with _started(how, call_s=2.0 if "within 2 s" in says else 60.0) as server:
        most, began_at = _memory(), time.process_time()
        told = await _told(server)
        assert says in told, told
        assert told.startswith("the tool server raw gave no answer: ")
        assert _memory() - most < 150 * MIB
        # A million wrong things in one answer took 46 s and seven gigabytes.
        assert time.process_time() - began_at < 10
        await until(lambda: server.trouble is None)


@pytest.mark.parametrize("how", ["null", "lone surrogate", "long number", "deep"])
async def test_a_line_that_is_no_message_is_told_of_and_is_no_answer(how: str) -> None:
    with capture_logs() as logs:
        async with _started(how, call_s=1.0) as server:
            assert "it did not answer within 1 s" in await _told(server)
            await until(lambda: "tool_server_bad_line" in [event["event"] for event in logs])


async def test_answers_to_what_was_not_asked_are_nobodys() -> None:
    async with _started("strangers", call_s=1.0) as server:
        assert "it did not answer within 1 s" in await _told(server)
        assert server.trouble is None


async def test_servers_that_talk_without_end_are_read_so_slowly_that_nobody_notices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    listening = Listening(monkeypatch)
    async with AsyncExitStack() as stack:
        for how in ("notes", "blank", "strangers for ever"):
            server = await stack.enter_async_context(_started(how))
            stack.callback(asyncio.create_task(_told(server)).cancel)
        await listening.assert_slow()


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("twice", "first"),
        ("fails", "it hurts"),
        ("nothing", ""),
        ("changes", "the server refused the call: Unknown tool: t"),
        ("shouts", "fine"),
    ],
)
async def test_an_odd_answer_is_an_answer_and_the_next_call_is_made(how: str, says: str) -> None:
    with capture_logs() as logs:
        async with _started(how) as server:
            for _ in range(2):
                assert (await _told(server)).startswith(says)
            assert server.trouble is None
            # The list of a tenure is its own: no word of its server changes it.
            assert [info.name for info in server.tools] == ["raw__t"]
    assert [event["event"] for event in logs] == ["tool_server_started"]


async def test_what_is_no_text_is_named_and_left_out() -> None:
    async with _started("every kind") as server:
        told = (await _told(server)).splitlines()
    assert told[0] == "[image left out: image/png, 3000 bytes]"
    assert told[1] == "[audio left out: audio/wav, 3 bytes]"
    assert told[2].startswith("[link: nnn") and told[2].endswith("file:///etc/passwd]")
    assert told[3:] == ["[x:blob left out: image/png, 3000 bytes]", "[x:text]", "embedded words"]


async def test_odd_and_equal_names_are_made_fit_and_stay_apart() -> None:
    async with _started("odd") as server:
        names = [info.name for info in server.tools]
        assert len(set(names)) == len(names) == 11
        assert all(re.fullmatch(r"raw__[A-Za-z0-9_-]{0,59}", name) for name in names)
        # Crewlet's own tools have other names, whatever a server calls its own.
        assert {"raw__send_mail", "raw__submit_work"} <= set(names)
        (long,) = [info for info in server.tools if info.name == "raw__d"]
        assert long.description.endswith("characters in all]") and len(long.description) < 9_000


async def test_tools_that_are_described_wrongly_are_left_out_and_told_of_once_and_the_others_stay() -> None:
    with capture_logs() as logs:
        async with _started("wrong ones") as server:
            assert [info.name for info in server.tools] == ["raw__t", "raw__hints"]
            # A hint of another form is none: the tool counts as one with effects.
            assert [(info.is_read_only, info.is_open_world) for info in server.tools] == [(None, None), (None, False)]
            assert server.tools[0].schema["type"] == "object"
            assert await _told(server) == "fine"
    said = {event["tool"]: event["reason"] for event in logs if event["event"] == "tool_left_out"}
    assert said == {
        "no schema": "it has no schema of its arguments",
        "numbers": 'the schema of its arguments is none: its type is 7 instead of "object"',
        "list": """the schema of its arguments is none: its type is 'array' instead of "object\"""",
        "int": "the schema of its arguments is none: properties/n/type is 'int' instead of a type of JSON",
        "required": "the schema of its arguments is none: required is 'n' instead of a list of names",
        "deep [2J": "the schema of its arguments is none: properties/a/items/anyOf/1 is 7 instead of a schema",
        "number 7": "it is no object",
        "number 8": "it has no name",
    }
    assert [event["event"] for event in logs] == ["tool_server_started"] + ["tool_left_out"] * 8


async def test_a_server_that_closes_its_output_and_lives_is_ended_and_started_again() -> None:
    async with _started("closes") as server:
        assert await _told(server) == "fine"
        await until(lambda: server.trouble is not None)
        assert server.trouble is not None and server.trouble.startswith("it closed its output")
        await until(lambda: server.trouble is None)
        assert await _told(server) == "fine"


async def test_daemons_that_ignore_every_wish_to_end_are_seen_to_end_with_their_server() -> None:
    async with _started("haunts") as server:
        left = [int(pid) for pid in (await _told(server)).split()]
        assert len(left) == 3 and all(map(is_running, left))
        await server.end(grace_s=0.1)
        assert not any(map(is_running, left))
