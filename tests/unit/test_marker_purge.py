"""The markers of removed records, purged by the maintenance duty: in virtual time, at a broker that can fail."""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, cast

import pytest
from mailbox_rig import Office

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.markers import AT_ONCE, purge_all
from crewlet.adapters.nats.translate import ApiError, PurgeAnswer, StoredMessage
from crewlet.duties.frame import Duties
from crewlet.duties.maintenance import Maintenance
from crewlet.kit.beats import Beats
from crewlet.ports.cells import BucketSpec
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import FaultyCells
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

TIMEOUT_S = 1.5
LEASE_TTL_S = 45.0


class Broker:
    """Holds markers, by subject. `fates` says what becomes of the requests: whatever it yields, one each.

    Attributes:
        answer_s: how long an answer takes.
    """

    def __init__(self, count: int, clock: Clock) -> None:
        self.left = {f"$KV.b.seat.{number:05}": number + 1 for number in range(count)}
        self.fates: deque[Exception | str] = deque()
        self.checks: deque[Unavailable | None] = deque()
        self.answer_s = 0.0
        self.asked = 0
        self._clock = clock

    @property
    def markers(self) -> Sequence[StoredMessage]:
        at = datetime(2030, 1, 1, tzinfo=UTC)
        return [StoredMessage(subject, seq, at) for subject, seq in sorted(self.left.items())]

    @property
    def lane(self) -> Lane:
        return cast("Lane", self)

    async def api(self, verb: str, body: Mapping[str, Any], kind: type, *, timeout_s: float) -> PurgeAnswer:
        assert (verb, kind, timeout_s) == ("STREAM.PURGE.KV_b", PurgeAnswer, TIMEOUT_S)
        self.asked += 1
        fate = self.fates.popleft() if self.fates else "answered"
        await self._clock.sleep(self.answer_s)
        if isinstance(fate, Exception):
            raise fate
        was_there = self.left.get(body["filter"], body["seq"]) < body["seq"]
        if was_there:
            del self.left[body["filter"]]
        if fate == "answer lost":
            raise Unavailable("nobody answered")
        return PurgeAnswer(success=True, purged=int(was_there))

    async def purge(self, turned: Callable[[], None] = lambda: None) -> int:
        return await purge_all(self.lane, "KV_b", self.markers, turned, check=self.check, timeout_s=TIMEOUT_S)

    async def check(self) -> None:
        """That it is the bucket in which the markers were found, until `checks` says otherwise."""
        if self.checks and (problem := self.checks.popleft()) is not None:
            raise problem


class Marked(FaultyCells):
    """A bucket whose markers a broker holds."""

    broker: Broker

    async def purge_markers(self, older_than_s: float, turned: Callable[[], None]) -> int:
        return await self.broker.purge(turned)


@in_virtual_time
async def test_a_purge_that_takes_minutes_keeps_the_beat_of_its_duty_fresh() -> None:
    office = await Office("ceo").open()
    cells = Marked(await LocalCells(office.clock).open(BucketSpec("b")))
    cells.broker = Broker(100 * AT_ONCE - 1, office.clock)
    cells.broker.answer_s = TIMEOUT_S
    beats = Beats(office.clock.elapsed, LEASE_TTL_S)
    maintenance = Maintenance(office.sweeper(), [cells]).duty()
    duties = Duties([maintenance], None, owner="n1:1", may_work=True, clock=office.clock, beats=beats)
    duties.start()
    lags: list[float] = []

    def is_over() -> bool:
        worst = beats.worst()
        lags.append(worst.seconds if worst is not None else 0.0)
        return duties.last("maintenance") is not None

    began = office.clock.elapsed()
    await until(is_over, within_s=400, step_s=0.1)
    assert office.clock.elapsed() - began > 3 * LEASE_TTL_S
    assert max(lags) <= 2 * TIMEOUT_S
    last = duties.last("maintenance")
    assert last is not None and (last.outcome, last.detail) == (
        "done",
        "1 mailbox registered, 6399 markers purged from b",
    )
    await duties.stop()


@in_virtual_time
async def test_so_many_are_asked_for_at_a_time_and_each_batch_is_told_of() -> None:
    clock = VirtualClock()
    broker = Broker(2 * AT_ONCE + 1, clock)
    broker.answer_s = 1.0
    began, turns = clock.elapsed(), list[float]()
    assert await broker.purge(lambda: turns.append(clock.elapsed() - began)) == 2 * AT_ONCE + 1
    assert turns == pytest.approx([1.0, 2.0, 3.0])
    assert broker.left == {}


@pytest.mark.parametrize(
    ("fate", "gone"),
    [
        (Unavailable("nobody answered"), 0),
        ("answer lost", 1),
        (ApiError(400, 10057, "could not be purged"), 0),
    ],
    ids=["request lost", "answer lost", "refused"],
)
def test_one_that_fails_keeps_no_other_and_is_found_by_the_next_call(fate: Exception | str, gone: int) -> None:
    @in_virtual_time
    async def case() -> None:
        broker = Broker(3 * AT_ONCE, VirtualClock())
        for _ in range(AT_ONCE - 1):
            broker.fates.append("answered")
        broker.fates.append(fate)
        turns = list[None]()
        with pytest.raises(Unavailable, match=f"{3 * AT_ONCE - 1} of {3 * AT_ONCE} purged: "):
            await broker.purge(lambda: turns.append(None))
        assert len(turns) == 3 and len(broker.left) == 1 - gone
        assert await broker.purge() == 1 - gone
        assert broker.left == {}

    case()


@in_virtual_time
async def test_a_broker_that_is_silent_to_a_whole_batch_is_asked_for_no_other() -> None:
    clock = VirtualClock()
    broker = Broker(50 * AT_ONCE, clock)
    broker.answer_s = TIMEOUT_S
    broker.fates.extend(["answered"] * AT_ONCE + [Unavailable("nobody answered")] * AT_ONCE)
    began = clock.elapsed()
    with pytest.raises(Unavailable, match=f"{AT_ONCE} of {50 * AT_ONCE} purged: nobody answered"):
        await broker.purge()
    assert broker.asked == 2 * AT_ONCE
    assert clock.elapsed() - began == pytest.approx(2 * TIMEOUT_S)
    assert await broker.purge() == 49 * AT_ONCE


@in_virtual_time
async def test_nothing_more_is_purged_where_the_bucket_may_be_another() -> None:
    broker = Broker(3 * AT_ONCE, VirtualClock())
    broker.checks.extend([None, Unavailable("made anew")])
    with pytest.raises(Unavailable, match=f"{AT_ONCE} of {3 * AT_ONCE} purged: made anew"):
        await broker.purge()
    assert broker.asked == AT_ONCE


@in_virtual_time
async def test_a_defect_is_no_silence() -> None:
    broker = Broker(3 * AT_ONCE, VirtualClock())
    broker.fates.append(KeyError("a defect"))
    with pytest.raises(KeyError):
        await broker.purge()


@in_virtual_time
async def test_what_was_purged_meanwhile_or_written_again_is_not_counted() -> None:
    broker = Broker(3, VirtualClock())
    markers = broker.markers
    broker.left.pop(markers[0].subject)
    broker.left[markers[1].subject] = 17
    assert await purge_all(broker.lane, "KV_b", markers, lambda: None, check=broker.check, timeout_s=TIMEOUT_S) == 1
    assert broker.left == {markers[1].subject: 17}
