"""Signs of life, and what the watcher concludes from them."""

import asyncio

import pytest

from crewlet.adapters.system.loopwatch import loop_watched
from crewlet.kit.beats import Beats, cadence_s
from crewlet.supervisor.watchdog import WEDGED, Watchdog


class Hand:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.now += seconds


class Exits:
    """Where the watchdog's way out leads in a test."""

    def __init__(self) -> None:
        self.codes: list[int] = []

    def __call__(self, code: int) -> None:
        self.codes.append(code)


def watchdog(beats: Beats, exits: Exits) -> Watchdog:
    # Its own two timers would end the test run if they were ever due: the threshold is a minute or more.
    return Watchdog(beats.worst, threshold_s=beats.threshold_s, poll_s=0.01, dies_at_thaw=False, leave=exits)


async def until_left(exits: Exits) -> None:
    async with asyncio.timeout(20):
        while not exits.codes:
            await asyncio.sleep(0.01)


@pytest.mark.proves("WD-04")
@pytest.mark.parametrize(("threshold_s", "expected_s"), [(45.0, 1.0), (0.5, 0.1), (0.05, 0.01), (5.0, 1.0), (4.0, 0.8)])
def test_at_least_five_beats_fit_into_the_threshold(threshold_s: float, expected_s: float) -> None:
    assert cadence_s(threshold_s) == pytest.approx(expected_s)
    assert threshold_s / cadence_s(threshold_s) >= 5 - 1e-9


@pytest.mark.proves("WD-01", "WD-03")
async def test_only_a_live_loop_that_has_turned_is_judged() -> None:
    hand, exits = Hand(), Exits()
    beats = Beats(hand, 60.0)
    stopped, live = beats.of("stopped"), beats.of("live")
    beats.of("never started")
    stopped.stamp()
    stopped.stop()
    hand.now += 3600
    assert beats.worst() is None
    with watchdog(beats, exits):
        await asyncio.sleep(0.1)
        assert exits.codes == []
        live.stamp()
        await asyncio.sleep(0.1)
        assert exits.codes == []
        hand.now += 61
        await until_left(exits)
    assert exits.codes == [WEDGED]


@pytest.mark.proves("WD-06")
def test_the_lag_is_that_of_the_worst_live_loop() -> None:
    hand = Hand()
    beats = Beats(hand, 45.0)
    beats.of("a").stamp()
    hand.now += 5
    beats.of("b").stamp()
    hand.now += 2
    worst = beats.worst()
    assert worst is not None and (worst.name, worst.seconds) == ("a", 7)
    beats.of("a").stop()
    worst = beats.worst()
    assert worst is not None and (worst.name, worst.seconds) == ("b", 2)


def test_a_pass_that_waits_is_as_old_as_what_it_waits_for() -> None:
    hand = Hand()
    beats = Beats(hand, 45.0)
    beats.of("heartbeat").stamp(hand.now - 30)
    worst = beats.worst()
    assert worst is not None and worst.seconds == 30


def test_a_loop_that_is_two_beats_late_is_shown_as_stalled_and_one_that_has_ended_is_not() -> None:
    hand = Hand()
    beats = Beats(hand, 45.0)
    heartbeat, sweep = beats.of("heartbeat"), beats.of("sweep")
    assert beats.stall_s() is None
    heartbeat.stamp()
    sweep.stamp()
    hand.now += 2.0
    assert beats.stall_s() is None
    hand.now += 10.0
    sweep.stamp()
    assert beats.stall_s() == 12.0
    heartbeat.stop()
    assert beats.stall_s() is None


@pytest.mark.proves("WD-06")
async def test_a_disarmed_watchdog_lets_a_stop_take_as_long_as_it_needs() -> None:
    hand, exits = Hand(), Exits()
    beats = Beats(hand, 60.0)
    beats.of("heartbeat").stamp()
    dog = watchdog(beats, exits)
    dog.arm()
    dog.disarm()
    hand.now += 3600
    await asyncio.sleep(0.1)
    assert exits.codes == []
    dog.disarm()


async def test_a_blocked_loop_is_shown_while_it_is_blocked(capfd: pytest.CaptureFixture[str]) -> None:
    import threading
    import time

    shown = threading.Event()
    with loop_watched(0.3):
        await asyncio.sleep(0.05)

        def hold_the_loop_up() -> None:
            until, text = time.monotonic() + 20, ""
            while time.monotonic() < until and not shown.is_set():
                time.sleep(0.05)
                text += capfd.readouterr().out
                if "hold_the_loop_up" in text.partition("loop_blocked")[2]:
                    shown.set()

        hold_the_loop_up()
    assert shown.is_set()
