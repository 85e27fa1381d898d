"""Events on a real broker: kept in their own stream, whoever watches, and no matter whether anybody does."""

import asyncio
from pathlib import Path

import pytest
from mail_worlds import nats_world

from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail.events import Events
from crewlet.testing.brokers import one_server

pytestmark = pytest.mark.real


def test_an_event_that_nobody_watches_is_kept_under_its_type(tmp_path: Path) -> None:
    async def check(urls: tuple[str, ...]) -> None:
        async with nats_world(urls) as world:
            events = Events(await world.client(), world.clock, SystemEntropy(), "n1")
            for event_type in ("turn.guard_breach", "turn_trigger_skipped", "turn_trigger_skipped"):
                events.tell(event_type, {"seat": "alice"})
            await events.stop()
            assert await world.kept("crewlet.events.turn.guard_breach") == 1
            assert await world.kept("crewlet.events.turn_trigger_skipped") == 2

    with one_server(tmp_path) as server:
        asyncio.run(check(server.urls))
