"""A seat that is taken out of the company's document, seen by real nodes on a real broker."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Generator
from datetime import datetime
from pathlib import Path

import pytest
from fleet_kit import BOUND_S, NodeProcess

from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.ports.mail import NoMailbox
from crewlet.testing.brokers import Server, one_server

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TTL_S = 6.0
GRACE_S = 12


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path / "broker") as running:
        yield running


async def _has_maintenance(node: NodeProcess) -> bool:
    duties = (await node.duties())["duties"]
    return any(duty["name"] == "maintenance" and duty.get("node") == node.id for duty in duties)


async def run_maintenance(node: NodeProcess) -> subprocess.CompletedProcess[str]:
    return await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "crewlet.cli", "duty", "run", "maintenance", "--url", node.url],
        check=False,
        capture_output=True,
        text=True,
        timeout=BOUND_S,
    )


async def test_a_removed_seats_mail_lives_through_its_grace_and_its_three_durables_go_after_it(
    server: Server, tmp_path: Path
) -> None:
    nobody = {"nowhere": "at all"}
    first = NodeProcess(
        tmp_path, "n1", server.url, seats={"stays": {}, "gone": nobody}, labels={}, ttl_s=TTL_S, grace_s=GRACE_S
    )
    second: NodeProcess | None = None
    clock = SystemClock()
    address = BrokerAddress(urls=server.urls, name="test:1")
    connection = await Connection.open(address, clock=clock, startup_timeout_s=30)
    mail = NatsMail(connection, clock=clock, entropy=SystemEntropy(), ack_window_s=TTL_S)
    try:
        await mail.start()
        await first.until(lambda: first.holds("stays"), "it runs")
        await first.send("gone", "kept")
        await first.until(lambda: _has_maintenance(first), "it does the duty")
        assert await first.drain() == 0
        assert "maintenance" in [event["duty"] for event in first.events("duty_released")]

        second = NodeProcess(tmp_path, "n2", server.url, seats={"stays": {}}, labels={}, ttl_s=TTL_S, grace_s=GRACE_S)
        node = second
        await node.until(lambda: bool(node.events("seat_mailbox_absent")), "the absence is noticed")
        seen_waiting: list[int] = []
        give_up_at = time.monotonic() + BOUND_S
        while not node.events("seat_mailbox_retired"):
            backlog = await mail.waiting(topics.inbox("gone"))
            if backlog is not None:
                seen_waiting.append(backlog.waiting)
            assert time.monotonic() < give_up_at, node.said()[-3000:]
            ran = await run_maintenance(node)
            assert ran.returncode == 0, ran.stderr
        assert seen_waiting and set(seen_waiting) == {1}
        (absent,), (retired,) = node.events("seat_mailbox_absent"), node.events("seat_mailbox_retired")
        assert absent["seat"] == retired["seat"] == "gone"
        assert retired["messages"] == 1
        # By the store's clock, and not by when the line was written.
        assert retired["at"] - datetime.fromisoformat(retired["absent_since"]).timestamp() >= GRACE_S - 0.01
        assert sorted(await mail.list_subscriptions(topics.ALL_MAILBOXES)) == sorted(topics.mailbox("stays"))
        with pytest.raises(NoMailbox):
            await mail.publish(topics.inbox("gone").topic, b"late", message_id="late")
        assert (await run_maintenance(node)).stdout.strip() == "done: there was nothing to do"
        await node.until(lambda: node.holds("stays"), "the seat that stays is held")
        assert await node.drain() == 0
    finally:
        await mail.stop()
        await connection.close()
        for each in (first, second):
            if each is not None:
                each.end()
