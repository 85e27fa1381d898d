"""What the lease store promises to fleets of mixed versions, and to singleton duties."""

import asyncio
from collections.abc import Sequence

from crewlet.ports.errors import Misuse
from crewlet.seats.gate import IDLE_S
from crewlet.seats.lease import LEASE_PROTOCOL
from crewlet.seats.leases import LeaseStore
from crewlet.seats.records import LeaseRecord, encode, key_of
from crewlet.testing.contracts.leases import raises
from crewlet.testing.contracts.leaseworld import LeasesWorld, granted, refused
from crewlet.testing.faults import Call


async def a_held_seat_refuses_as_held_before_the_gate_is_judged(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    granted(await old.claim("seat:a", "o:1"))
    before = await world.raw("seat:a")
    assert refused(await new.claim("seat:a", "n:1", gated=True), "held").holder == "o:1"
    assert await world.raw("seat:a") == before


async def a_gated_refusal_burns_nothing(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    first = granted(await new.claim("seat:a", "n:1", preferred="n"))
    await new.release("seat:a", "n:1", first.epoch)
    presence = granted(await old.claim("node:o", "o:1"))
    before = await world.raw("seat:a"), await world.epochs.list()
    assert refused(await new.claim("seat:a", "n:1", preferred="x", gated=True), "protocol").floor == 1
    assert (await world.raw("seat:a"), await world.epochs.list()) == before
    await old.release("node:o", "o:1", presence.epoch)
    assert granted(await new.claim("seat:a", "n:1", gated=True)).epoch == first.epoch + 1


async def a_running_tenure_is_renewed_but_not_claimed_again(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    lease = granted(await new.claim("seat:a", "n:1", gated=True))
    granted(await old.claim("seat:b", "o:1"))
    refused(await new.claim("seat:a", "n:1", gated=True), "protocol")
    assert await new.renew("seat:a", "n:1", lease.epoch) is True


async def other_classes_do_not_gate(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    granted(await old.claim("worker:scheduler", "o:1"))
    granted(await old.claim("walk:tracker", "o:1"))
    granted(await new.claim("seat:a", "n:1", gated=True))
    assert await new.protocol_floor() == 2


async def a_lease_written_an_instant_ago_gates(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    for attempt in range(100):
        lease = granted(await old.claim(f"seat:old{attempt}", "o:1"))
        assert refused(await new.claim("seat:a", "n:1", gated=True), "protocol").floor == 1, attempt
        assert await new.protocol_floor() == 1
        await old.release(lease.resource, "o:1", lease.epoch)


async def a_claim_carries_the_builds_own_protocol(world: LeasesWorld) -> None:
    store = world.store()
    assert granted(await store.claim("seat:a", "n:1")).protocol == LEASE_PROTOCOL
    found = await store.get("seat:a")
    assert found is not None and found.protocol == LEASE_PROTOCOL
    granted(await world.store().claim("seat:b", "m:1", gated=True))


async def a_newer_node_is_still_counted_while_its_claims_are_gated(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    granted(await old.claim("seat:a", "o:1"))
    granted(await new.claim("node:n", "n:1"))
    refused(await new.claim("seat:b", "n:1", gated=True), "protocol")
    assert [lease.name for lease in await new.list_live("node")] == ["n"]


async def any_seat_of_an_older_build_gates_every_other(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    granted(await old.claim("seat:a", "o:1"))
    refused(await new.claim("seat:b", "n:1", gated=True), "protocol")


async def an_older_presence_alone_gates(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    granted(await old.claim("node:o", "o:1"))
    refused(await new.claim("seat:a", "n:1", gated=True), "protocol")


async def the_gate_only_looks_down(world: LeasesWorld) -> None:
    old, new, same = world.store(protocol=1), world.store(protocol=2), world.store(protocol=2)
    granted(await new.claim("seat:a", "n:1", gated=True))
    granted(await same.claim("seat:b", "m:1", gated=True))
    granted(await old.claim("seat:c", "o:1", gated=True))


async def the_gate_lifts_with_the_last_lower_lease(world: LeasesWorld) -> None:
    old, new = world.store(protocol=1), world.store(protocol=2)
    seat = granted(await old.claim("seat:old", "o:1"))
    granted(await old.claim("node:o", "o:1"))
    refused(await new.claim("seat:a", "n:1", gated=True), "protocol")
    await old.release("seat:old", "o:1", seat.epoch)
    refused(await new.claim("seat:a", "n:1", gated=True), "protocol")
    await world.lapse()
    assert granted(await new.claim("seat:a", "n:1", gated=True)).protocol == 2


async def a_gated_claim_costs_the_same_with_many_leases(world: LeasesWorld) -> None:
    few = await _calls_of_twenty_claims(world, "few")
    value = encode(LeaseRecord(owner="f:1", epoch=1, protocol=LEASE_PROTOCOL))
    for start in range(0, 2_000, 50):
        keys = [key_of(f"seat:fill{n}") for n in range(start, start + 50)]
        await asyncio.gather(*(world.leases.create(key, value) for key in keys))
    many = await _calls_of_twenty_claims(world, "many")
    assert abs(many - few) <= 20 * 20
    assert many <= 20 * 8


async def _calls_of_twenty_claims(world: LeasesWorld, name: str) -> int:
    leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
    store = world.store(leases=leases, epochs=epochs)
    granted(await store.claim(f"seat:{name}", "n:1", gated=True))
    leases.calls.clear()
    epochs.calls.clear()
    for n in range(20):
        granted(await store.claim(f"seat:{name}{n}", "n:1", gated=True))
    assert not any(call.verb in ("list", "watch") for call in leases.calls + epochs.calls)
    return len(leases.calls) + len(epochs.calls)


async def the_view_stops_a_minute_after_the_last_judgement(world: LeasesWorld) -> None:
    """Only in virtual time."""
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    await store.protocol_floor()
    await world.sleep(IDLE_S - 1)
    await store.protocol_floor()
    assert _watches(leases.calls) == 1
    await world.sleep(IDLE_S + 1)
    refused_as_held = world.store()
    granted(await refused_as_held.claim("seat:a", "m:1"))
    refused(await store.claim("seat:a", "n:1", gated=True), "held")
    assert _watches(leases.calls) == 1
    granted(await store.claim("seat:b", "n:1", gated=True))
    assert _watches(leases.calls) == 2


def _watches(calls: Sequence[Call]) -> int:
    return sum(1 for call in calls if call.verb == "watch")


async def duties_are_leased_for_their_own_time(world: LeasesWorld) -> None:
    duties = world.duty_leases()
    for ttl_s in (30.0, 270.0, 2_700.0, 10_800.0):
        lease = granted(await duties.claim(f"duty-{ttl_s:g}", "n:1", ttl_s=ttl_s))
        assert abs((lease.expires_at - lease.acquired_at).total_seconds() - ttl_s) < 0.001
    for ttl_s in (29.9, 0.0, -1.0, 10_800.1, float("nan")):
        await raises(Misuse, lambda ttl_s=ttl_s: duties.claim("scheduler", "n:1", ttl_s=ttl_s))
    assert len(await duties.list_live()) == 4


async def duties_lapse_at_their_own_deadlines(world: LeasesWorld) -> None:
    """Only in virtual time: it takes three hours."""
    duties, peer = world.duty_leases(), world.duty_leases()
    passed_s = 0.0
    ttls = (30.0, 270.0, 2_700.0, 10_800.0)
    for ttl_s in ttls:
        granted(await duties.claim(f"duty-{ttl_s:g}", "n:1", ttl_s=ttl_s))
    for ttl_s in ttls:
        await world.sleep(ttl_s - passed_s - 1)
        refused(await peer.claim(f"duty-{ttl_s:g}", "m:1", ttl_s=30), "held")
        await world.sleep(1.5)
        passed_s = ttl_s + 0.5
        assert granted(await peer.claim(f"duty-{ttl_s:g}", "m:1", ttl_s=30)).epoch == 2


async def a_record_with_an_age_of_its_own_lapses_by_it(world: LeasesWorld) -> None:
    def store() -> LeaseStore:
        return LeaseStore(world.duties, world.epochs, clock=world.clock, entropy=world.entropy, has_entry_ttl=True)

    holder, peer = store(), store()
    first = granted(await holder.claim("worker:a", "n:1", ttl_s=3.0))
    refused(await peer.claim("worker:a", "m:1", ttl_s=3.0), "held")
    again = granted(await holder.claim("worker:a", "n:1", ttl_s=3.5))
    assert again.epoch == first.epoch
    await world.sleep(3.55)
    assert granted(await peer.claim("worker:a", "m:1", ttl_s=30.0)).epoch == first.epoch + 1


async def a_duty_kept_keeps_its_epoch_and_a_duty_released_is_free(world: LeasesWorld) -> None:
    duties, peer = world.duty_leases(), world.duty_leases()
    first = granted(await duties.claim("scheduler", "n:1", ttl_s=30))
    second = granted(await duties.claim("scheduler", "n:1", ttl_s=45))
    assert first.epoch == second.epoch
    assert second.expires_at > first.expires_at
    refused(await peer.claim("scheduler", "m:1", ttl_s=30), "held")
    assert await duties.release("scheduler", "n:1", first.epoch) is True
    assert granted(await peer.claim("scheduler", "m:1", ttl_s=30)).epoch == first.epoch + 1


async def a_duty_does_not_gate_seats(world: LeasesWorld) -> None:
    duties, store = world.duty_leases(), world.store()
    granted(await duties.claim("scheduler", "n:1", ttl_s=30))
    granted(await store.claim("seat:a", "n:1", gated=True))
    assert [lease.resource for lease in await store.list_live("seat")] == ["seat:a"]
