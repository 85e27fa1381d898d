"""Passes and the protocol gate, on real leases: what a node with room reads, and when it says that it is blocked."""

from collections.abc import Sequence

import pytest
from host_rig import ALL_ROLES, Counter, Instants, RecordingHooks, seats_of

from crewlet.adapters.local.cells import LocalCells
from crewlet.ports.cells import Cells, Mark
from crewlet.seats import leases as leases_module
from crewlet.seats.gate import ProtocolGate
from crewlet.seats.host import HostConfig, SeatHost
from crewlet.seats.lease import Lease
from crewlet.seats.leases import EPOCHS_BUCKET, LeaseStore, leases_bucket
from crewlet.seats.noderow import NodeRow, meta_from_row
from crewlet.testing.contracts.leaseworld import granted
from crewlet.testing.virtual import VirtualClock, in_virtual_time, settle

TTL_S = 45.0


class CountedGate(ProtocolGate):
    """The gate of the node under test, with its readings counted."""

    readings = 0

    async def floor(self, mark: Mark) -> int | None:
        CountedGate.readings += 1
        return await super().floor(mark)


async def three_passes(host: SeatHost, clock: VirtualClock) -> None:
    for _ in range(3):
        before = host.last_sweep
        while host.last_sweep is before or host.last_sweep is None:
            await clock.sleep(0.5)


async def held_by(store: LeaseStore, owner: str, handles: Sequence[str], *, is_counted: bool = True) -> list[Lease]:
    """A peer with these seats, and with a presence that says so unless it has lost it."""
    taken = [granted(await store.claim(f"seat:{handle}", owner)) for handle in handles]
    if is_counted:
        node_id = owner.partition(":")[0]
        row = NodeRow(node_id, ALL_ROLES, {}, len(handles), False)
        taken.append(granted(await store.claim(f"node:{node_id}", owner, meta=meta_from_row(row))))
    return taken


@pytest.mark.proves("PG-06", "PG-17")
@in_virtual_time
async def test_room_without_a_free_seat_reads_no_floor_and_a_refusal_reads_it_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = VirtualClock()
    buckets = LocalCells(clock)
    leases, epochs = await buckets.open(leases_bucket(TTL_S)), await buckets.open(EPOCHS_BUCKET)
    new, old = store_on(leases, epochs, clock, protocol=4), store_on(leases, epochs, clock, protocol=1)
    monkeypatch.setattr(leases_module, "ProtocolGate", CountedGate)
    mine = store_on(leases, epochs, clock, protocol=4)
    monkeypatch.undo()
    await held_by(new, "x:1", ["a", "b"])
    (leaving,) = await held_by(new, "gone:1", ["c"], is_counted=False)
    host = SeatHost(
        HostConfig(node_id="n", owner="n:1", roles=ALL_ROLES, labels={}),
        mine,
        lambda: seats_of("a", "b", "c"),
        RecordingHooks(),
        clock=clock,
        entropy=Counter(),
        deadline=Instants(),
    )
    CountedGate.readings = 0
    await host.start()
    await three_passes(host, clock)
    record = host.last_sweep
    assert record is not None and not record.is_fleet_full, "it should be trying seats, and finding them held"
    assert (CountedGate.readings, record.blocked_by_protocol, record.claimed) == (0, None, ())

    await held_by(old, "old:1", [])
    assert await new.release(leaving.resource, leaving.owner, leaving.epoch)
    before = host.last_sweep
    while host.last_sweep is before:
        await clock.sleep(0.05)
    await settle()
    record = host.last_sweep
    assert record is not None
    assert (record.blocked_by_protocol, record.claimed) == (1, ())
    assert CountedGate.readings == 1
    await host.stop()
    for store in (mine, new, old):
        await store.stop()


def store_on(leases: Cells, epochs: Cells, clock: VirtualClock, *, protocol: int) -> LeaseStore:
    return LeaseStore(leases, epochs, clock=clock, entropy=Counter(), protocol=protocol)
