"""The counters of a company that somebody deletes under it: what was given out is never given out again."""

from collections.abc import Generator
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.jsapi import ask
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.errors import Unavailable
from crewlet.ports.term import Term
from crewlet.seats.dutyleases import DUTIES_BUCKET
from crewlet.seats.formerepochs import note_epoch, take_over
from crewlet.seats.lease import Granted
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.testing.brokers import Server, one_server

pytestmark = pytest.mark.real

TTL_S = 30.0
LIMIT_S = 60.0


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


async def opened(connection: Connection) -> LeaseStore:
    """A node's leases, its buckets made in the order in which a node makes them."""
    cells, clock, entropy = NatsCells(connection, entropy=SystemEntropy()), SystemClock(), SystemEntropy()
    leases, epochs = await cells.open(leases_bucket(TTL_S)), await cells.open(EPOCHS_BUCKET)
    await cells.open(DUTIES_BUCKET)
    return LeaseStore(leases, epochs, clock=clock, entropy=entropy)


async def epoch_of(store: LeaseStore, handle: str, owner: str) -> int:
    """The epoch of a new tenure, given back."""
    result = await store.claim(f"seat:{handle}", owner)
    assert isinstance(result, Granted), result
    assert await store.release(f"seat:{handle}", owner, result.lease.epoch) is True
    return result.lease.epoch


@pytest.mark.proves("LS-21")
async def test_epochs_whose_bucket_was_deleted_go_on_above_all_that_were_given_out_for_every_client(
    server: Server,
) -> None:
    address, clock = BrokerAddress((server.url,)), SystemClock()
    connection = await Connection.open(address, clock=clock, startup_timeout_s=LIMIT_S)
    try:
        running = await opened(connection)
        with capture_logs() as logs:
            before = [await epoch_of(running, handle, "n1:a") for handle in ("alice", "alice", "alice", "bob")]
        assert before == [1, 2, 3, 1] and not [line for line in logs if line["event"] == "epochs_lost"]
        await ask(connection, "STREAM.DELETE.KV_crewlet_epochs")
        # What the leases remember of them ages out, or is deleted too.
        await ask(connection, "STREAM.PURGE.KV_crewlet_leases")
        with pytest.raises(Unavailable):
            await running.claim("seat:alice", "n1:a")
        started = await opened(connection)
        with capture_logs() as logs:
            first = await epoch_of(running, "alice", "n1:a")
            second = await epoch_of(started, "alice", "n2:b")
            other = await epoch_of(started, "bob", "n2:b")
        assert 1_000_000_000 < first < second and other > 1_000_000_000
        assert "epochs_lost" in {line["event"] for line in logs if line["log_level"] == "error"}
        assert await epoch_of(running, "alice", "n1:a") == second + 1
        await running.stop()
        await started.stop()
    finally:
        await connection.close()


async def test_what_a_node_had_noted_does_not_stand_in_for_what_another_had_won_since(
    server: Server, tmp_path: Path
) -> None:
    address, clock = BrokerAddress((server.url,)), SystemClock()
    connection = await Connection.open(address, clock=clock, startup_timeout_s=LIMIT_S)
    try:
        store = await opened(connection)
        own = await LocalCells(clock, epochs_file=tmp_path / "epochs").open(EPOCHS_BUCKET)
        first = await epoch_of(store, "alice", "n2:b")
        await note_epoch(own, Term("seat:alice", "n2:b", first))
        latest = [await epoch_of(store, "alice", "n1:a") for _ in range(3)][-1]
        for stream in ("DELETE.KV_crewlet_epochs", "PURGE.KV_crewlet_leases"):
            await ask(connection, f"STREAM.{stream}")
        # Only the node with the older note starts again, and makes the bucket.
        started = await opened(connection)
        epochs = await NatsCells(connection, entropy=SystemEntropy()).open(EPOCHS_BUCKET)
        for _ in range(2):
            await take_over(own, epochs)
        assert await epoch_of(started, "alice", "n2:b") > latest
        await store.stop()
        await started.stop()
    finally:
        await connection.close()


async def test_a_process_wins_no_seat_as_low_as_it_had_it_before_whatever_the_store_forgot(server: Server) -> None:
    address, clock = BrokerAddress((server.url,)), SystemClock()
    connection = await Connection.open(address, clock=clock, startup_timeout_s=LIMIT_S)
    try:
        store = await opened(connection)
        before = [await epoch_of(store, "alice", "n1:a") for _ in range(3)]
        for bucket in ("crewlet_epochs", "crewlet_leases"):
            await ask(connection, f"STREAM.PURGE.KV_{bucket}")
        assert await epoch_of(store, "alice", "n1:a") == before[-1] + 1
        await store.stop()
    finally:
        await connection.close()
