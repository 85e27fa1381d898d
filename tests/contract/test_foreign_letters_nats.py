"""What another program put among the dead letters costs nothing but itself."""

import math
from collections.abc import Callable, Generator
from pathlib import Path
from typing import cast

import pytest
from mail_worlds import nats_world
from structlog.testing import capture_logs

from crewlet.adapters.nats.deadletters import PROBE
from crewlet.adapters.nats.lookup import read_message
from crewlet.adapters.nats.streams import DEAD_LETTERS
from crewlet.company.model import Company
from crewlet.mail import topics
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.replays import REPLAYS_BUCKET, Replays
from crewlet.node.letterdesk import LetterDesk
from crewlet.ports.cells import Cells
from crewlet.ports.mail import Nak
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import Desk, send, until

pytestmark = pytest.mark.real


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def test_foreign_messages_on_the_subjects_of_dead_letters_keep_no_letter_from_being_listed(
    server: Server,
) -> None:
    inbox = topics.inbox("writer")
    async with nats_world(server.urls, delivery_budget=1) as world:
        mail = await world.client()
        connection = world.connections[0]
        await mail.attach(inbox, Desk([Nak("poison")] * 2), good_until=math.inf)
        await send(mail, inbox.topic, "e1")
        await until(world, lambda: mail.tally.dead_letters == 1)
        (first,) = (await mail.dead_letters.page(">")).letters
        place = int(first.id.partition("-")[0])
        stored = await read_message(connection, DEAD_LETTERS.name, {"seq": place})
        assert stored is not None
        # All but one fact of it is as in a letter of ours.
        headers = {name: text for name, text in stored.headers.items() if not name.startswith("Nats-")}
        await connection.request(stored.subject, b"x", timeout_s=30.0, headers={**headers, "Crewlet-History": "5"})
        deep = {**headers, "Crewlet-History": "[" * 60_000}
        await connection.request(stored.subject, b"x", timeout_s=30.0, headers=deep)
        await connection.request(f"dlq.{inbox.topic}.agent-writer.0.0", b"x", timeout_s=30.0, headers=headers)
        await connection.request("dlq.x", b"[" * 100_000, timeout_s=30.0)
        await connection.request(PROBE, b"", timeout_s=30.0)  # one that was left, and is no stranger's
        await connection.request("dlq.y", b"\xff", timeout_s=30.0, headers=b"NATS/1.0\r\n\xff\xfe\r\n:\r\n\r\n")
        await send(mail, inbox.topic, "e2")
        await until(world, lambda: mail.tally.dead_letters == 2)
        with capture_logs() as logs:
            letters = (await mail.dead_letters.page(">")).letters
        assert [each.message_id for each in letters] == ["e1", "e2"]
        assert [each["event"] for each in logs] == ["dead_letter_unreadable"] * 5
        assert all("\n" not in str(each["error"]) for each in logs)
        await connection.request("dlq.z", b"x", timeout_s=30.0)
        assert (await mail.dead_letters.page(">", limit=2)).next is None, "a stranger's message is not more of them"
        assert (await mail.dead_letters.page(">", limit=1)).next == letters[0].id
        # A record of its replay that cannot be read costs the letter's own state only.
        replays = await world.cells(REPLAYS_BUCKET)
        await replays.create(letters[0].id, b"[" * 100_000)
        ledger = Ledger(await world.cells(LEDGER_BUCKET))

        async def open_replays() -> Cells:
            return replays

        desk = LetterDesk(
            mail.dead_letters,
            Replays(mail, ledger, open_replays, "n1:1", world.clock),
            cast("Callable[[], Company]", None),
            "n1",
        )
        shown = (await desk.list()).letters
        assert [(each.mail, each.replay) for each in shown] == [("e1", "unknown"), ("e2", None)]
        assert (await desk.show(letters[0].id)).letter.replay == "unknown"
