"""Tool servers as real programs: what they offer, what they may not do to us, and that they are seen to end."""

import asyncio
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from process_kit import ENV, children, is_running, python, until
from structlog.testing import capture_logs
from toolserver_kit import started_program

from crewlet.adapters.mcp import McpServers
from crewlet.adapters.process import LocalPrograms
from crewlet.ports.errors import Misuse
from crewlet.ports.tools import StdioServer, ToolServer, ToolServerNotStarted, ToolServerSpec, ToolUnavailable

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

SECRET = "s3cret-of-the-house"


def _raw(
    mode: str, *, call_s: float = 30.0, start_s: float = 30.0, env: dict[str, str] | None = None
) -> ToolServerSpec:
    transport = StdioServer(python("rawtools.py", mode), {**ENV, **(env or {})})
    return ToolServerSpec("raw", transport, call_s, start_s, frozenset({SECRET}))


def _real(folder: Path) -> ToolServerSpec:
    transport = StdioServer(python("tools.py", str(folder)), {**ENV, "SECRET": SECRET})
    return ToolServerSpec("nasty", transport, 60.0, 60.0, frozenset({SECRET}))


async def _call(server: ToolServer, tool: str, **arguments: Any) -> str:
    answer = await server.call(f"{server.name}__{tool}", arguments, meta={})
    assert not answer.is_error, answer.text
    return answer.text


def _running(server: ToolServer) -> Callable[[], bool]:
    return lambda: server.trouble is None


async def test_a_server_of_the_mcp_package_offers_its_tools_and_nothing_of_it_outlives_its_end(tmp_path: Path) -> None:
    async with started_program(_real(tmp_path)) as server:
        infos = {info.name: info for info in server.tools}
        echo, key, variable = infos["nasty__echo"], infos["nasty__key"], infos["nasty__variable"]
        assert (echo.is_read_only, echo.is_open_world) == (True, False)
        assert (key.is_read_only, key.is_open_world) == (False, True)
        assert (variable.is_read_only, variable.is_open_world, variable.server) == (None, None, "nasty")
        assert echo.description == "Say it again."
        assert echo.schema["properties"]["text"]["type"] == "string"
        # The model gets a name that it can use, the server gets its own.
        (odd,) = [name for name in infos if name.startswith("nasty__odd")]
        assert (await server.call(odd, {}, meta={})).text == "odd"

        assert await _call(server, "echo", text="häßlich\n☃") == "häßlich\n☃"
        assert (await server.call("nasty__key", {}, meta={"crewlet/idempotency-key": "k1"})).text == "k1"
        assert await _call(server, "variable", name="HOME") == "(not set)"
        assert await _call(server, "variable", name="SECRET") == "[redacted]"
        assert await _call(server, "picture") == "[image left out: image/png, 1200 bytes]"
        assert (await _call(server, "big", size=300_000)).endswith("x\n[cut: 300000 characters in all]")
        answer = await server.call("nasty__fail", {}, meta={})
        assert answer.is_error and "executing tool fail" in answer.text
        answer = await server.call("nasty__echo", {"text": {"no": "text"}}, meta={})
        assert answer.is_error and "text" in answer.text
        with pytest.raises(Misuse, match="no tool 'nasty__ghost'"):
            await server.call("nasty__ghost", {}, meta={})

        # A call that is given up is told to the server.
        waiting = asyncio.create_task(server.call("nasty__hang", {}, meta={}))
        await until((tmp_path / "hanging").exists)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await until((tmp_path / "cancelled").exists)

        # It dies in the middle of two calls, and leaves children that hold its output open.
        left = [int(pid) for pid in (await _call(server, "fork")).split()]
        assert len(left) == 2 and all(map(is_running, left))
        waiting = asyncio.create_task(server.call("nasty__hang", {}, meta={}))
        with pytest.raises(ToolUnavailable, match=r"it exited with code 7; it said: .*dying with \[redacted\]"):
            await server.call("nasty__die", {}, meta={})
        with pytest.raises(ToolUnavailable, match="the tool server nasty gave no answer: it exited with code 7"):
            await waiting
        await until(lambda: not any(map(is_running, left)))


async def test_a_server_that_is_ended_in_a_call_takes_its_children_along_and_is_called_no_more() -> None:
    async with started_program(_raw("forks")) as server:
        left = int(await _call(server, "t"))
        waiting = asyncio.create_task(server.call("raw__t", {}, meta={}))
        await asyncio.sleep(0)
        await server.end(grace_s=0.2)
        with pytest.raises(ToolUnavailable, match="the tool server raw gave no answer: it was ended"):
            await waiting
        assert not is_running(left)
        with pytest.raises(ToolUnavailable, match="cannot be called: it was ended"):
            await server.call("raw__t", {}, meta={})


async def test_a_server_that_dies_in_a_call_is_started_again_and_says_so() -> None:
    with capture_logs() as logs:
        async with started_program(_raw("dies", env={"SECRET": SECRET}), first_pause_s=0.2) as server:
            for _ in range(2):
                with pytest.raises(
                    ToolUnavailable,
                    match=r"it exited with code 5; it said: dying with \[redacted\] .before that: ready",
                ):
                    await server.call("raw__t", {}, meta={})
                await until(lambda: server.trouble is not None)
                with pytest.raises(ToolUnavailable, match="cannot be called: it exited with code 5"):
                    await server.call("raw__t", {}, meta={})
                await until(_running(server))
    events = [event["event"] for event in logs]
    assert events == ["tool_server_started", *(("tool_server_gone", "tool_server_restarted") * 2)]
    assert SECRET not in str(logs)


async def test_a_server_that_freezes_is_found_out_by_a_call_and_started_again() -> None:
    async with started_program(_raw("freezes", call_s=0.5)) as server:
        with pytest.raises(ToolUnavailable, match=r"it did not answer within 0.5 s"):
            await server.call("raw__t", {}, meta={})
        await until(lambda: server.trouble is not None)
        assert server.trouble is not None and "answered neither a call nor a ping" in server.trouble
        await until(_running(server))


async def test_a_server_that_cannot_be_started_again_is_tried_later_and_later(tmp_path: Path) -> None:
    flag = tmp_path / "once"
    script = f"test -e {flag} && exit 9; touch {flag}; exec {' '.join(python('rawtools.py', 'dies'))}"
    spec = ToolServerSpec("raw", StdioServer(("sh", "-c", script), ENV))
    with capture_logs() as logs:
        async with started_program(spec) as server:
            with pytest.raises(ToolUnavailable, match="it exited with code 5"):
                await server.call("raw__t", {}, meta={})
            await until(lambda: [event["event"] for event in logs].count("tool_server_gone") >= 4)
            assert server.trouble is not None and "did not start: it exited with code 9" in server.trouble
    pauses = [event["again_in_s"] for event in logs if event["event"] == "tool_server_gone"]
    assert pauses[:4] == [0.01, 0.02, 0.04, 0.08]


async def test_pages_of_tools_are_put_together_and_of_equal_names_the_first_counts() -> None:
    async with started_program(_raw("pages")) as server:
        assert [info.name for info in server.tools] == ["raw__t0", "raw__same", "raw__t1", "raw__t2"]


async def test_what_a_program_prints_beside_the_protocol_is_passed_over() -> None:
    with capture_logs() as logs:
        async with started_program(_raw("prints")) as server:
            assert await _call(server, "t") == "fine"
    assert [event["bytes"] for event in logs if event["event"] == "tool_server_bad_line"] == [21]
    assert "Welcome" not in str(logs)


@pytest.mark.parametrize(
    ("mode", "says"),
    [
        ("endless", "its list of tools has more than 64 pages"),
        ("crowd", "it offers more than 256 tools"),
        ("bulk", "the description of its tools is longer than 1048576 bytes"),
        ("malformed", "it answered with .* errors in its form"),
        ("holds-pipe", "it exited with code 3; it said: ready"),
        ("closes", "it closed its output"),
        ("noise", "it wrote 100 lines that are not MCP"),
    ],
)
async def test_a_server_that_cannot_be_used_is_not_started_and_nothing_is_left_of_it(mode: str, says: str) -> None:
    with pytest.raises(ToolServerNotStarted, match=f"the tool server raw did not start: {says}"):
        async with started_program(_raw(mode)):
            pass


@pytest.mark.parametrize("mode", ["slow", "mute"])
async def test_a_server_that_takes_too_long_is_not_started(mode: str) -> None:
    with pytest.raises(ToolServerNotStarted, match=r"it did not name its tools within 0.5 s"):
        async with started_program(_raw(mode, start_s=0.5)):
            pass


async def test_a_program_that_is_not_there_is_named() -> None:
    spec = ToolServerSpec("raw", StdioServer(("no-such-server",), ENV))
    with pytest.raises(ToolServerNotStarted, match="raw did not start: no-such-server was not found"):
        async with started_program(spec):
            pass


async def test_a_start_that_is_given_up_half_way_leaves_nothing_once_it_was_ended() -> None:
    programs, before = LocalPrograms(), children()
    server = McpServers(programs).server(_raw("slow"))
    starting = asyncio.create_task(server.start())
    await until(lambda: bool(programs.running))
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    await server.end()
    assert programs.running == frozenset() and children() <= before


async def test_a_binary_answer_is_no_answer_and_the_reason_is_given() -> None:
    async with started_program(_raw("binary", call_s=5.0)) as server:
        with pytest.raises(ToolUnavailable, match=r"did not answer within 5 s; 1 of its lines were not MCP"):
            await server.call("raw__t", {}, meta={})


async def test_an_answer_of_ten_megabytes_is_not_taken_in_and_the_server_is_started_again() -> None:
    async with started_program(_raw("flood")) as server:
        with pytest.raises(ToolUnavailable, match="it wrote a line of more than 4194304 bytes"):
            await server.call("raw__t", {}, meta={})
        await until(lambda: server.trouble is not None)
        await until(_running(server))


async def test_an_answer_of_the_wrong_form_and_a_refusal_are_told_to_the_agent_without_secrets() -> None:
    async with started_program(_raw("wrong-form")) as server:
        answer = await server.call("raw__t", {}, meta={})
        assert answer.is_error and "errors in its form" in answer.text
    async with started_program(_raw("refuses", env={"SECRET": SECRET})) as server:
        answer = await server.call("raw__t", {}, meta={})
        assert answer.is_error and answer.text == "the server refused the call: no: [redacted]"


async def test_a_server_that_asks_for_what_we_do_not_give_is_told_so() -> None:
    async with started_program(_raw("asks")) as server:
        assert '"error"' in await _call(server, "t")


async def test_a_call_to_a_server_that_does_not_even_read_ends_with_its_time_out() -> None:
    async with started_program(_raw("deaf", call_s=0.5)) as server:
        for _ in range(2):
            with pytest.raises(ToolUnavailable, match=r"did not answer within 0.5 s"):
                await server.call("raw__t", {"text": "x" * 500_000}, meta={})


async def test_servers_off_the_shelf_work_as_they_come(tmp_path: Path) -> None:
    """Two of the reference servers, as they are on the index."""
    git(tmp_path, "init", "--quiet")
    clock = ToolServerSpec(
        "time", StdioServer((sys.executable, "-m", "mcp_server_time", "--local-timezone", "UTC"), ENV), 60.0, 60.0
    )
    desk = ToolServerSpec(
        "git",
        StdioServer((sys.executable, "-m", "mcp_server_git", "--repository", str(tmp_path)), {**ENV, "HOME": "/"}),
        60.0,
        60.0,
    )
    async with started_program(clock) as time_server:
        names = {info.name for info in time_server.tools}
        assert names == {"time__get_current_time", "time__convert_time"}
        assert '"timezone": "UTC"' in await _call(time_server, "get_current_time", timezone="UTC")
        answer = await time_server.call("time__get_current_time", {"timezone": "Moon/Base"}, meta={})
        assert answer.is_error
    (tmp_path / "new.txt").touch()
    async with started_program(desk) as git_server:
        hints = {info.name: info.is_read_only for info in git_server.tools}
        assert hints["git__git_status"] in (True, None) and hints["git__git_commit"] in (False, None)
        assert "new.txt" in await _call(git_server, "git_status", repo_path=str(tmp_path))
        await _call(git_server, "git_add", repo_path=str(tmp_path), files=["new.txt"])
        assert git(tmp_path, "diff", "--cached", "--name-only") == "new.txt"


def git(folder: Path, *args: str) -> str:
    run = subprocess.run(["git", *args], cwd=folder, check=True, capture_output=True, text=True, timeout=60)
    return run.stdout.strip()
