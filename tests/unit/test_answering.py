"""The answers of questions that a dead node left behind, delivered by the duty, in virtual time."""

import asyncio
from itertools import pairwise

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.company.model import Company, Seat
from crewlet.duties.answering import ChannelSweep
from crewlet.duties.asking import Asking
from crewlet.mail import topics
from crewlet.mail.channel import Channel
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.mail.outbox import Outbox
from crewlet.ports.errors import Unavailable
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time

TTL_S = 4.0


@in_virtual_time
async def test_a_broker_that_is_silent_to_an_answer_does_not_look_like_a_stuck_duty() -> None:
    clock, is_silent = VirtualClock(), True

    async def silence(request: str) -> None:
        await asyncio.sleep(60 if is_silent and request == "publish" else 0)

    mail = TwinMail(TwinBroker(clock, ack_window_s=30.0), fault=silence)
    await mail.start()
    for subscription in topics.mailbox("asker"):
        await mail.ensure_subscription(subscription)
    channels = Channels(await LocalCells(clock).open(CHANNELS_BUCKET))
    for channel_id in ("a1", "a2", "a3"):
        await channels.open(channel_id, Channel("asker", "other", "why?"))
        await channels.answer(channel_id, by="other", text="because", work="w")
    await asyncio.sleep(600)

    company = Company("acme", (Seat("asker"), Seat("other")))
    sweep = ChannelSweep(channels, Outbox(mail, lambda: company, clock, "n1"), Asking(TTL_S, clock))
    turns = [clock.elapsed()]
    with pytest.raises(Unavailable, match="did not answer in time: sending the answer of channel a1"):
        await sweep.sweep(lambda: turns.append(clock.elapsed()))
    turns.append(clock.elapsed())
    assert max(later - earlier for earlier, later in pairwise(turns)) <= TTL_S / 2

    is_silent = False
    assert await sweep.sweep(lambda: None) == "3 answers delivered"
    backlog = await mail.waiting(topics.inbox("asker"))
    assert backlog is not None and backlog.waiting == 3
