"""The tool servers of a held seat: up before its mail comes, and seen to end before its lease goes."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from node_rig import TTL_S, Fleet
from structlog.testing import capture_logs

from crewlet.company.model import ToolProgram, ToolSite
from crewlet.kit import logcontext
from crewlet.ports.programs import ProgramUnproven
from crewlet.ports.term import Term
from crewlet.ports.tools import (
    HttpServer,
    StdioServer,
    ToolAnswer,
    ToolInfo,
    ToolServer,
    ToolServerNotStarted,
    ToolServers,
    ToolServerSpec,
)
from crewlet.testing.virtual import VirtualClock, in_virtual_time

SECRET = "s3cret-of-the-house"


@dataclass(eq=False)
class Desk(ToolServers):
    """Servers that answer nothing, and start and end as they are told.

    Attributes:
        start_s: how long each start takes.
        silent: names of servers that say nothing for the five minutes that a document may give them.
        broken: names of servers that do not start.
        unproven: ends are not proven while this holds.
    """

    clock: VirtualClock
    start_s: float = 0.0
    silent: set[str] = field(default_factory=set[str])
    broken: set[str] = field(default_factory=set[str])
    unproven: bool = False
    made: "list[Served]" = field(default_factory=list["Served"])

    def server(self, spec: ToolServerSpec) -> ToolServer:
        self.made.append(Served(self, spec))
        return self.made[-1]

    def running(self) -> list[str]:
        return [server.name for server in self.made if server.is_up]


class Served(ToolServer):
    def __init__(self, desk: Desk, spec: ToolServerSpec) -> None:
        self.desk = desk
        self.spec = spec
        self.is_up = False
        self.was_starting_at: float | None = None
        self.graces: list[float] = []
        self.logs_with: Mapping[str, Any] = {}
        self.trouble_now: str | None = None

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def tools(self) -> Sequence[ToolInfo]:
        return [ToolInfo(f"{self.name}__t", "", {}, self.name)]

    @property
    def trouble(self) -> str | None:
        return self.trouble_now

    async def start(self) -> None:
        self.was_starting_at = self.desk.clock.elapsed()
        self.logs_with = logcontext.names()
        await self.desk.clock.sleep(300.0 if self.name in self.desk.silent else self.desk.start_s)
        if self.name in self.desk.broken:
            raise ToolServerNotStarted(f"the tool server {self.name} did not start: it exited with code 3")
        self.is_up = True

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        raise AssertionError("no turn of these tests calls a tool")

    async def end(self, *, grace_s: float = 0.0) -> None:
        self.graces.append(grace_s)
        if self.desk.unproven:
            raise ProgramUnproven("still there: [7]")
        self.is_up = False


def _program(name: str) -> ToolProgram:
    return ToolProgram(name, (name,))


def _fleet(*seats: str, tools: Mapping[str, tuple[ToolProgram | ToolSite, ...]], **more: Any) -> tuple[Fleet, Desk]:
    fleet = Fleet(seats, tools=tools, **more)
    fleet.tool_servers = desk = Desk(fleet.clock)
    return fleet, desk


@in_virtual_time
async def test_all_servers_start_side_by_side_before_any_mail_comes_however_long_that_takes() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"), _program("y"))})
    desk.start_s = 2 * TTL_S
    began_at = fleet.clock.elapsed()
    node = await fleet.node("n1")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.finished("one"), "its mail was worked")
    assert {server.was_starting_at for server in desk.made} == {began_at}
    assert all(server.logs_with == {"seat": "a", "epoch": 1} for server in desk.made)
    assert fleet.runs[0].began_at >= began_at + 2 * TTL_S
    term = node.host.term("a")
    assert term is not None and term.epoch == 1
    assert [server.name for server in node.seats.tool_servers(term)] == ["x", "y"]
    await fleet.close()
    assert desk.running() == []


@in_virtual_time
async def test_a_server_that_does_not_start_refuses_its_seat_in_a_sentence_and_harms_no_other() -> None:
    fleet, desk = _fleet("a", "b", tools={"a": (_program("x"), _program("y")), "b": (_program("x"),)})
    desk.broken.add("y")
    with capture_logs() as logs:
        node = await fleet.node("n1")
    assert set(node.host.held()) == {"b"} and desk.running() == ["x"]
    sentence = "the tool server y did not start: it exited with code 3"
    assert [event["error"] for event in logs if event["event"] == "seat_acquire_failed"] == [sentence]
    assert node.health().last_error == {"a": f"not taken by this node: {sentence}"}
    assert await node.leases.get("seat:a") is None
    desk.broken.clear()
    await fleet.until(lambda: fleet.holder("a"), "it is tried again")
    assert node.health().last_error is None
    await fleet.close()


@in_virtual_time
async def test_what_a_server_is_given_is_completed_from_the_nodes_environment_and_never_logged() -> None:
    files = ToolProgram("files", ("run", "files"), {"KEY": "${FILES_KEY}", "MODE": "fast"})
    web = ToolSite("web", "https://h/", {"Authorization": "Bearer ${FILES_KEY}"}, call_timeout_s=5.0)
    fleet, desk = _fleet("a", tools={"a": (files, web)}, variables={"FILES_KEY": SECRET})
    with capture_logs() as logs:
        await fleet.node("n1")
        await fleet.close()
    first, second = (server.spec for server in desk.made)
    assert first.transport == StdioServer(("run", "files"), {"PATH": "/bin", "KEY": SECRET, "MODE": "fast"})
    assert first.secrets == {SECRET}
    assert second.transport == HttpServer("https://h/", {"Authorization": f"Bearer {SECRET}"})
    assert second.secrets == {SECRET, f"Bearer {SECRET}"} and second.call_timeout_s == 5.0
    assert SECRET not in str(logs) and SECRET not in repr(first) + repr(second)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "the tool server web needs the variable TOKEN, which is not set on this node"),
        ({"TOKEN": f"{SECRET}\n"}, "the header Authorization of the tool server web has a line break"),
    ],
)
@in_virtual_time
async def test_a_variable_that_is_missing_or_cannot_be_sent_refuses_the_seat(
    variables: Mapping[str, str], says: str
) -> None:
    web = ToolSite("web", "https://h/", {"Authorization": "Bearer ${TOKEN}"})
    fleet, desk = _fleet("a", tools={"a": (_program("x"), web)}, variables=variables)
    with capture_logs() as logs:
        node = await fleet.node("n1")
    errors = node.health().last_error
    assert errors is not None and says in errors["a"]
    assert desk.made == [] and SECRET not in str(logs) + str(errors)
    await fleet.close()


@in_virtual_time
async def test_a_node_without_tool_servers_refuses_the_seats_that_want_one() -> None:
    fleet = Fleet(("a", "b"), tools={"a": (_program("x"),)})
    node = await fleet.node("n1")
    assert set(node.host.held()) == {"b"}
    assert node.health().last_error == {"a": "not taken by this node: this node offers no tool servers"}
    await fleet.close()


@pytest.mark.proves("RL-13")
@in_virtual_time
async def test_a_lease_is_kept_until_the_servers_are_seen_to_end() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"),)})
    node = await fleet.node("n1")
    desk.unproven = True
    assert await node.host.give_back("a", "rebalance") is False
    assert "a" in node.host.unproven_seconds()
    await fleet.node("n2")
    await fleet.clock.sleep(3 * TTL_S)
    lease = await node.leases.get("seat:a")
    assert lease is not None and lease.owner == "n1:1" and len(desk.made) == 1
    desk.unproven = False
    await fleet.until(lambda: not node.host.unproven_seconds(), "the end is proven at last")
    assert desk.running() == [name for name in ["x"] if fleet.holder("a")]
    await fleet.close()


@in_virtual_time
async def test_servers_get_a_grace_in_a_hand_over_and_none_once_the_fence_is_closed() -> None:
    fleet, desk = _fleet("a", "b", tools={"a": (_program("x"),), "b": (_program("y"),)})
    node = await fleet.node("n1")
    x, y = desk.made if desk.made[0].name == "x" else reversed(desk.made)
    assert await node.host.give_back("a", "rebalance")
    assert x.graces == [2.0]
    await node.host.shed("stuck")
    assert y.graces == [0.0] and desk.running() == []
    await fleet.close()


@in_virtual_time
async def test_servers_are_ended_before_their_seats_lease_can_lapse() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"),)})
    node = await fleet.node("n1")
    term = node.host.term("a")
    assert term is not None
    await node.seats.stop_programs(term)
    assert desk.running() == [] and desk.made[0].graces == [0.0]
    await fleet.close()


@in_virtual_time
async def test_a_seat_whose_lease_lapses_while_its_servers_start_leaves_none_behind() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"),)})
    desk.start_s = 10 * TTL_S
    task = asyncio.ensure_future(fleet.node("n1"))
    await fleet.until(lambda: desk.made, "it is being started")
    fleet.cut.add("n1")
    await fleet.clock.sleep(2 * TTL_S)
    assert desk.made[0].graces and not desk.made[0].is_up
    fleet.cut.clear()
    desk.start_s = 0.0
    await task
    await fleet.until(lambda: fleet.holder("a"), "it is taken again")
    await fleet.close()
    assert desk.running() == []


@in_virtual_time
async def test_at_most_eight_servers_of_a_node_start_at_once() -> None:
    names = [f"s{number}" for number in range(12)]
    fleet, desk = _fleet("a", tools={"a": tuple(_program(name) for name in names)})
    desk.start_s = 1.0
    began_at = fleet.clock.elapsed()
    await fleet.node("n1")
    starts = [round(server.was_starting_at - began_at) for server in desk.made if server.was_starting_at is not None]
    assert starts == [0] * 8 + [1] * 4
    await fleet.close()


@in_virtual_time
async def test_servers_that_say_nothing_keep_other_seats_from_their_tools_for_seconds_only() -> None:
    silent = [f"s{number}" for number in range(16)]
    tools = {"a": tuple(_program(name) for name in silent), "b": (_program("x"),)}
    fleet, desk = _fleet("a", "b", tools=tools)
    desk.silent.update(silent)
    began_at = fleet.clock.elapsed()
    await fleet.node("n1")
    await fleet.send("b", "one")
    await fleet.until(lambda: fleet.finished("one"), "the mail of the other seat was worked")
    starts = [server.was_starting_at - began_at for server in desk.made if server.was_starting_at is not None]
    assert desk.made[-1].name == "x" and len(starts) == 17
    assert max(starts) <= 10.0
    await fleet.close()
    assert desk.running() == []


@in_virtual_time
async def test_a_server_that_is_away_shows_with_its_reason_while_it_is() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"), _program("y"))})
    node = await fleet.node("n1")
    desk.made[1].trouble_now = "it exited with code 3; it is started again within 1 s"
    errors = {"a": "the tool server y: it exited with code 3; it is started again within 1 s"}
    assert node.health().last_error == errors
    desk.made[1].trouble_now = None
    assert node.health().last_error is None
    await fleet.close()


@in_virtual_time
async def test_a_release_of_another_tenure_ends_no_server() -> None:
    fleet, desk = _fleet("a", tools={"a": (_program("x"),)})
    node = await fleet.node("n1")
    await node.seats.on_release(Term("seat:a", "n1:1", 99), reason="lease_lost", is_voluntary=False)
    assert desk.running() == ["x"]
    await fleet.close()
