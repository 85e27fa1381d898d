"""A seat whose agent is kept between turns: its mail waits until the agent is there, and it goes before the lease."""

from collections.abc import Collection
from typing import Any

import pytest
from node_rig import Fleet

from crewlet.company.model import Seat
from crewlet.mail import topics
from crewlet.node.assembly import Node
from crewlet.ports.mail import Attachment, DetachUnproven
from crewlet.ports.programs import ProgramUnproven
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Fence, Runner, StandingRunner, Turn, TurnResult


class _Agent:
    """A standing runner that is ready when it is told to be."""

    kind = "standing"

    def __init__(self) -> None:
        self.is_ready = False
        self.trouble: str | None = None
        self.ran: list[str] = []
        self.epochs: list[int] = []
        self.ended = 0
        self.refuse_end = False
        self.on_change = lambda: None

    def start(self, fence: Fence, on_change: object) -> None:
        self.epochs.append(fence.term.epoch)
        assert callable(on_change)
        self.on_change = on_change

    def become(self, *, is_ready: bool, trouble: str | None = None) -> None:
        self.is_ready, self.trouble = is_ready, trouble
        self.on_change()

    async def run(self, turn: Turn) -> TurnResult:
        self.ran += [event.id for event in turn.mail]
        return TurnResult("delivered")

    async def end(self) -> None:
        if self.refuse_end:
            raise ProgramUnproven("still there")
        self.ended += 1


class _Desk(Fleet):
    """One node with one seat and its agents, a tenure each."""

    async def open(self) -> Node:
        self.agents: list[_Agent] = []
        return await self.node("n1")

    def runner(self, seat: Seat, node: str) -> Runner:
        self.agents.append(_Agent())
        return self.agents[-1]

    @property
    def agent(self) -> _Agent:
        return self.agents[-1]


def test_the_runner_of_these_tests_is_one() -> None:
    assert isinstance(_Agent(), StandingRunner)


@in_virtual_time
async def test_mail_waits_for_an_agent_that_is_being_started_and_runs_when_it_is_ready() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    await desk.send("a", "one")
    await desk.clock.sleep(5)
    assert desk.agent.ran == []
    assert node.health().held_back == {"a": "agent_not_ready"}
    assert node.health().last_error is None
    desk.agent.become(is_ready=True)
    await desk.until(lambda: desk.agent.ran == ["one"], "it runs")
    assert node.health().held_back is None
    await desk.close()


def test_the_inbox_is_held_from_its_very_attach_when_the_agent_is_not_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold taken after it would come after the first delivery can."""
    held: list[Collection[str]] = []
    attach = TwinMail.attach

    async def noted(mail: TwinMail, *args: Any, holds: Collection[str] = (), **options: Any) -> Attachment:
        held.append(holds)
        return await attach(mail, *args, holds=holds, **options)

    monkeypatch.setattr(TwinMail, "attach", noted)

    @in_virtual_time
    async def case() -> None:
        desk = _Desk(("a",))
        await desk.open()
        await desk.close()

    case()
    assert "agent_not_ready" in held[0]


@in_virtual_time
async def test_why_an_agent_cannot_be_started_shows_and_no_delivery_is_spent_on_it() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    desk.agent.become(is_ready=False, trouble="No module named 'desk'")
    await desk.send("a", "one")
    await desk.clock.sleep(3600)
    backlog = await node.commands.outbox.mail.waiting(topics.inbox("a"))
    assert backlog is not None and (backlog.waiting, backlog.in_hand) == (1, 0)
    assert node.health().last_error == {"a": "No module named 'desk'"}
    assert node.health().held_back == {"a": "agent_not_ready"}
    assert node.host.may_start("a") is not None
    desk.agent.become(is_ready=True)
    await desk.until(lambda: desk.agent.ran == ["one"], "it runs")
    assert node.health().last_error is None
    await desk.close()


@in_virtual_time
async def test_mail_waits_again_when_the_agent_goes_away() -> None:
    desk = _Desk(("a",))
    await desk.open()
    desk.agent.become(is_ready=True)
    await desk.send("a", "one")
    await desk.until(lambda: desk.agent.ran == ["one"], "it runs")
    desk.agent.become(is_ready=False, trouble="it exited")
    await desk.send("a", "two")
    await desk.clock.sleep(10)
    assert desk.agent.ran == ["one"]
    desk.agent.become(is_ready=True)
    await desk.until(lambda: desk.agent.ran == ["one", "two"], "it runs")
    await desk.close()


@in_virtual_time
async def test_an_agent_is_ended_with_its_tenure_and_the_next_tenure_has_its_own() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    desk.agent.become(is_ready=True)
    first = desk.agent
    term = node.host.term("a")
    assert term is not None
    await node.seats.stop_programs(term)
    assert first.ended == 1
    await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    await desk.close()


@in_virtual_time
async def test_an_agent_that_is_not_seen_to_end_keeps_the_lease() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    term = node.host.term("a")
    assert term is not None
    desk.agent.refuse_end = True
    with pytest.raises(ProgramUnproven):
        await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    desk.agent.refuse_end = False
    await node.seats.on_release(term, reason="rebalance", is_voluntary=True)
    assert desk.agent.ended == 1
    await desk.close()


@in_virtual_time
async def test_an_agent_is_ended_also_when_the_broker_does_not_confirm_the_detach() -> None:
    desk = _Desk(("a",))
    node = await desk.open()
    term = node.host.term("a")
    assert term is not None
    desk.refuse("detach")
    with pytest.raises(DetachUnproven):
        await node.seats.on_release(term, reason="lease_lost", is_voluntary=False)
    assert desk.agent.ended == 1
    desk.allow()
    await desk.close()


@in_virtual_time
async def test_an_agent_whose_inbox_could_not_be_attached_is_ended() -> None:
    desk = _Desk(("a",))
    desk.refuse("attach")
    node = await desk.open()
    await desk.until(lambda: bool(desk.agents) and desk.agent.ended == 1, "it is ended")
    assert node.host.may_start("a") is None
    desk.allow()
    await desk.until(lambda: len(desk.agents) > 1 and node.host.may_start("a") is not None, "taken anew")
    assert desk.agents[0].epochs < desk.agent.epochs
    await desk.close()
