"""A node that keeps its own leases, and one that shares them, on one real broker."""

import os
import signal
from pathlib import Path

import pytest
from fleet_kit import NodeProcess
from process_kit import until

pytestmark = [pytest.mark.real, pytest.mark.long, pytest.mark.timeout(400)]

TTL_S = 60.0
"""Longer than the node stands still here, so that its watchdog leaves it alone."""


async def test_nodes_of_two_kinds_never_run_the_seats_of_one_broker_both(tmp_path: Path) -> None:
    nodes: list[NodeProcess] = []

    def start(name: str, coordination: str, broker_url: str) -> NodeProcess:
        nodes.append(
            NodeProcess(
                tmp_path, name, broker_url, seats={"ann": {}}, labels={}, ttl_s=TTL_S, coordination=coordination
            )
        )
        return nodes[-1]

    try:
        own = start("own", "local", "")
        await own.until(lambda: own.holds("ann"), "it holds the seat")
        shared = start("shared", "embedded-kv", own.broker_url)
        await until(lambda: shared.process.poll() is not None, within_s=90.0)
        assert shared.process.returncode == 78, shared.said()[-3000:]
        assert "runs this company's seats on this broker with local leases" in shared.said().splitlines()[-1]
        assert "Traceback" not in shared.said() and await own.holds("ann")

        # While the node stands still its mark ages out. What it finds then is told to a person.
        node = own.node_pid
        os.kill(node, signal.SIGSTOP)
        shared.restart()
        await shared.until(lambda: shared.holds("ann"), "nobody is in its way any more")
        os.kill(node, signal.SIGCONT)
        await until(lambda: own.process.poll() is not None, within_s=90.0)
        assert own.process.returncode == 78, own.said()[-3000:]
        assert "came to hold leases of this company on this broker" in own.said(), own.said()[-3000:]
        assert "Traceback" not in own.said()
    finally:
        for each in reversed(nodes):
            each.end()
