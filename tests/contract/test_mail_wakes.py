"""A wake message that another one outran is taken out again, and nothing else with it."""

import math

import pytest
from mail_worlds import nats_world

from crewlet.adapters.nats.attachment import NatsFeed
from crewlet.adapters.nats.publishing import WAKE_HEADER, publish_raw
from crewlet.ports.mail import Subscription
from crewlet.testing.brokers import Server
from crewlet.testing.contracts.mailworld import Desk, until_backlog

pytestmark = pytest.mark.real


@pytest.mark.parametrize("is_wake", [True, False], ids=["the_wake", "mail_of_a_stream_made_anew"])
async def test_only_the_wake_itself_is_taken_out_of_the_place_at_which_it_was(
    server: Server, monkeypatch: pytest.MonkeyPatch, is_wake: bool
) -> None:
    """A stream that was deleted and made again gives the wake's sequence to somebody's mail."""
    async with nats_world(server.urls) as world:
        mail, sender = await world.client(), await world.client()
        inbox, other = (Subscription(world.topic(name), name) for name in ("inbox", "other"))
        for each in (inbox, other):
            await mail.ensure_subscription(each)
        attachment = await mail.attach(inbox, Desk(), good_until=math.inf)
        await until_backlog(world, sender, inbox, lambda backlog: backlog.open_pulls == 1)
        headers = {WAKE_HEADER: "1"} if is_wake else {}
        at_its_place = await publish_raw(world.connections[1], other.topic, b"", headers)
        wake = NatsFeed._wake  # pyright: ignore[reportPrivateUsage]

        async def outrun(feed: NatsFeed) -> int:
            assert await wake(feed) is not None
            return at_its_place.sequence

        monkeypatch.setattr(NatsFeed, "_wake", outrun)
        assert await attachment.detach() is True
        assert await world.kept(other.topic) == (0 if is_wake else 1)
