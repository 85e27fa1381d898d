"""A node whose coordination moves to a stream keeps its epochs."""

import asyncio
from pathlib import Path

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.clock import SystemClock
from crewlet.ports.cells import Cells
from crewlet.seats.formerepochs import take_over
from crewlet.seats.leases import EPOCHS_BUCKET
from crewlet.seats.records import EpochRecord, decode_epoch, encode


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
