"""The sweep of channels: half way, beside itself and answers, and by nodes of other documents."""

import asyncio
from collections.abc import Awaitable, Callable

from channels_rig import TTL_S, turned, watched

from crewlet.company.model import Company, Seat
from crewlet.duties.answering import ChannelSweep
from crewlet.duties.asking import Asking
from crewlet.mail import topics
from crewlet.mail.channel import Channel, ChannelClosed
from crewlet.mail.channels import KEPT_S
from crewlet.mail.outbox import Outbox
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _Company:
    """A twin of the broker, channels, and a sweep by a node of any document."""

    def __init__(self, *handles: str) -> None:
        self.clock = VirtualClock()
        self.handles = handles
        self.mail = TwinMail(TwinBroker(self.clock, ack_window_s=TTL_S), fault=self._fault)
        self.at_publish: Callable[[], Awaitable[None]] | None = None

    async def open(self) -> "_Company":
        await self.mail.start()
        for handle in self.handles:
            for subscription in topics.mailbox(handle):
                await self.mail.ensure_subscription(subscription)
        self.cells, self.channels = await watched(self.clock)
        return self

    async def _fault(self, request: str) -> None:
        if request == "publish" and self.at_publish is not None:
            await self.at_publish()

    def sweep(self, *handles: str) -> ChannelSweep:
        company = Company("acme", tuple(Seat(handle) for handle in handles or self.handles))
        return ChannelSweep(
            self.channels, Outbox(self.mail, lambda: company, self.clock, "n1"), Asking(TTL_S, self.clock)
        )

    async def in_inbox(self, handle: str) -> int:
        backlog = await self.mail.waiting(topics.inbox(handle))
        return backlog.waiting if backlog is not None else -1


@in_virtual_time
async def test_a_sweep_that_dies_between_closing_and_telling_is_finished_by_the_next() -> None:
    company = await _Company("bob", "alice").open()
    for number in range(3):
        await company.channels.open(f"0{number}", Channel("bob", "alice", "how?"))
    await company.clock.sleep(3601)
    reached = asyncio.Event()

    async def stuck() -> None:
        reached.set()
        await asyncio.Event().wait()

    company.at_publish = stuck
    dying = asyncio.create_task(company.sweep().sweep(turned))
    await reached.wait()
    dying.cancel()
    await asyncio.wait([dying])
    company.at_publish = None
    assert await company.in_inbox("bob") == 0
    await company.clock.sleep(900)
    assert await company.sweep().sweep(turned) == "3 answers delivered"
    assert await company.in_inbox("bob") == 3
    await company.clock.sleep(900)
    assert await company.sweep().sweep(turned) == ""


@in_virtual_time
async def test_two_sweeps_and_an_answer_at_once_tell_the_asker_once() -> None:
    company = await _Company("bob", "alice").open()
    for number in range(20):
        await company.channels.open(f"{number:02x}", Channel("bob", "alice", "how?"))
    await company.clock.sleep(3601)

    async def slowly(request: str) -> None:
        await company.clock.sleep(0.01)

    company.cells.before = slowly

    async def answer(number: int) -> bool:
        try:
            await company.channels.answer(f"{number:02x}", by="alice", text="so", work="w")
        except ChannelClosed:
            return False
        return True

    outcomes = await asyncio.gather(
        company.sweep().sweep(turned), company.sweep().sweep(turned), *(answer(number) for number in range(20))
    )
    answered = sum(1 for outcome in outcomes[2:] if outcome)
    assert 0 < answered < 20, "neither side won anything: the race is none"
    assert await company.in_inbox("bob") == 20 - answered
    await company.clock.sleep(900)
    await asyncio.gather(company.sweep().sweep(turned), company.sweep().sweep(turned))
    assert await company.in_inbox("bob") == 20


@in_virtual_time
async def test_an_answer_whose_asker_this_document_does_not_name_waits_for_a_node_whose_document_does() -> None:
    company = await _Company("new", "alice").open()
    await company.channels.open("0a", Channel("new", "alice", "how?"))
    await company.channels.answer("0a", by="alice", text="so", work="w")
    await company.clock.sleep(900)
    assert await company.sweep("alice").sweep(turned) == ""
    await company.clock.sleep(900)
    assert await company.sweep("new", "alice").sweep(turned) == "1 answers delivered"
    assert await company.in_inbox("new") == 1


@in_virtual_time
async def test_an_answer_that_nobody_may_have_is_forgotten_after_a_week() -> None:
    company = await _Company("alice").open()
    await company.channels.open("0a", Channel("gone", "alice", "how?"))
    await company.channels.answer("0a", by="alice", text="so", work="w")
    await company.clock.sleep(KEPT_S + 1)
    assert await company.sweep().sweep(turned) == "1 channels forgotten"
