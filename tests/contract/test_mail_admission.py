"""A publish that repeats itself asks before each time that it leaves."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import nats_world

from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Subscription
from crewlet.testing.brokers import Server, one_server

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def test_a_publish_is_not_repeated_once_the_fence_has_closed(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls) as world:
        mail = await world.client()
        inbox = Subscription(world.topic("inbox"), "g")
        await mail.ensure_subscription(inbox)
        connection = world.connections[0]
        request, tries, is_closed = connection.request, list[str](), list[bool]()

        async def unanswered(subject: str, *args: Any, **kwargs: Any) -> Any:
            if subject != inbox.topic:
                return await request(subject, *args, **kwargs)
            tries.append(subject)
            is_closed.append(True)  # as while a process stands still in the pause before its next try
            raise Unavailable("lost on purpose")

        def check() -> None:
            if is_closed:
                raise Fenced("the lease has lapsed")

        monkeypatch.setattr(connection, "request", unanswered)
        with pytest.raises(Fenced):
            await mail.publish(inbox.topic, b"x", message_id="e1", admit=check)
        assert len(tries) == 1
        assert await world.kept(inbox.topic) == 0
