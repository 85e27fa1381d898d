"""What the lease store promises when answers are lost, writes come late, callers give up and processes stall."""

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

from crewlet.ports.cells import Done, Refused
from crewlet.ports.errors import Unavailable
from crewlet.seats.lease import Granted, Lease
from crewlet.seats.leases import LeaseStore
from crewlet.seats.records import LeaseRecord, encode, key_of
from crewlet.testing.contracts.leases import raises
from crewlet.testing.contracts.leaseworld import LIMIT_S, LeasesWorld, abandon, claimed, granted, refused
from crewlet.testing.faults import Fault, Faults, FaultyCells

OWNERS = ("n:1", "m:1")

Plant = Callable[[FaultyCells, FaultyCells], None]
"""Has the cells of the leases, and of the epochs, go wrong."""


async def _failed(world: LeasesWorld, resource: str, plant: Plant) -> LeaseStore:
    """A store whose claim has failed by the planted faults, and healed since."""
    leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
    store = world.store(leases=leases, epochs=epochs)
    plant(leases, epochs)
    await raises(Unavailable, lambda: store.claim(resource, "n:1"))
    return store


async def _next_epoch(world: LeasesWorld, store: LeaseStore, resource: str, owner: str) -> int:
    """Who claims next, the owner through its own store or a peer through another, and at which epoch."""
    claimant = store if owner == "n:1" else world.store()
    return granted(await claimant.claim(resource, owner)).epoch


async def _leaves_nothing_held(world: LeasesWorld, plant: Plant, *, then: int) -> None:
    """A claim that these faults fail is given back: the owner, or a peer, claims at that epoch at once."""
    for owner in OWNERS:
        resource = f"seat:{owner[0]}"
        store = await _failed(world, resource, plant)
        assert await world.store().get(resource) is None
        assert await _next_epoch(world, store, resource, owner) == then


async def a_failed_counter_leaves_nothing_held(world: LeasesWorld) -> None:
    await _leaves_nothing_held(world, lambda _, epochs: epochs.next("create", Fault.LOST), then=1)


async def a_lost_token_is_a_gap(world: LeasesWorld) -> None:
    await _leaves_nothing_held(world, lambda _, epochs: epochs.next("create", Fault.UNANSWERED), then=2)


async def a_claiming_record_whose_answer_was_lost_is_known_and_given_back(world: LeasesWorld) -> None:
    await _leaves_nothing_held(world, lambda leases, _: leases.next("create", Fault.UNANSWERED), then=1)


async def a_commit_whose_answer_was_lost_stands(world: LeasesWorld) -> None:
    store = await _failed(world, "seat:a", lambda leases, _: leases.next("replace", Fault.UNANSWERED))
    refused(await world.store().claim("seat:a", "m:1"), "held")
    assert granted(await store.claim("seat:a", "n:1")).epoch == 1


async def a_commit_that_never_arrived_leaves_nothing_held(world: LeasesWorld) -> None:
    await _leaves_nothing_held(world, lambda leases, _: leases.next("replace", Fault.LOST), then=2)


async def a_caller_cancelled_at_the_counter_gives_back(world: LeasesWorld) -> None:
    for owner in OWNERS:
        resource = f"seat:{owner[0]}"
        leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
        store = world.store(leases=leases, epochs=epochs)
        epochs.next("create", Fault.HANGS)
        call = asyncio.create_task(store.claim(resource, "n:1"))
        await world.until(lambda epochs=epochs: any(call.verb == "create" for call in epochs.calls))
        assert await abandon(call) is None and call.cancelled()
        assert await _next_epoch(world, store, resource, owner) == 1


async def a_caller_that_gave_up_once_its_record_was_in_gives_back(world: LeasesWorld) -> None:
    for owner in OWNERS:
        resource = f"seat:{owner[0]}"
        leases = world.faulty(world.leases)
        store = world.store(leases=leases)
        leases.next("create", Fault.ARRIVES_AND_HANGS)
        call = asyncio.create_task(store.claim(resource, "n:1"))
        await world.until(lambda leases=leases: any(call.verb == "create" for call in leases.calls))
        while await world.raw(resource) is None:
            await world.clock.sleep(0.002)
        assert await abandon(call) is None
        assert await _next_epoch(world, store, resource, owner) == 1


async def a_second_cancellation_does_not_cut_the_give_back_short(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    leases.next("create", Fault.ARRIVES_AND_HANGS)
    call = asyncio.create_task(store.claim("seat:a", "n:1"))
    while await world.raw("seat:a") is None:
        await world.clock.sleep(0.002)
    while not call.done():
        call.cancel()
        await asyncio.sleep(0)
    assert granted(await world.store().claim("seat:a", "m:1")).epoch == 1


async def a_sibling_is_not_disturbed(world: LeasesWorld) -> None:
    sibling_cells = world.faulty(world.epochs)
    sibling = world.store(epochs=sibling_cells)
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    # This call's first write never arrives; before it knows, its sibling has put its own record there.
    leases.next("create", Fault.HANGS)
    call = asyncio.create_task(store.claim("seat:a", "n:1"))
    await world.until(lambda: any(seen.verb == "create" for seen in leases.calls))
    sibling_cells.next("create", Fault.HANGS)
    sibling_call = asyncio.create_task(sibling.claim("seat:a", "n:1"))
    await world.until(lambda: any(seen.verb == "create" for seen in sibling_cells.calls))
    before = await world.raw("seat:a")
    assert await abandon(call) is None
    assert before is not None and await world.raw("seat:a") == before
    await abandon(sibling_call)


async def a_claim_waits_for_its_sibling(world: LeasesWorld) -> None:
    sibling_cells = world.faulty(world.epochs)
    sibling, store = world.store(epochs=sibling_cells), world.store()
    sibling_cells.next("create", Fault.HANGS)
    sibling_call = asyncio.create_task(sibling.claim("seat:a", "n:1"))
    await world.until(lambda: any(seen.verb == "create" for seen in sibling_cells.calls))
    before = await world.raw("seat:a")
    call = asyncio.create_task(store.claim("seat:a", "n:1"))
    await world.clock.sleep(world.ttl_s / 20)
    assert not call.done()
    assert before is not None and await world.raw("seat:a") == before
    assert await abandon(sibling_call) is None
    assert granted(await call).epoch == 1


async def a_write_that_comes_after_its_caller_gave_up_does_not_land(world: LeasesWorld) -> None:
    peer = world.store()
    for resource, verb, has_past in (("seat:new", "create", False), ("seat:freed", "replace", True)):
        if has_past:
            lease = granted(await peer.claim(resource, "m:1"))
            await peer.release(resource, "m:1", lease.epoch)
        leases = world.faulty(world.leases)
        store = world.store(leases=leases)
        leases.next(verb, Fault.LATE)
        await raises(Unavailable, lambda store=store, resource=resource: store.claim(resource, "n:1"))
        late = await leases.deliver_late()
        assert len(late) == 1 and isinstance(late[0], Refused), late
        assert granted(await store.claim(resource, "n:1")).epoch == (2 if has_past else 1)


async def a_late_commit_does_not_land(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    leases.next("replace", Fault.LATE)
    await raises(Unavailable, lambda: store.claim("seat:a", "n:1"))
    assert [type(result) for result in await leases.deliver_late()] == [Refused]
    assert granted(await world.store().claim("seat:a", "m:1")).epoch == 2


async def every_moment_of_giving_up_leaves_a_seat_that_can_be_claimed(world: LeasesWorld) -> None:
    delay_s = 0.002
    probe_cells = world.faulty(world.leases)
    probe_cells.faults = _slow(delay_s)
    started = world.clock.elapsed()
    granted(await world.store(leases=probe_cells).claim("seat:probe", "n:1"))
    twice_s = max(2 * (world.clock.elapsed() - started), 0.01)
    for instant in range(64):
        resource = f"seat:s{instant}"
        leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
        leases.faults = epochs.faults = _slow(delay_s)
        store = world.store(leases=leases, epochs=epochs)
        call = asyncio.create_task(store.claim(resource, "n:1"))
        await world.clock.sleep(twice_s * instant / 64)
        answered = await abandon(call)
        again = granted(await store.claim(resource, "n:1"))
        if answered is not None:
            assert again.epoch == granted(answered).epoch
        refused(await world.store().claim(resource, "m:1"), "held")


async def a_dead_claimants_record_lapses(world: LeasesWorld) -> None:
    peer = world.store()
    dead = LeaseRecord(owner="n:1", claim="dead")
    assert isinstance(await world.leases.create(key_of("seat:dead"), encode(dead)), Done)
    leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
    store = world.store(leases=leases, epochs=epochs)
    epochs.next("create", Fault.HANGS)
    call = asyncio.create_task(store.claim("seat:stuck", "n:1"))
    await world.until(lambda: any(seen.verb == "create" for seen in epochs.calls))
    leases.cut()
    await abandon(call)
    for resource in ("seat:dead", "seat:stuck"):
        refused(await peer.claim(resource, "m:1"), "held")
    await world.lapse()
    for resource in ("seat:dead", "seat:stuck"):
        assert granted(await peer.claim(resource, "m:1")).epoch == 1


async def a_lapsed_lease_that_is_still_there_is_not_renewed(world: LeasesWorld) -> None:
    store = world.store()
    lease = granted(await store.claim("seat:a", "n:1", ttl_s=world.ttl_s / 4))
    other = granted(await store.claim("seat:b", "n:1", ttl_s=world.ttl_s / 4))
    await world.sleep(world.ttl_s / 4 + 0.02)
    before = await world.raw("seat:a"), await world.raw("seat:b")
    assert None not in before
    assert await store.renew("seat:a", "n:1", lease.epoch) is False
    assert await world.store().renew("seat:b", "n:1", other.epoch) is False
    assert (await world.raw("seat:a"), await world.raw("seat:b")) == before
    assert granted(await store.claim("seat:a", "n:1")).epoch == lease.epoch + 1


async def a_renewal_that_lands_after_the_lapse_counts_for_nothing(world: LeasesWorld) -> None:
    """The store goes on only after the lapse, and applies what was sent before it. Others wait for the release."""
    leases = world.faulty(world.leases)
    store, peer = world.store(leases=leases), world.store()
    ttl_s = world.ttl_s / 4
    lease = granted(await store.claim("seat:a", "n:1", ttl_s=ttl_s))
    leases.next("replace", Fault.LATE)
    await raises(Unavailable, lambda: store.renew("seat:a", "n:1", lease.epoch))
    await world.sleep(ttl_s + 0.02)
    assert [type(result) for result in await leases.deliver_late()] == [Done]
    for _ in range(2):
        assert await store.renew("seat:a", "n:1", lease.epoch) is False
        refused(await peer.claim("seat:a", "m:1"), "held")
    assert await store.release("seat:a", "n:1", lease.epoch) is True
    assert granted(await peer.claim("seat:a", "m:1")).epoch == lease.epoch + 1


async def an_owner_whose_renewal_landed_too_late_claims_at_a_new_epoch(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    ttl_s = world.ttl_s / 4
    lease = granted(await store.claim("seat:a", "n:1", ttl_s=ttl_s))
    leases.next("replace", Fault.LATE)
    await raises(Unavailable, lambda: store.renew("seat:a", "n:1", lease.epoch))
    await world.sleep(ttl_s + 0.02)
    await leases.deliver_late()
    assert granted(await store.claim("seat:a", "n:1")).epoch == lease.epoch + 1


async def a_renewal_still_on_its_way_cannot_land_after_the_release(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    running = granted(await store.claim("seat:a", "n:1"))
    lapsing = granted(await store.claim("seat:b", "n:1", ttl_s=world.ttl_s / 4))
    for lease in (running, lapsing):
        leases.next("replace", Fault.LATE)
        await raises(Unavailable, lambda lease=lease: store.renew(lease.resource, "n:1", lease.epoch))
    await world.sleep(world.ttl_s / 4 + 0.02)
    assert await store.release("seat:a", "n:1", running.epoch) is True
    assert await store.release("seat:b", "n:1", lapsing.epoch) is False
    assert [type(result) for result in await leases.deliver_late()] == [Refused, Refused]
    for resource in ("seat:a", "seat:b"):
        granted(await world.store().claim(resource, "m:1"))


async def a_renewal_whose_answer_was_lost_is_known_at_the_next_call(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    lease = granted(await store.claim("seat:a", "n:1"))
    for fault in (Fault.UNANSWERED, Fault.LOST):
        leases.next("replace", fault)
        await raises(Unavailable, lambda: store.renew("seat:a", "n:1", lease.epoch))
        assert await store.renew("seat:a", "n:1", lease.epoch) is True
    refused(await world.store().claim("seat:a", "m:1"), "held")


async def an_outage_inside_the_ttl_costs_nothing(world: LeasesWorld) -> None:
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    lease = granted(await store.claim("seat:a", "n:1"))
    leases.cut()
    await raises(Unavailable, lambda: store.renew("seat:a", "n:1", lease.epoch))
    await world.sleep(world.ttl_s / 10)
    leases.heal()
    assert await store.renew("seat:a", "n:1", lease.epoch) is True


async def a_member_without_quorum_concludes_nothing(world: LeasesWorld) -> None:
    """Its reads are of a time before the claim, or before the last renewal, which by them has lapsed long ago."""
    leases = world.faulty(world.leases)
    store = world.store(leases=leases)
    old = granted(await store.claim("seat:old", "n:1", ttl_s=world.ttl_s / 2))
    await world.sleep(world.ttl_s / 8)
    deposed = world.faulty(world.leases)
    await deposed.go_stale()
    new = granted(await store.claim("seat:new", "n:1"))
    assert await store.renew("seat:old", "n:1", old.epoch, ttl_s=world.ttl_s)
    await world.sleep(world.ttl_s / 2)
    leases.stale_as(deposed)
    for lease in (old, new):
        await raises(Unavailable, lambda lease=lease: store.renew(lease.resource, "n:1", lease.epoch))
        await raises(Unavailable, lambda lease=lease: store.renew(lease.resource, "n:1", lease.epoch))
    await raises(Unavailable, lambda: store.release("seat:new", "n:1", new.epoch))
    await raises(Unavailable, lambda: store.claim("seat:free", "n:1"))
    leases.heal()
    assert await store.renew("seat:old", "n:1", old.epoch) is True
    assert await store.release("seat:new", "n:1", new.epoch) is True
    assert granted(await world.store().claim("seat:new", "m:1")).epoch == new.epoch + 1


async def a_release_whose_answer_was_lost_ends_the_tenure_here(world: LeasesWorld) -> None:
    for fault in (Fault.UNANSWERED, Fault.LOST):
        leases = world.faulty(world.leases)
        store = world.store(leases=leases)
        resource = f"seat:{fault.name.lower()}"
        lease = granted(await store.claim(resource, "n:1"))
        leases.next("replace", fault)
        await raises(Unavailable, lambda store=store, lease=lease: store.release(lease.resource, "n:1", lease.epoch))
        assert await store.renew(resource, "n:1", lease.epoch) is False
        assert granted(await store.claim(resource, "n:1")).epoch == lease.epoch + 1


async def history_holds_under_chance_faults(world: LeasesWorld, seed: int) -> None:
    """Three owners fight for two seats through bad wires; then all heals.

    Checked: the history (see `crewlet.testing.history`), and that nothing keeps a seat dark for longer than a TTL.
    """
    random = Random(seed)
    wires: list[FaultyCells] = []
    async with world.history.following(world.leases):
        players = [_play(world, f"n{place}:1", Random(random.random()), wires) for place in range(3)]
        async with asyncio.timeout(LIMIT_S + world.ttl_s * 200):
            await asyncio.gather(*players)
        for wire in wires:
            wire.heal()
            await wire.deliver_late()
        await world.lapse()
        fresh = world.store()
        for resource in ("seat:a", "seat:b"):
            granted(await fresh.claim(resource, "z:1"))
        await world.clock.sleep(0.05)
    assert len(world.history.entitlements()) > 2
    world.history.check()


async def _play(world: LeasesWorld, owner: str, random: Random, wires: list[FaultyCells]) -> None:
    pair = [FaultyCells(cells, sleep=world.clock.sleep, random=random) for cells in (world.leases, world.epochs)]
    for wire in pair:
        wire.faults = Faults(0.08, 0.08, 0.08, 0.05, delay_s=world.ttl_s / 60, late_s=world.ttl_s)
    wires += pair
    store = world.store(leases=pair[0], epochs=pair[1])
    for _ in range(30):
        resource = random.choice(("seat:a", "seat:b"))
        asked_at = world.clock.elapsed()
        call = asyncio.create_task(store.claim(resource, owner))
        if random.random() < 0.2:
            await world.clock.sleep(random.random() * world.ttl_s / 20)
            result = await abandon(call)
        else:
            result = await claimed(call)
        good_until = asked_at + world.ttl_s
        if isinstance(result, Granted) and world.clock.elapsed() < good_until:
            await _hold(world, store, random, result.lease, good_until)
        else:
            await world.clock.sleep(random.random() * world.ttl_s / 4)


async def _hold(world: LeasesWorld, store: LeaseStore, random: Random, lease: Lease, good_until: float) -> None:
    """Renew as long as it pleases, then give back, or walk away until the deadline has passed."""
    while world.clock.elapsed() < good_until and random.random() < 0.8:
        await world.clock.sleep(random.random() * world.ttl_s / 2)
        asked_at = world.clock.elapsed()
        if asked_at >= good_until:
            break
        try:
            is_ours = await store.renew(lease.resource, lease.owner, lease.epoch)
        except Unavailable:
            continue
        if is_ours and world.clock.elapsed() < good_until:
            good_until = asked_at + world.ttl_s
    if random.random() < 0.5:
        await _try(store.release(lease.resource, lease.owner, lease.epoch))
    else:
        await world.clock.sleep(good_until - world.clock.elapsed())


async def _try(call: Awaitable[object]) -> None:
    try:
        await call
    except Unavailable:
        return


def _slow(delay_s: float) -> Faults:
    return Faults(delay_s=delay_s)
