"""A company whose coordination or broker changes keeps its epochs, and has one owner a seat all the while."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from node_rig import Fleet
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec, Cells, Unknown
from crewlet.ports.term import Term
from crewlet.seats.formerepochs import note_epoch, take_over
from crewlet.seats.formerleases import wait_until_free
from crewlet.seats.lease import Granted
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore
from crewlet.seats.records import EpochRecord, decode_epoch, encode
from crewlet.testing.virtual import VirtualClock, in_virtual_time


async def counted(cells: Cells, **epochs: int) -> Cells:
    for key, epoch in epochs.items():
        await cells.create(f"seat.{key}", encode(EpochRecord(epoch=epoch, preferred="then")))
    return cells


def test_each_counter_goes_on_from_the_higher_of_the_two_and_keeps_its_hint(tmp_path: Path) -> None:
    asyncio.run(moves(tmp_path / "epochs"))


async def moves(file: Path) -> None:
    clock = SystemClock()
    await counted(await LocalCells(clock, epochs_file=file).open(EPOCHS_BUCKET), a=4, b=2, c=7)
    former = await LocalCells(clock, epochs_file=file).open(EPOCHS_BUCKET)
    epochs = await counted(await LocalCells(clock).open(EPOCHS_BUCKET), b=3, c=1)
    for _ in range(2):
        await take_over(former, epochs)
        found = {entry.key: decode_epoch(entry) for entry in await epochs.list()}
        assert {key: record.epoch for key, record in found.items()} == {"seat.a": 4, "seat.b": 3, "seat.c": 7}
        assert found["seat.c"].preferred == "then" and found["seat.a"].preferred is None


async def epoch_of(cells: Cells, handle: str) -> int:
    return decode_epoch(await cells.read(f"seat.{handle}")).epoch


@in_virtual_time
async def test_a_node_goes_on_from_its_own_epochs_on_another_broker() -> None:
    own = LocalCells(VirtualClock())
    for tenure in range(1, 4):
        fleet = Fleet(("a",), find_former=own.open)  # a store and broker that have never heard of the company
        node = await fleet.node("n1", incarnation=tenure)
        await fleet.until(lambda node=node: "a" in node.health().seats, "it holds its seat")
        noted = await own.open(EPOCHS_BUCKET)
        assert await epoch_of(await fleet.store.open(EPOCHS_BUCKET), "a") == tenure
        await fleet.clock.sleep(1)
        assert await epoch_of(noted, "a") == tenure
        await fleet.close()


@in_virtual_time
async def test_an_epoch_that_cannot_be_noted_is_said_and_keeps_nobody() -> None:
    class Full:
        async def read(self, key: str) -> None:
            return None

        async def create(self, key: str, value: bytes) -> Unknown:
            return Unknown("no room")

    with capture_logs() as logs:
        await note_epoch(cast(Any, Full()), Term("seat:a", "n:1", 4))
    assert [(line["event"], line["epoch"]) for line in logs] == [("epoch_not_noted", 4)]


async def shared_leases(clock: VirtualClock) -> LeaseStore:
    store = LocalCells(clock)
    cells = await store.open(BucketSpec("crewlet_leases", max_age_s=10))
    return LeaseStore(cells, await store.open(EPOCHS_BUCKET), clock=clock, entropy=SystemEntropy())


@in_virtual_time
async def test_a_node_keeps_its_own_leases_only_once_those_on_its_broker_have_lapsed() -> None:
    clock = VirtualClock()
    shared = await shared_leases(clock)
    began = clock.elapsed()
    await wait_until_free(shared, clock)
    assert clock.elapsed() == began
    assert isinstance(await shared.claim("seat:a", "n:1"), Granted)
    await wait_until_free(shared, clock)
    assert 10 <= clock.elapsed() - began < 12
    await shared.stop()


@in_virtual_time
async def test_a_node_does_not_keep_its_own_leases_beside_one_that_shares_them() -> None:
    clock = VirtualClock()
    shared = await shared_leases(clock)
    assert isinstance(await shared.claim("node:b", "b:1"), Granted)

    async def renew() -> None:
        while True:
            await clock.sleep(3)
            assert await shared.renew("node:b", "b:1", 1)

    renewing = asyncio.ensure_future(renew())
    with pytest.raises(ConfigRefused, match=r"^coordination\.type: b:1 holds leases of this company on this broker"):
        await wait_until_free(shared, clock)
    renewing.cancel()
    await shared.stop()
