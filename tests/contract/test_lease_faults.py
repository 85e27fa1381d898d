"""Leases on one real server through wires that delay, lose and cut: what must survive, and the history of it."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest
from lease_fault_worlds import Fleet, Node, answer_of, at_last, fleet_on, granted_at_last, until

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import State
from crewlet.adapters.system.clock import SystemClock
from crewlet.ports.cells import BucketSpec
from crewlet.seats.dutyleases import LONGEST_S, DutyLeases
from crewlet.testing.brokers import Server
from crewlet.testing.clocks import SteppedClock
from crewlet.testing.contracts import leasefaults, leasegate, leases
from crewlet.testing.contracts.leaseworld import LeasesWorld, abandon, granted, refused
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = pytest.mark.real

Which = Callable[[Frame], bool]


def record_of(*, epoch: int) -> Which:
    """Writes of a lease's record at an epoch, 0 being a claim's first; not those that give it back."""
    said = b'"epoch":%d,' % epoch
    return lambda frame: frame.body is not None and said in frame.body and b'"released":false' in frame.body


def is_counter(frame: Frame) -> bool:
    return frame.is_write and b"epochs_" in frame.head


STEPS = [
    pytest.param(record_of(epoch=0), 1, id="claiming record"),
    pytest.param(is_counter, 2, id="counter"),
    pytest.param(record_of(epoch=1), 2, id="token"),
]


@pytest.mark.proves("PC-08")
@pytest.mark.parametrize(("step", "next_epoch"), STEPS)
async def test_a_claims_write_that_timed_out_and_was_applied_after_the_reconnection_wins_nothing(
    server: Server, step: Which, next_epoch: int
) -> None:
    async with fleet_on(server.urls) as fleet:
        link = await fleet.link()
        node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
        link.hold_requests(step)
        assert await answer_of(node.claim("seat:a")) is None
        assert link.held
        await reconnected(node, link)
        await link.deliver_held()
        assert granted(await peer.claim("seat:a")).epoch == next_epoch
        refused(await node.claim("seat:a"), "held")


@pytest.mark.parametrize(("step", "next_epoch"), STEPS)
async def test_a_claims_write_that_is_applied_twice_changes_nothing(
    server: Server, step: Which, next_epoch: int
) -> None:
    async with fleet_on(server.urls) as fleet:
        link = await fleet.link()
        node = await fleet.node("n:1", link=link)
        link.hold_requests(step, count=1)
        lease = granted(await node.claim("seat:a"))
        assert lease.epoch == 1 and link.held
        before = await node.leases.list(), await node.epochs.list()
        await link.deliver_held()
        assert (await node.leases.list(), await node.epochs.list()) == before
        assert await node.renew(lease)


async def test_a_renewal_that_timed_out_and_was_applied_after_the_reconnection_renews_no_ended_tenure(
    server: Server,
) -> None:
    async with fleet_on(server.urls, ttl_s=6.0) as fleet:  # time for a call that nobody answers, and one more
        link = await fleet.link()
        node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
        clock = SystemClock()
        kept, released, lapsed = [granted(await node.claim(f"seat:{name}")) for name in ("kept", "released", "lapsed")]
        claimed_at = clock.elapsed()
        link.hold_requests(record_of(epoch=1))
        assert await asyncio.gather(*(answer_of(node.renew(lease)) for lease in (kept, released, lapsed))) == [None] * 3
        await reconnected(node, link)
        assert await node.renew(kept)
        assert await node.release(released)
        before = await node.leases.read("seat.kept"), await node.leases.read("seat.released")
        held, link.held = link.held, [frame for frame in link.held if b"lapsed" not in frame.head]
        await link.deliver_held()
        assert (await node.leases.read("seat.kept"), await node.leases.read("seat.released")) == before
        assert granted(await peer.claim("seat:released")).epoch == 2
        # The store counts from when it took the claim, which is after it was asked for.
        await until(lambda: clock.elapsed() > claimed_at + node.store.ttl_s)
        link.held = [frame for frame in held if b"lapsed" in frame.head]
        await link.deliver_held()
        assert await node.renew(lapsed) is False
        assert (await granted_at_last(lambda: peer.claim("seat:lapsed"))).epoch == 2


async def test_nothing_asked_while_the_connection_was_down_is_sent_over_the_next(server: Server) -> None:
    async with fleet_on(server.urls) as fleet:
        link = await fleet.link()
        node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
        lease = granted(await node.claim("seat:a"))
        sent: list[bytes] = []

        def note(frame: Frame) -> bytes:
            sent.append(frame.head)
            return frame.raw

        link.refuse()
        await until(lambda: not node.connection.is_connected)
        asked = (node.renew(lease), node.claim("seat:b"), node.store.release("seat:c", "n:1", 1))
        assert await asyncio.gather(*map(answer_of, asked)) == [None] * 3
        link.on_request = note
        await link.accept()
        await until(lambda: node.connection.is_connected)
        await node.leases.mark()
        assert sent
        assert not any(head.startswith(b"HPUB $KV.") for head in sent), "the client kept a write and sent it late"
        assert granted(await peer.claim("seat:b")).epoch == 1


async def test_connection_callbacks_that_raise_cost_no_lease(server: Server) -> None:
    async with fleet_on(server.urls, ttl_s=6.0) as fleet:
        link = await fleet.link()
        node, peer = await fleet.node("n:1", link=link), await fleet.node("m:1")
        heard: list[State] = []

        def broken(state: State) -> None:
            heard.append(state)
            raise RuntimeError(state)

        node.connection.listen(broken)
        lease = granted(await node.claim("seat:a", gated=True))
        for cuts in (1, 2):
            link.cut()
            await until(lambda cuts=cuts: heard.count("connected") == cuts)
            assert await at_last(lambda: node.renew(lease), lambda _: True) is True
        refused(await peer.claim("seat:a"), "held")
        assert (await granted_at_last(lambda: node.claim("seat:b", gated=True))).epoch == 1


@pytest.mark.proves("PC-09")
async def test_sixty_four_claims_each_abandoned_at_another_instant_leave_a_seat_that_can_be_claimed(
    server: Server,
) -> None:
    async with fleet_on(server.urls, ttl_s=20.0) as fleet:
        node, peer = await fleet.node("n:1"), await fleet.node("m:1")
        asked_at = asyncio.get_running_loop().time()
        granted(await node.claim("seat:probe", gated=True))
        twice_s = 2 * (asyncio.get_running_loop().time() - asked_at)
        for place in range(64):
            resource = f"seat:s{place}"
            epoch = await abandoned(node, resource, twice_s * place / 64)
            again = granted(await node.claim(resource))
            assert epoch is None or again.epoch == epoch
            refused(await peer.claim(resource), "held")


async def abandoned(node: Node, resource: str, after_s: float) -> int | None:
    call = asyncio.create_task(node.claim(resource))
    await asyncio.sleep(after_s)
    answer = await abandon(call)
    return None if answer is None else granted(answer).epoch


SHIFTED = [
    leases.a_former_owner_claims_a_lapsed_lease_at_a_higher_epoch,
    leases.a_lapsed_lease_is_not_held_by_its_release,
    leases.an_owner_that_claims_again_keeps_its_epoch_and_moves_its_deadline,
    leases.each_tenure_was_acquired_later_than_the_one_before,
    leases.a_shorter_ttl_is_honoured_though_the_bucket_keeps_longer,
    leases.of_many_claimants_exactly_one_wins,
    leases.a_renewal_moves_the_deadline_and_not_the_time_of_acquisition,
    leasefaults.a_renewal_that_lands_after_the_lapse_counts_for_nothing,
    leasefaults.a_renewal_whose_answer_was_lost_is_known_at_the_next_call,
    leasegate.the_gate_lifts_with_the_last_lower_lease,
    leasegate.a_lease_written_an_instant_ago_gates,
]


@pytest.mark.parametrize("shift_s", [10, -10])
async def test_leases_do_not_care_how_far_the_stores_clock_is_off_nor_for_a_stepped_wall_clock(
    server: Server, shift_s: int
) -> None:
    async with AsyncExitStack() as stack:
        fleet = Fleet(server.urls, 1, 2.0, stack)
        link = await fleet.link()
        link.shift_store_clock(shift_s)
        clock = SteppedClock()
        connection = await fleet.connect(link.url, clock=clock)
        checks = [
            (check, await shifted_world(fleet, NatsCells(connection, entropy=fleet.entropy), clock, n))
            for n, check in enumerate(SHIFTED)
        ]
        mark = await checks[0][1].leases.mark()
        assert abs((mark.store_now - clock.now()).total_seconds() - shift_s) < 5, "the store's clock is not shifted"
        stepping = asyncio.create_task(step_to_and_fro(clock))
        try:
            await asyncio.gather(*(check(world) for check, world in checks))
        finally:
            stepping.cancel()
            for _, world in checks:
                await world.stop()


async def shifted_world(fleet: Fleet, cells: NatsCells, clock: SteppedClock, place: int) -> LeasesWorld:
    base = f"{fleet.place}_{place}"
    return LeasesWorld(
        leases=await cells.open(BucketSpec(f"leases_{base}", max_age_s=fleet.ttl_s)),
        epochs=await cells.open(BucketSpec(f"epochs_{base}")),
        duties=await cells.open(BucketSpec(f"duties_{base}", max_age_s=LONGEST_S, allows_entry_ttl=True)),
        clock=clock,
        entropy=fleet.entropy,
        sleep=clock.sleep,
    )


async def step_to_and_fro(clock: SteppedClock) -> None:
    while True:
        for seconds in (3600, -3600, -3600, 3600):
            clock.step(seconds)
            await asyncio.sleep(0.05)


@pytest.mark.proves("DU-01", "DU-02")
async def test_duties_of_thirty_seconds_to_three_hours_lapse_at_their_own_deadlines_on_the_stores_clock(
    server: Server,
) -> None:
    """The hours pass on the clock that the peer is shown; the server keeps each record for its own time."""
    async with AsyncExitStack() as stack:
        fleet = Fleet(server.urls, 1, 2.0, stack)
        link = await fleet.link()
        holder, peer = [await duties_over(fleet, url) for url in (server.url, link.url)]
        ttls = (30, 270, 2_700, 10_800)
        for ttl_s in ttls:
            granted(await holder.claim(f"d{ttl_s}", "n:1", ttl_s=ttl_s))
        for ttl_s in ttls:
            link.shift_store_now(ttl_s - 20)
            refused(await peer.claim(f"d{ttl_s}", "m:1", ttl_s=30), "held")
            link.shift_store_now(ttl_s + 1)
            assert granted(await peer.claim(f"d{ttl_s}", "m:1", ttl_s=30)).epoch == 2


async def duties_over(fleet: Fleet, url: str) -> DutyLeases:
    clock = SteppedClock()
    connection = await fleet.connect(url, clock=clock)
    cells = NatsCells(connection, entropy=fleet.entropy)
    spec = BucketSpec(f"duties_{fleet.place}", max_age_s=LONGEST_S, allows_entry_ttl=True)
    duties = DutyLeases(await cells.open(spec), await cells.open(fleet.epochs_spec), clock=clock, entropy=fleet.entropy)
    fleet.stack.push_async_callback(duties.stop)
    return duties


async def reconnected(node: Node, link: FaultyLink) -> None:
    """The link is whole again, and the node's next connection over it stands."""
    states: list[State] = []
    node.connection.listen(states.append)
    link.heal()
    link.cut()
    await until(lambda: states[-1:] == ["connected"])
