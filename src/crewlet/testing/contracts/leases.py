"""What the lease store promises while the store answers. Each check takes a world and raises where it is not so."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import UTC
from typing import Any

from crewlet.ports.errors import Misuse, Unavailable
from crewlet.seats.lease import ClaimResult, Granted
from crewlet.seats.leases import LeaseStore
from crewlet.testing.contracts.leaseworld import LeasesWorld, granted, refused

ODD_NAMES = (
    "alice.smith",
    "a/b",
    "a b",
    "\u00fcn\u00efc\u00f8d\u00e9",
    "a=b",
    "*",
    ">",
    "a:b",
    "A.B",
    "a.b",
    "=",
    "a=2Eb",
)


async def a_former_owner_claims_a_lapsed_lease_at_a_higher_epoch(world: LeasesWorld) -> None:
    store, peer = world.store(), world.store()
    first = granted(await store.claim("seat:a", "n:1"))
    granted(await store.claim("seat:b", "n:1"))
    await world.lapse()
    again = granted(await store.claim("seat:a", "n:1"))
    taken = granted(await peer.claim("seat:b", "m:1"))
    assert again.epoch == taken.epoch == first.epoch + 1


async def a_lapsed_lease_is_not_held_by_its_release(world: LeasesWorld) -> None:
    store = world.store()
    first = granted(await store.claim("seat:a", "n:1"))
    await world.lapse()
    assert await store.release("seat:a", "n:1", first.epoch) is False
    assert granted(await store.claim("seat:a", "n:1")).epoch > first.epoch


async def an_older_epoch_of_the_same_owner_changes_nothing(world: LeasesWorld) -> None:
    store, other = world.store(), world.store()
    first = granted(await store.claim("seat:a", "n:1"))
    assert await store.release("seat:a", "n:1", first.epoch)
    second = granted(await store.claim("seat:a", "n:1"))
    before = await world.raw("seat:a")
    for caller in (store, other):
        assert await caller.renew("seat:a", "n:1", first.epoch) is False
        assert await caller.release("seat:a", "n:1", first.epoch) is False
    assert await world.raw("seat:a") == before
    assert await store.get("seat:a") == second


async def what_is_refused_leaves_the_record_as_it_was(world: LeasesWorld) -> None:
    holder, peer = world.store(), world.store()
    lease = granted(await holder.claim("seat:a", "n:1", preferred="n", meta={"k": 1}))
    before = await world.raw("seat:a"), await world.epochs.list()
    refused(await peer.claim("seat:a", "m:1", ttl_s=world.ttl_s / 2, preferred="m", meta={"k": 2}, gated=True), "held")
    assert await peer.renew("seat:a", "m:1", lease.epoch, meta={"k": 3}) is False
    assert await peer.renew("seat:a", "n:1", lease.epoch + 1, meta={"k": 3}) is False
    assert (await world.raw("seat:a"), await world.epochs.list()) == before


async def an_owner_that_claims_again_keeps_its_epoch_and_moves_its_deadline(world: LeasesWorld) -> None:
    store = world.store()
    short, long = world.ttl_s / 4, world.ttl_s
    first = granted(await store.claim("seat:a", "n:1", ttl_s=short, meta={"k": 1}))
    longer = granted(await store.claim("seat:a", "n:1", ttl_s=long))
    shorter = granted(await store.claim("seat:a", "n:1", ttl_s=short))
    assert first.epoch == longer.epoch == shorter.epoch
    assert first.acquired_at == longer.acquired_at == shorter.acquired_at
    gap_s = (longer.expires_at - shorter.expires_at).total_seconds()
    assert 0 < gap_s < long - short + 0.001
    assert shorter.meta == {"k": 1}
    assert await store.get("seat:a") == shorter


async def a_claim_without_a_hint_keeps_the_hint_and_one_with_a_hint_moves_it(world: LeasesWorld) -> None:
    store = world.store()
    first = granted(await store.claim("seat:a", "n:1", preferred="n"))
    await store.release("seat:a", "n:1", first.epoch)
    second = granted(await store.claim("seat:a", "m:1"))
    assert second.preferred == "n"
    assert await store.hints("n", "seat") == {"seat:a"}
    moved = granted(await store.claim("seat:a", "m:1", preferred="m"))
    assert (moved.preferred, moved.epoch) == ("m", second.epoch)
    assert await store.hints("n", "seat") == set()
    assert await store.hints("m", "seat") == {"seat:a"}
    assert await store.renew("seat:a", "m:1", second.epoch)
    assert granted(await store.claim("seat:a", "m:1")).preferred == "m"


async def hints_outlive_leases_and_keep_to_their_class(world: LeasesWorld) -> None:
    store = world.store()
    for resource in ("seat:lapsed", "seat:released", "seat:held", "node:x"):
        granted(await store.claim(resource, "n:1", preferred="n"))
    await world.lapse()
    granted(await store.claim("seat:held", "n:1"))
    again = granted(await store.claim("seat:released", "n:1"))
    await store.release("seat:released", "n:1", again.epoch)
    assert await store.hints("n", "seat") == {"seat:lapsed", "seat:released", "seat:held"}
    assert [lease.resource for lease in await store.list_live("seat")] == ["seat:held"]


async def facts_are_copied_in_and_out(world: LeasesWorld) -> None:
    store = world.store()
    meta: dict[str, Any] = {"list": [1, 2], "map": {"k": "v"}}
    lease = granted(await store.claim("seat:a", "n:1", meta=meta))
    meta["list"].append(3)
    lease.meta["map"]["k"] = "changed"
    expected = {"list": [1, 2], "map": {"k": "v"}}
    found = await store.get("seat:a")
    assert found is not None and found.meta == expected
    found.meta["map"]["k"] = "changed"
    assert await store.renew("seat:a", "n:1", lease.epoch)
    (listed,) = await store.list_live("seat")
    assert listed.meta == expected


async def facts_read_back_as_they_were(world: LeasesWorld) -> None:
    store = world.store()
    meta = {"i": 1, "f": 2.5, "b": True, "l": [1, "x", None], "m": {"deep": {"er": [False]}}}
    assert granted(await store.claim("seat:a", "n:1", meta=meta)).meta == meta
    assert granted(await store.claim("seat:b", "n:1")).meta == {}
    a, b = await store.list_owned("n:1", "seat")
    assert (a.meta, b.meta) == (meta, {})
    found = await store.get("seat:a")
    assert found is not None and found.meta == meta


async def no_two_names_share_a_record(world: LeasesWorld) -> None:
    store = world.store()
    held: dict[str, str] = {}
    for place, name in enumerate(ODD_NAMES):
        resource, owner = f"seat:{name}", f"n:{place}"
        try:
            lease = granted(await store.claim(resource, owner))
        except Misuse:
            continue
        assert (lease.resource, lease.owner, lease.epoch) == (resource, owner, 1)
        held[resource] = owner
    assert len(held) >= len(ODD_NAMES) - 1
    for resource, owner in held.items():
        lease = await store.get(resource)
        assert lease is not None and (lease.resource, lease.owner) == (resource, owner)
    assert {lease.resource: lease.owner for lease in await store.list_live("seat")} == held


async def a_ttl_beyond_the_bucket_is_an_error(world: LeasesWorld) -> None:
    store = world.store()
    with_lease = granted(await store.claim("seat:b", "n:1"))
    await raises(Misuse, lambda: store.claim("seat:a", "n:1", ttl_s=world.ttl_s + 1))
    await raises(Misuse, lambda: store.renew("seat:b", "n:1", with_lease.epoch, ttl_s=world.ttl_s + 1))
    assert await store.get("seat:a") is None


async def arguments_out_of_range_are_errors(world: LeasesWorld) -> None:
    store = world.store()
    lease = granted(await store.claim("seat:a", "n:1"))
    for resource in ("", " ", ":ceo", "seat:", "seat: ", "seat::ceo", "ceo", "se.at:a"):
        await raises(Misuse, lambda resource=resource: store.claim(resource, "n:1"))
    for owner in ("", "  "):
        await raises(Misuse, lambda owner=owner: store.claim("seat:b", owner))
        await raises(Misuse, lambda owner=owner: store.renew("seat:a", owner, lease.epoch))
    for ttl_s in (0.0, -1.0, float("nan")):
        await raises(Misuse, lambda ttl_s=ttl_s: store.claim("seat:b", "n:1", ttl_s=ttl_s))
        await raises(Misuse, lambda ttl_s=ttl_s: store.renew("seat:a", "n:1", lease.epoch, ttl_s=ttl_s))
    await raises(Misuse, lambda: store.claim("seat:b", "n:1", meta={"k": object()}))


async def a_release_without_an_owner_is_an_error(world: LeasesWorld) -> None:
    store = world.store()
    lease = granted(await store.claim("seat:a", "n:1"))
    assert await store.release("seat:a", "n:1", lease.epoch)
    await raises(Misuse, lambda: store.release("seat:a", "", lease.epoch))


async def one_owner_claiming_many_times_at_once_has_one_epoch(world: LeasesWorld) -> None:
    one = world.store()
    stores = [one] * 8 + [world.store() for _ in range(8)]
    results = await asyncio.gather(*(store.claim("seat:a", "n:1") for store in stores))
    assert {granted(result).epoch for result in results} == {1}


async def each_tenure_was_acquired_later_than_the_one_before(world: LeasesWorld) -> None:
    store, peer = world.store(), world.store()
    leases = [granted(await store.claim("seat:a", "n:1"))]
    await world.lapse()
    leases.append(granted(await store.claim("seat:a", "n:1")))
    await store.release("seat:a", "n:1", leases[-1].epoch)
    leases.append(granted(await peer.claim("seat:a", "m:1")))
    await peer.release("seat:a", "m:1", leases[-1].epoch)
    leases.append(granted(await peer.claim("seat:a", "m:1")))
    acquired = [lease.acquired_at for lease in leases]
    assert acquired == sorted(set(acquired))
    assert [lease.epoch for lease in leases] == [1, 2, 3, 4]


async def a_renewal_moves_the_deadline_and_not_the_time_of_acquisition(world: LeasesWorld) -> None:
    store = world.store()
    lease = granted(await store.claim("seat:a", "n:1"))
    for _ in range(2):
        await world.sleep(world.ttl_s / 10)
        assert await store.renew("seat:a", "n:1", lease.epoch)
        found = await store.get("seat:a")
        assert found is not None
        assert (found.acquired_at, found.epoch) == (lease.acquired_at, lease.epoch)
        assert found.expires_at > lease.expires_at


async def deadlines_differ_as_their_ttls_do(world: LeasesWorld) -> None:
    store = world.store()
    a, b = world.ttl_s, world.ttl_s / 2
    long, short = await asyncio.gather(store.claim("seat:a", "n:1", ttl_s=a), store.claim("seat:b", "n:1", ttl_s=b))
    ends = [granted(long).expires_at, granted(short).expires_at]
    assert all(end.tzinfo is UTC or end.utcoffset() is not None for end in ends)
    lifetimes = [(lease.expires_at - lease.acquired_at).total_seconds() for lease in (granted(long), granted(short))]
    assert abs(lifetimes[0] - a) < 0.001 and abs(lifetimes[1] - b) < 0.001


async def a_shorter_ttl_is_honoured_though_the_bucket_keeps_longer(world: LeasesWorld) -> None:
    store, peer = world.store(), world.store()
    first = granted(await store.claim("seat:a", "n:1", ttl_s=world.ttl_s / 4))
    await world.sleep(world.ttl_s / 4 + 0.02)
    assert await world.raw("seat:a") is not None
    assert await store.get("seat:a") is None
    assert await store.renew("seat:a", "n:1", first.epoch) is False
    assert granted(await peer.claim("seat:a", "m:1")).epoch == first.epoch + 1


async def every_resource_counts_from_one(world: LeasesWorld) -> None:
    store = world.store()
    assert granted(await store.claim("seat:a", "n:1")).epoch == 1
    assert granted(await store.claim("seat:b", "n:1")).epoch == 1


async def what_is_not_held_is_not_renewed(world: LeasesWorld) -> None:
    store = world.store()
    lapsed = granted(await store.claim("seat:lapsed", "n:1"))
    await world.lapse()
    released = granted(await store.claim("seat:released", "n:1"))
    await store.release("seat:released", "n:1", released.epoch)
    for resource, epoch in (("seat:lapsed", lapsed.epoch), ("seat:released", released.epoch), ("seat:never", 1)):
        for caller in (store, world.store()):
            assert await caller.renew(resource, "n:1", epoch) is False
        assert await store.get(resource) is None


async def what_is_not_held_is_not_read_as_held(world: LeasesWorld) -> None:
    store = world.store()
    granted(await store.claim("seat:lapsed", "n:1"))
    await world.lapse()
    released = granted(await store.claim("seat:released", "n:1"))
    await store.release("seat:released", "n:1", released.epoch)
    for resource in ("seat:lapsed", "seat:released", "seat:never"):
        assert await store.get(resource) is None
    assert await store.list_live("seat") == []
    assert await store.list_owned("n:1", "seat") == []


async def a_departed_owner_cannot_release_its_successor(world: LeasesWorld) -> None:
    store, peer = world.store(), world.store()
    first = granted(await store.claim("seat:a", "n:1"))
    await world.lapse()
    second = granted(await peer.claim("seat:a", "m:1"))
    assert await store.release("seat:a", "n:1", first.epoch) is False
    assert await store.renew("seat:a", "n:1", first.epoch) is False
    assert await peer.get("seat:a") == second


async def a_release_frees_at_once_and_only_once(world: LeasesWorld) -> None:
    store, peer = world.store(), world.store()
    lease = granted(await store.claim("seat:a", "n:1"))
    assert await store.release("seat:a", "n:1", lease.epoch) is True
    assert await store.list_owned("n:1", "seat") == []
    assert granted(await peer.claim("seat:a", "m:1")).epoch == lease.epoch + 1
    assert await store.release("seat:a", "n:1", lease.epoch) is False


async def a_class_that_is_none_is_an_error(world: LeasesWorld) -> None:
    store = world.store()
    for cls in ("", "seat:", "se.at", "*", "Seat"):
        await raises(Misuse, lambda cls=cls: store.list_live(cls))
        await raises(Misuse, lambda cls=cls: store.list_owned("n:1", cls))
        await raises(Misuse, lambda cls=cls: store.hints("n", cls))


async def of_many_claimants_exactly_one_wins(world: LeasesWorld) -> None:
    stores = [world.store() for _ in range(32)]

    async def definite(number: int) -> ClaimResult:
        while True:
            with suppress(Unavailable):
                return await stores[number].claim("seat:a", f"n{number}:1")

    results = await asyncio.gather(*(definite(number) for number in range(32)))
    winners = [result.lease for result in results if isinstance(result, Granted)]
    assert [lease.epoch for lease in winners] == [1]
    found = await stores[0].get("seat:a")
    assert found is not None and found.owner == winners[0].owner


async def an_unreachable_store_is_never_an_answer(world: LeasesWorld) -> None:
    leases, epochs = world.faulty(world.leases), world.faulty(world.epochs)
    store = world.store(leases=leases, epochs=epochs)
    lease = granted(await store.claim("seat:a", "n:1"))
    leases.cut()
    epochs.cut()
    for verb in _verbs(store, lease.epoch):
        await raises(Unavailable, verb)
    leases.heal()
    epochs.heal()
    assert await store.renew("seat:a", "n:1", lease.epoch) is True


def _verbs(store: LeaseStore, epoch: int) -> Sequence[Callable[[], Awaitable[object]]]:
    return (
        lambda: store.claim("seat:a", "n:1"),
        lambda: store.claim("seat:b", "n:1", gated=True),
        lambda: store.renew("seat:a", "n:1", epoch),
        lambda: store.get("seat:a"),
        lambda: store.list_owned("n:1", "seat"),
        lambda: store.list_live("seat"),
        lambda: store.hints("n", "seat"),
        store.protocol_floor,
        lambda: store.release("seat:b", "n:1", epoch),
    )


async def raises(error: type[BaseException], call: Callable[[], Awaitable[object]]) -> None:
    """Check that a call raises, and answers nothing."""
    try:
        answer = await call()
    except error:
        return
    raise AssertionError(f"expected {error.__name__}, got {answer!r}")
