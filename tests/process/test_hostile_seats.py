"""One real node whose seats have tool servers that mean harm: each turn goes on with a name for what came of its call,
its mail is recorded, the other seats work meanwhile, and when the node has drained nothing of any server is left."""

import re
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import NodeProcess
from process_kit import python

from crewlet.testing.brokers import one_server
from crewlet.testing.modelserver import Call, Say, by_seat, model_server

pytestmark = [pytest.mark.long, pytest.mark.real, pytest.mark.timeout(240)]

SUBMITS = Say(calls=[Call("submit_work", {"outcome": "delivered", "summary": "Done.", "evidence": ["e1"]})])
LOOKS = Say(calls=[Call("raw__t", {})])

HOSTILE = {
    "megabytes": ("hundred megabytes", "it wrote a line of more than 4194304 bytes"),
    "values": ("many answers", "it wrote a message of more than 20000 values"),
    "begs": ("begs", "it wrote more than 32 requests without taking an answer"),
    "talks": ("notes", "it did not answer within 3 s"),
    "blank": ("blank", "it did not answer within 3 s"),
    "shouts": ("shouts", "fine"),
    "closes": ("closes", "fine"),
    "twice": ("twice", "first"),
    "haunts": ("haunts", ""),
    "changes": ("changes", "the server refused the call: Unknown tool"),
}
"""By seat: what its server does when it is called, and what the agent is told."""


@pytest.fixture
async def model_url() -> AsyncGenerator[str]:
    scripted = by_seat({**{handle: [LOOKS, SUBMITS] for handle in HOSTILE}, "unusable": [SUBMITS]})

    async with model_server(scripted) as server:
        yield server.url


def _company(url: str, folder: Path) -> dict[str, Any]:
    def role(handle: str, how: str) -> dict[str, Any]:
        # The last argument only marks its processes as this test's.
        server: dict[str, Any] = {"command": [*python("hostile.py", how), str(folder)]}
        if handle in ("talks", "blank"):
            server["call_timeout_s"] = 3
        runner = {"type": "llm", "model": "openai:scripted", "base_url": url, "max_rounds": 4}
        return {"handle": handle, "runner": runner, "tools": {"servers": {"raw": server}}}

    roles = [role(handle, how) for handle, (how, _) in HOSTILE.items()]
    good = {"handle": "good", "runner": {"type": "script", "steps": [{"sleep": 0.05}]}}
    return {"name": "Desk", "roles": [*roles, role("unusable", "thousand"), good]}


def _left(folder: Path) -> list[str]:
    """The command lines of this test's servers, and of what they left behind, that still run."""
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes()
        except OSError:
            continue
        if b"hostile.py" in line and str(folder).encode() in line:
            found.append(line.replace(b"\0", b" ").decode())
    return found


async def test_servers_that_mean_harm_cost_nobody_but_their_own_seat(model_url: str, tmp_path: Path) -> None:
    with one_server(tmp_path) as server:
        company = _company(model_url, tmp_path)
        node = NodeProcess(tmp_path, "n1", server.url, company=company, labels={}, ttl_s=10.0)
        try:
            await node.until(lambda: node.holds(*HOSTILE, "good"), "all seats but one are held")
            for handle in (*HOSTILE, "unusable"):
                await node.ask(f"/seats/{handle}/mail", body={"body": "Do your work."}, key=f"{handle}-1")
            for number in range(10):
                await node.send("good", f"good-{number}")
            for number in range(10):
                await node.until(lambda number=number: _is_done(node, "good", f"good-{number}"), "the good seat works")
            for handle, (_, says) in HOSTILE.items():
                await node.until(lambda handle=handle: _is_done(node, handle, f"{handle}-1"), f"{handle} is done")
                assert await node.outcome(handle, f"{handle}-1") == "delivered"
                (turn,) = (await node.ask(f"/seats/{handle}/turns"))["turns"]
                (call,) = (await node.ask(f"/turns/{turn['turn_id']}"))["calls"]
                assert says in call["answer"], call
                assert call["is_error"] == (says not in ("fine", "first", "")), call

            # A seat whose server cannot be used is not taken, says why, and its mail waits.
            assert set((await node.health())["seats"]) == {*HOSTILE, "good"}
            await node.until(lambda: _says_why(node), "it is said why the seat is not taken")
            assert await node.outcome("unusable", "unusable-1") is None
            assert (await node.inbox("unusable"))["waiting"] == 1
            assert node.events("turn_phase_panicked") == node.events("task_broke") == []
            assert _left(tmp_path) != []
            assert await node.drain() == 0
            assert _left(tmp_path) == []
            assert not re.search(r"Traceback|tool_server_unread", node.said())
        finally:
            node.end()


async def _is_done(node: NodeProcess, handle: str, mail_id: str) -> bool:
    return await node.outcome(handle, mail_id) is not None


async def _says_why(node: NodeProcess) -> bool:
    errors: dict[str, str] = (await node.health())["last_error"] or {}
    return "it offers more than 256 tools" in errors.get("unusable", "")
