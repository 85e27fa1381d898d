"""Streams and buckets that somebody deletes, empties or spoils by hand: each is named, with what to do about it."""

import asyncio
import shutil
import time
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any

import pytest

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.inventory import Inventory
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec, Cells, Entry
from crewlet.ports.errors import Unavailable
from crewlet.seats.leases import EPOCHS_BUCKET, leases_bucket
from crewlet.testing.brokers import Server, one_server

pytestmark = pytest.mark.real

LIMIT_S = 60.0
NS = 1_000_000_000
LEDGER = BucketSpec("crewlet_ledger", max_age_s=600.0)


class Site:
    """A broker with what a company has on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.cells = NatsCells(connection, entropy=SystemEntropy())
        self.inventory = Inventory(connection)

    async def make(self) -> None:
        for spec in (leases_bucket(30.0), EPOCHS_BUCKET, LEDGER):
            await self.cells.open(spec)
        clock = SystemClock()
        await NatsMail(self.connection, clock=clock, entropy=SystemEntropy(), ack_window_s=30.0).start()

    async def change(self, stream: str, **config: Any) -> None:
        now = (await ask(self.connection, f"STREAM.INFO.{stream}"))["config"]
        await ask(self.connection, f"STREAM.UPDATE.{stream}", {**now, **config})

    async def faults(self) -> list[tuple[str, str, str]]:
        return [(fault.store, fault.kind, fault.reason) for fault in await self.inventory.faults()]


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.fixture
async def site(server: Server) -> AsyncGenerator[Site]:
    address = BrokerAddress((server.url,))
    connection = await Connection.open(address, clock=SystemClock(), startup_timeout_s=LIMIT_S)
    made = Site(connection)
    await made.make()
    assert await made.faults() == []
    yield made
    await connection.close()


async def test_what_was_deleted_is_named_until_it_is_there_again_and_that_it_is_another_is_said_once(
    site: Site,
) -> None:
    await ask(site.connection, "STREAM.DELETE.KV_crewlet_ledger")
    await ask(site.connection, "STREAM.DELETE.CREWLET_AGENT")
    assert await site.faults() == []  # one server may be behind; the second look counts
    for _ in range(2):
        assert [(store, kind) for store, kind, _ in await site.faults()] == [
            ("CREWLET_AGENT", "missing"),
            ("crewlet_ledger", "missing"),
        ]
    await site.make()
    found = await site.faults()
    assert [(store, kind) for store, kind, _ in found] == [("CREWLET_AGENT", "reset"), ("crewlet_ledger", "reset")]
    assert "made anew" in found[0][2]
    assert await site.faults() == []


@pytest.mark.parametrize(
    "limit",
    [
        {"max_msgs": 5},
        {"max_bytes": 1000},
        {"max_age": 60 * NS, "duplicate_window": 60 * NS},
        {"max_msgs_per_subject": 2},
    ],
)
async def test_a_limit_by_which_mail_would_be_thrown_away_is_named_and_one_that_refuses_mail_is_not(
    site: Site, limit: dict[str, int]
) -> None:
    await site.change("CREWLET_AGENT", **limit)
    ((store, kind, reason),) = await site.faults()
    assert (store, kind) == ("CREWLET_AGENT", "unfit") and next(iter(limit)) in reason
    if "max_msgs" in limit or "max_bytes" in limit:
        await site.change("CREWLET_AGENT", discard="new")
        assert await site.faults() == []


async def test_an_age_that_was_changed_under_running_nodes_is_named_and_a_bucket_that_throws_away_is_too(
    site: Site,
) -> None:
    await site.change("KV_crewlet_leases", max_age=3 * NS, duplicate_window=3 * NS)
    await site.change("KV_crewlet_epochs", max_msgs=10, discard="old")
    found = await site.faults()
    assert [(store, kind) for store, kind, _ in found] == [("crewlet_epochs", "unfit"), ("crewlet_leases", "unfit")]
    assert "max_msgs 10" in found[0][2] and "from 30 s to 3 s" in found[1][2]


async def test_counters_that_were_emptied_or_put_back_are_noticed_and_other_buckets_may_shrink(site: Site) -> None:
    epochs, ledger = await site.cells.open(EPOCHS_BUCKET), await site.cells.open(LEDGER)
    for cells in (epochs, ledger):
        for key in ("seat.a", "seat.b"):
            await cells.create(key, b"1")
    assert await site.faults() == []
    for stream in ("KV_crewlet_epochs", "KV_crewlet_ledger"):
        await ask(site.connection, f"STREAM.PURGE.{stream}")
    assert [(store, kind) for store, kind, _ in await site.faults()] == [("crewlet_epochs", "reset")]
    assert await site.faults() == []


async def test_a_broker_whose_store_was_put_back_from_an_older_copy_is_noticed(
    site: Site, server: Server, tmp_path: Path
) -> None:
    epochs = await site.cells.open(EPOCHS_BUCKET)
    await epochs.create("seat.a", b"1")
    assert await site.faults() == []
    server.terminate()
    home, copy = server.broker.home, tmp_path / "copy"
    shutil.copytree(home, copy)
    server.restart()
    for number in range(2, 5):
        entry = await _read(epochs)
        await epochs.replace("seat.a", str(number).encode(), expect=entry.revision)
    assert await site.faults() == []
    server.terminate()
    shutil.rmtree(home)
    shutil.copytree(copy, home)
    server.restart()
    await _read(epochs)
    found = [fault for fault in await site.faults() if fault[0] == "crewlet_epochs"]
    assert [kind for _, kind, _ in found] == ["reset"] and "put back" in found[0][2]


async def _read(cells: Cells) -> Entry:
    """What is there, once the broker is back."""
    give_up_at = time.monotonic() + LIMIT_S
    while True:
        try:
            entry = await cells.read("seat.a")
        except Unavailable:
            assert time.monotonic() < give_up_at
            await asyncio.sleep(0.1)
        else:
            assert entry is not None
            return entry
