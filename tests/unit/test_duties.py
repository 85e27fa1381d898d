"""The frame of singleton duties, in virtual time over leases that can fail."""

import asyncio
import gc
import warnings
from collections.abc import Awaitable, Callable

import pytest
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.duties.frame import LAST_TICK_S, Duties, Duty, NotOnDuty, Turned, UnknownDuty
from crewlet.kit.beats import Beats
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.seats.dutyleases import DUTIES_BUCKET, DutyLeases
from crewlet.seats.lease import ClaimResult
from crewlet.seats.leases import EPOCHS_BUCKET
from crewlet.testing.faults import Fault, Faults, FaultyCells
from crewlet.testing.virtual import VirtualClock, in_virtual_time, run, settle

EVERY_S, TTL_S = 100.0, 300.0


class Clock(VirtualClock):
    """A clock that goes on while its process stands still."""

    def jump(self, seconds: float) -> None:
        self._offset_s += seconds


class Freezing(DutyLeases):
    """Leases whose holder stands still when a claim has been granted."""

    def __init__(self, fleet: "Fleet") -> None:
        super().__init__(fleet.cells, fleet.epochs, clock=fleet.clock, entropy=SystemEntropy())
        self._fleet = fleet

    async def claim(self, duty: str, owner: str, *, ttl_s: float) -> ClaimResult:
        granted = await super().claim(duty, owner, ttl_s=ttl_s)
        self._fleet.clock.jump(self._fleet.stands_still_s)
        return granted


class Fleet:
    """Nodes that share the leases of one duty. `ticks` says who ticked, at which second."""

    def __init__(self) -> None:
        self.clock = Clock(offset_s=0.0)
        self.stands_still_s = 0.0
        self.ticks: list[tuple[str, int]] = []
        self.during: Callable[[], Awaitable[str]] | None = None
        self.turned: Turned = lambda: None
        self.is_wanted = True

    async def open(self) -> "Fleet":
        store = LocalCells(self.clock)
        self.cells = FaultyCells(await store.open(DUTIES_BUCKET), sleep=self.clock.sleep)
        self.epochs = await store.open(EPOCHS_BUCKET)
        return self

    def leases(self) -> DutyLeases:
        return Freezing(self)

    def node(self, name: str, *, is_alone: bool = False, may_work: bool = True, beats: Beats | None = None) -> Duties:
        async def work(turned: Turned) -> str:
            self.turned = turned
            self.ticks.append((name, round(self.clock.elapsed())))
            return await self.during() if self.during is not None else ""

        duty = Duty("sweep", "sweeps", EVERY_S, TTL_S, work, lambda: self.is_wanted)
        leases = None if is_alone else self.leases()
        return Duties([duty], leases, owner=f"{name}:1", may_work=may_work, clock=self.clock, beats=beats)


@in_virtual_time
async def test_of_two_nodes_one_does_the_duty_and_goes_on_doing_it() -> None:
    fleet = await Fleet().open()
    one, two = fleet.node("one"), fleet.node("two")
    one.start()
    await settle()
    two.start()
    await asyncio.sleep(3 * EVERY_S + 1)
    assert fleet.ticks == [("one", 0), ("one", 100), ("one", 200), ("one", 300)]
    last = two.last("sweep")
    assert last is not None and (last.outcome, last.detail) == ("held", "one:1")
    await asyncio.gather(one.stop(), two.stop())


@in_virtual_time
async def test_a_duty_whose_holder_died_is_done_by_a_peer_once_its_lease_has_lapsed() -> None:
    fleet = await Fleet().open()
    one, two = fleet.node("one"), fleet.node("two")
    assert (await one.run("sweep", wait_s=5)) is not None
    two.start()
    await asyncio.sleep(TTL_S + 1)
    assert fleet.ticks == [("one", 0), ("two", 300)]
    await two.stop()


@pytest.mark.proves("TB-04")
@in_virtual_time
async def test_a_graceful_stop_lets_the_last_tick_end_and_gives_the_duty_back_after_it() -> None:
    fleet = await Fleet().open()
    one, two = fleet.node("one"), fleet.node("two")

    async def slowly() -> str:
        await asyncio.sleep(5)
        fleet.ticks.append(("ended", round(fleet.clock.elapsed())))
        return "slow"

    fleet.during = slowly
    one.start()
    await settle()
    stopping = asyncio.create_task(one.stop())
    await asyncio.sleep(1)
    assert await fleet.leases().get("sweep") is not None
    with capture_logs() as logs:
        await stopping
    assert [line["event"] for line in logs] == ["duty_ticked", "duty_released"]
    assert fleet.ticks == [("one", 0), ("ended", 5)]
    assert await fleet.leases().get("sweep") is None
    fleet.during = None
    tick = await two.run("sweep", wait_s=5)
    assert tick is not None and tick.outcome == "done"
    await asyncio.sleep(3 * EVERY_S)
    assert [name for name, _ in fleet.ticks].count("one") == 1
    with pytest.raises(NotOnDuty):
        await one.run("sweep", wait_s=5)


@in_virtual_time
async def test_a_tick_that_was_still_waiting_for_its_turn_at_the_stop_is_not_done() -> None:
    fleet = await Fleet().open()
    one = fleet.node("one")

    async def slowly() -> str:
        await asyncio.sleep(5)
        return ""

    fleet.during = slowly
    first, second = (asyncio.create_task(one.run("sweep", wait_s=60)) for _ in range(2))
    await asyncio.sleep(1)
    await one.stop()
    tick = await first
    assert tick is not None and tick.outcome == "done"
    with pytest.raises(NotOnDuty):
        await second
    assert len(fleet.ticks) == 1


@in_virtual_time
async def test_a_last_tick_that_does_not_end_is_cut_short_and_the_duty_given_back() -> None:
    fleet = await Fleet().open()
    one = fleet.node("one")

    async def never() -> str:
        await asyncio.Event().wait()
        return ""

    fleet.during = never
    one.start()
    await settle()
    with capture_logs() as logs:
        await one.stop()
    assert fleet.clock.elapsed() == pytest.approx(LAST_TICK_S)
    assert [line["event"] for line in logs] == ["duty_ticks_cut_short", "duty_tick_failed", "duty_released"]
    assert await fleet.leases().get("sweep") is None


def test_a_process_that_ends_at_any_moment_of_a_tick_leaves_nothing_that_was_never_begun() -> None:
    async def ends_after(turns: int) -> None:
        fleet = await Fleet().open()
        fleet.node("a").start()
        await settle(turns)

    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        for turns in range(20):
            run(ends_after(turns))
        gc.collect()
    assert [str(each.message) for each in warned] == []


@pytest.mark.proves("TB-04")
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED])
def test_a_claim_that_is_not_answered_skips_the_tick(fault: Fault) -> None:
    @in_virtual_time
    async def check() -> None:
        fleet = await Fleet().open()
        one = fleet.node("one")
        fleet.cells.next("create", fault)
        with capture_logs() as logs:
            one.start()
            await asyncio.sleep(EVERY_S - 1)
            assert fleet.ticks == []
        assert "duty_claim_failed" in [line["event"] for line in logs]
        last = one.last("sweep")
        assert last is not None and last.outcome == "unclaimed"
        await asyncio.sleep(EVERY_S)
        assert [name for name, _ in fleet.ticks] == ["one"]
        await one.stop()

    check()


@pytest.mark.proves("TB-04")
@in_virtual_time
async def test_a_claim_that_breaks_in_any_way_skips_the_tick_and_not_the_next() -> None:
    fleet = await Fleet().open()
    leases = fleet.leases()
    one = fleet.node("one")
    one._leases = leases  # pyright: ignore[reportPrivateUsage]
    claim = leases.claim

    async def broken(duty: str, owner: str, *, ttl_s: float) -> None:
        raise RuntimeError("a defect")

    setattr(leases, "claim", broken)  # noqa: B010
    one.start()
    await asyncio.sleep(EVERY_S - 1)
    assert fleet.ticks == []
    setattr(leases, "claim", claim)  # noqa: B010
    await asyncio.sleep(2)
    assert fleet.ticks == [("one", 100)]
    await one.stop()


@pytest.mark.proves("TB-04")
@in_virtual_time
async def test_a_node_without_peers_does_every_tick_and_asks_nobody() -> None:
    fleet = await Fleet().open()
    alone = fleet.node("alone", is_alone=True)
    alone.start()
    await asyncio.sleep(2 * EVERY_S + 1)
    assert fleet.ticks == [("alone", 0), ("alone", 100), ("alone", 200)]
    await alone.stop()
    assert fleet.cells.calls == []


@in_virtual_time
async def test_a_duty_that_has_nothing_to_do_is_not_claimed_until_it_has() -> None:
    fleet = await Fleet().open()
    fleet.is_wanted = False
    one = fleet.node("one")
    one.start()
    await asyncio.sleep(2 * EVERY_S + 1)
    assert (fleet.ticks, fleet.cells.calls) == ([], [])
    fleet.is_wanted = True
    await asyncio.sleep(EVERY_S)
    assert fleet.ticks == [("one", 300)]
    await one.stop()


@in_virtual_time
async def test_a_node_without_the_role_ticks_nothing_and_says_so_when_asked() -> None:
    fleet = await Fleet().open()
    idle = fleet.node("idle", may_work=False)
    idle.start()
    await asyncio.sleep(2 * EVERY_S)
    with pytest.raises(NotOnDuty, match="workers"):
        await idle.run("sweep", wait_s=5)
    with pytest.raises(UnknownDuty, match="sweep"):
        await idle.run("dust", wait_s=5)
    await idle.stop()
    assert (fleet.ticks, fleet.cells.calls) == ([], [])


@pytest.mark.parametrize("problem", [Unavailable("no answer"), RuntimeError("a defect")])
def test_a_tick_that_fails_is_told_and_the_next_one_comes(problem: Exception) -> None:
    @in_virtual_time
    async def check() -> None:
        fleet = await Fleet().open()
        one = fleet.node("one")

        async def fail() -> str:
            raise problem

        fleet.during = fail
        one.start()
        await asyncio.sleep(EVERY_S + 1)
        last = one.last("sweep")
        assert last is not None and last.outcome == "failed" and str(problem) in last.detail
        assert len(fleet.ticks) == 2
        await one.stop()

    check()


@in_virtual_time
async def test_a_tick_ends_before_its_claim_lapses() -> None:
    fleet = await Fleet().open()
    one, two = fleet.node("one"), fleet.node("two")
    ended_at: list[float] = []

    async def too_long() -> str:
        try:
            await asyncio.sleep(10 * TTL_S)
        finally:
            ended_at.append(fleet.clock.elapsed())
        return ""

    fleet.during = too_long
    one.start()
    await asyncio.sleep(TTL_S - 1)
    fleet.during = None
    assert ended_at == []
    two.start()
    await asyncio.sleep(1.5)
    assert ended_at == [TTL_S]
    assert fleet.ticks == [("one", 0), ("one", 300)]
    await asyncio.gather(one.stop(), two.stop())


@in_virtual_time
async def test_whoever_asks_for_a_tick_waits_so_long_and_the_tick_goes_on() -> None:
    fleet = await Fleet().open()
    one = fleet.node("one")

    async def slowly() -> str:
        await asyncio.sleep(20)
        return "slow"

    fleet.during = slowly
    assert await one.run("sweep", wait_s=5) is None
    await asyncio.sleep(20)
    last = one.last("sweep")
    assert last is not None and (last.outcome, last.detail) == ("done", "slow")
    fleet.during = None
    await one.stop()


@pytest.mark.parametrize(("every_s", "ttl_s"), [(100.0, 299.0), (0.0, 300.0), (5.0, 20.0), (3601.0, 3 * 3601.0)])
def test_a_duty_is_claimed_for_three_of_its_ticks_within_what_a_lease_can_be(every_s: float, ttl_s: float) -> None:
    async def work(turned: Turned) -> str:
        del turned
        return ""

    with pytest.raises(Misuse):
        Duty("sweep", "sweeps", every_s, ttl_s, work)


LEASE_TTL_S = 45.0


def lag_s(beats: Beats) -> float:
    worst = beats.worst()
    return 0.0 if worst is None else worst.seconds


@in_virtual_time
async def test_a_duty_beats_every_second_between_its_ticks_and_as_a_long_tick_gets_on() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)

    async def long() -> str:
        for _ in range(8):
            await asyncio.sleep(10)
            fleet.turned()
        return ""

    fleet.during = long
    one = fleet.node("one", beats=beats)
    one.start()
    for _ in range(2 * round(EVERY_S)):
        await asyncio.sleep(1)
        is_ticking = fleet.clock.elapsed() % EVERY_S < 82
        assert lag_s(beats) <= (10.01 if is_ticking else 1.01)
    assert len(fleet.ticks) >= 2
    await one.stop()
    assert beats.worst() is None


@pytest.mark.proves("WD-02")
@in_virtual_time
async def test_a_duty_that_is_blocked_in_a_call_to_the_broker_is_seen_a_lease_ttl_later() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)

    async def blocked() -> str:
        await asyncio.Event().wait()
        return ""

    fleet.during = blocked
    one = fleet.node("one", beats=beats)
    one.start()
    await asyncio.sleep(LEASE_TTL_S - 1)
    assert lag_s(beats) <= LEASE_TTL_S
    await asyncio.sleep(2)
    worst = beats.worst()
    assert worst is not None and worst.name == "sweep duty" and worst.seconds > LEASE_TTL_S
    await one.stop()


@in_virtual_time
async def test_a_store_that_does_not_answer_skips_ticks_and_wedges_no_duty() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)
    for _ in range(9):
        fleet.cells.next("read", Fault.HANGS)
    one = fleet.node("one", beats=beats)
    one.start()
    for _ in range(90):
        await asyncio.sleep(1)
        assert lag_s(beats) <= LEASE_TTL_S / 2
    last = one.last("sweep")
    assert last is not None and last.outcome == "unclaimed"
    fleet.cells.heal()
    await one.stop()


@pytest.mark.proves("WD-01")
@in_virtual_time
async def test_a_duty_whose_loop_ended_is_told_and_not_judged() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)
    sleep, is_broken = fleet.clock.sleep, False

    async def breaks(seconds: float) -> None:
        if is_broken:
            raise RuntimeError("a defect")
        await sleep(seconds)

    fleet.clock.sleep = breaks
    one = fleet.node("one", is_alone=True, beats=beats)
    with capture_logs() as logs:
        one.start()
        await asyncio.sleep(1.5)
        assert beats.worst() is not None
        is_broken = True
        await asyncio.sleep(3600)
    assert beats.worst() is None
    assert [log["duty"] for log in logs if log["event"] == "duty_ended"] == ["sweep"]
    is_broken = False
    await one.stop()


@pytest.mark.proves("WD-03")
@in_virtual_time
async def test_a_duty_of_a_node_without_the_role_never_beats_and_is_never_judged() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)
    idle = fleet.node("idle", may_work=False, beats=beats)
    idle.start()
    await asyncio.sleep(3600)
    assert beats.worst() is None
    await idle.stop()


@in_virtual_time
async def test_a_claim_that_was_slow_to_be_granted_leaves_its_tick_all_the_time_between_two_beats() -> None:
    fleet = await Fleet().open()
    beats = Beats(fleet.clock.elapsed, LEASE_TTL_S)

    async def asks() -> str:
        lags.append(lag_s(beats))
        return ""

    lags: list[float] = []
    fleet.during = asks
    fleet.cells.faults = Faults(delay_s=LEASE_TTL_S / 10)
    one = fleet.node("one", beats=beats)
    one.start()
    await asyncio.sleep(EVERY_S / 2)
    assert lags == [0.0]
    await one.stop()


@in_virtual_time
async def test_a_node_that_stood_still_with_a_claim_until_it_had_lapsed_does_not_tick() -> None:
    fleet = await Fleet().open()
    fleet.stands_still_s = TTL_S
    one = fleet.node("one")
    tick = await one.run("sweep", wait_s=5)
    assert tick is not None and (tick.outcome, fleet.ticks) == ("unclaimed", [])
    fleet.stands_still_s = 0.0
    tick = await one.run("sweep", wait_s=5)
    assert tick is not None and (tick.outcome, fleet.ticks) == ("done", [("one", 300)])
    await one.stop()
