"""Planted bugs: each a small replacement in the real code, which some seed of the simulator must catch.

They prove the simulator, not the code. `python -m crewlet.testing.sim.mutants` searches seeds for each of them.
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from unittest.mock import patch

import msgspec

from crewlet.mail.consuming import Consumer
from crewlet.mail.ledger import Ledger
from crewlet.node.seat import SeatRuntime
from crewlet.ports.cells import Entry
from crewlet.ports.mail import Ack, Defer
from crewlet.seats import admission, allotment, claim, gate, records
from crewlet.seats.admission import Admission
from crewlet.seats.claim import Claims
from crewlet.seats.fence import SeatFence
from crewlet.seats.handoff import Handoff
from crewlet.seats.heartbeat import Heartbeat
from crewlet.seats.host import SeatHost
from crewlet.seats.lapse import LapseTimers
from crewlet.seats.presence import Presence
from crewlet.seats.records import EpochRecord, Found
from crewlet.testing.sim.world import SAFETY, SimOptions, SimReport, simulate
from crewlet.turns import sending
from crewlet.turns.dispatch import SeatDispatch

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

Plant = Callable[[ExitStack], None]

_PLANTS: dict[str, Plant] = {}


def _plant(name: str) -> Callable[[Plant], Plant]:
    def keep(plant: Plant) -> Plant:
        _PLANTS[name] = plant
        return plant

    return keep


def _put(stack: ExitStack, owner: object, attribute: str, replacement: object) -> Any:
    """Replace something for as long as the stack lasts; returns what it was."""
    original = getattr(owner, attribute)
    stack.enter_context(patch.object(owner, attribute, replacement))
    return original


@contextmanager
def planted(name: str) -> Generator[None]:
    """The code with one bug in it."""
    with ExitStack() as stack:
        _PLANTS[name](stack)
        yield


# Leases


@_plant("no give-back on cancel")
def _no_give_back(stack: ExitStack) -> None:
    async def nothing() -> None:
        return

    def give_back(self: Claims, attempt: Any) -> Awaitable[None]:
        if isinstance(sys.exc_info()[1], asyncio.CancelledError):
            return nothing()
        return original(self, attempt)

    original = _put(stack, Claims, "_give_back", give_back)


@_plant("no give-back at all")
def _no_give_back_at_all(stack: ExitStack) -> None:
    async def give_back(self: Claims, attempt: Any) -> None:
        return

    _put(stack, Claims, "_give_back", give_back)


@_plant("renew counted from the reply")
def _renew_from_reply(stack: ExitStack) -> None:
    def renewed(self: Heartbeat, tenure: Any, sent_at: float) -> None:
        original(self, tenure, self._context.clock.elapsed())

    original = _put(stack, Heartbeat, "_renewed", renewed)


@_plant("epochs forgotten")
def _epochs_forgotten(stack: ExitStack) -> None:
    def decode(entry: Entry | None) -> EpochRecord:
        return EpochRecord()

    _put(stack, claim, "decode_epoch", decode)


@_plant("lapse judged early")
def _lapse_judged_early(stack: ExitStack) -> None:
    def judge(entry: Entry, store_now: datetime, age_s: float) -> Found:
        return original(entry, store_now, age_s * 0.7)

    original = records.judge
    for module in ("crewlet.seats.table.judge", "crewlet.seats.records.judge"):
        stack.enter_context(patch(module, judge))


@_plant("gate blind to presence")
def _gate_blind(stack: ExitStack) -> None:
    _put(stack, gate, "_COUNTED", (records.prefix_of("seat"),))


@_plant("own lapsed tenure taken up again")
def _taken_up_again(stack: ExitStack) -> None:
    def is_over(self: Any, key: str, owner: str, epoch: int) -> bool:
        return False

    stack.enter_context(patch("crewlet.seats.leases.LeaseStore._is_over", is_over))


# Ownership


@_plant("release before detach")
def _release_before_detach(stack: ExitStack) -> None:
    async def take_down(self: Handoff, tenure: Any, leaving: Any) -> bool:
        await self._give_back(tenure)
        return await original(self, tenure, leaving)

    original = _put(stack, Handoff, "_take_down", take_down)


@_plant("lease kept at a release")
def _lease_kept(stack: ExitStack) -> None:
    async def give_back(self: Handoff, tenure: Any) -> None:
        return

    _put(stack, Handoff, "_give_back", give_back)


@_plant("membership instead of freshness")
def _membership(stack: ExitStack) -> None:
    def is_fresh(now: float, proven_at: float, window_s: float) -> bool:
        return True

    _put(stack, admission, "is_fresh", is_fresh)


@_plant("fence on membership")
def _fence_on_membership(stack: ExitStack) -> None:
    class MembershipFence:
        def __init__(self, host: SeatHost, fence: SeatFence, handle: str) -> None:
            self.term, self.good_until = fence.term, fence.good_until
            self._host, self._handle = host, handle

        def check(self) -> None:
            assert self._host._context.tenures.get(self._handle) is not None or True

        def on_close(self, call: Callable[[str], None]) -> Callable[[], None]:
            return lambda: None

    def fence(self: SeatHost, handle: str) -> Any:
        real = original(self, handle)
        return None if real is None else MembershipFence(self, real, handle)

    original = _put(stack, SeatHost, "fence", fence)


@_plant("no lapse timer")
def _no_lapse_timer(stack: ExitStack) -> None:
    def watch(self: LapseTimers, tenure: Any) -> None:
        return

    _put(stack, LapseTimers, "watch", watch)


@_plant("fence without a clock")
def _fence_without_clock(stack: ExitStack) -> None:
    def notice(self: SeatFence) -> None:
        return

    _put(stack, SeatFence, "_notice_lapse", notice)


@_plant("stuck seat not charged")
def _stuck_not_charged(stack: ExitStack) -> None:
    def room(plan: Any, running: Any, stuck: Any = ()) -> Any:
        return original(plan, running, ())

    original = _put(stack, allotment, "room", room)


@_plant("no bound by the share")
def _no_share(stack: ExitStack) -> None:
    def room(plan: Any, running: Any, stuck: Any = ()) -> Any:
        return {placement: count + 1 for placement, count in original(plan, running, stuck).items()}

    original = _put(stack, allotment, "room", room)


@_plant("presence kept at a drain")
def _presence_kept(stack: ExitStack) -> None:
    async def give_up(self: Presence) -> None:
        return

    _put(stack, Presence, "give_up", give_up)


@_plant("acquire failure not taken down")
def _not_taken_down(stack: ExitStack) -> None:
    async def establish(self: Handoff, tenure: Any) -> bool:
        try:
            await self._context.hooks.on_acquire(tenure.term, tenure.good_until)
        except Exception:  # noqa: BLE001 -- the bug
            return False
        return await original(self, tenure)

    original = _put(stack, Handoff, "_establish", establish)


# Admission


@_plant("deaf after deferral")
def _deaf(stack: ExitStack) -> None:
    def note(self: Admission) -> None:
        return

    _put(stack, Admission, "note_deferral", note)


@_plant("never admitted again")
def _never_again(stack: ExitStack) -> None:
    def renew(self: Admission, *, is_busy: bool) -> bool:
        original(self, is_busy=is_busy)
        return False

    original = _put(stack, Admission, "renew", renew)


@_plant("renewals not told to the inbox")
def _not_told(stack: ExitStack) -> None:
    def on_renewed(self: SeatRuntime, term: Any, good_until: float) -> None:
        return

    _put(stack, SeatRuntime, "on_renewed", on_renewed)


@_plant("starts without asking")
def _starts_without_asking(stack: ExitStack) -> None:
    def may_start(self: SeatHost, handle: str) -> int | None:
        tenure = self._context.tenures.get(handle)
        return None if tenure is None else tenure.term.epoch

    _put(stack, SeatHost, "may_start", may_start)


# Turns and mail


@_plant("ack before ledger")
def _ack_before_ledger(stack: ExitStack) -> None:
    kept: list[asyncio.Task[None]] = []

    async def complete(self: SeatDispatch, *args: Any, **kwargs: Any) -> None:
        async def later() -> None:
            await self._clock.sleep(0.05)
            await original(self, *args, **kwargs)

        kept.append(asyncio.get_running_loop().create_task(later()))

    original = _put(stack, SeatDispatch, "_complete", complete)


@_plant("republish on fence")
def _republish(stack: ExitStack) -> None:
    async def turn(self: SeatDispatch, run: Any, mail: Any) -> Any:
        outcome = await original(self, run, mail)
        if isinstance(outcome, Defer):
            for event in mail.events:
                await self._outbox.post(msgspec.structs.replace(event, id=self._entropy.uuid()))
        return outcome

    original = _put(stack, SeatDispatch, "_turn", turn)


@_plant("ledger not read")
def _ledger_not_read(stack: ExitStack) -> None:
    async def finished(self: Ledger, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return {}

    _put(stack, Ledger, "finished", finished)


@_plant("ledger not written")
def _ledger_not_written(stack: ExitStack) -> None:
    async def complete(self: SeatDispatch, *args: Any, **kwargs: Any) -> None:
        return

    _put(stack, SeatDispatch, "_complete", complete)


@_plant("broken turn acked")
def _broken_acked(stack: ExitStack) -> None:
    async def broke(self: SeatDispatch, run: Any, work: Any, reason: str) -> Any:
        await original(self, run, work, reason)
        return Ack()

    original = _put(stack, SeatDispatch, "_broke", broke)


@_plant("mail under a fresh id")
def _fresh_id(stack: ExitStack) -> None:
    count = iter(range(1_000_000))

    def fresh(handle: str, work: str, recipient: str, ordinal: int) -> str:
        return f"{original(handle, work, recipient, ordinal)}-{next(count)}"

    original = _put(stack, sending, "outgoing_id", fresh)


@_plant("fence not checked before sending")
def _send_unfenced(stack: ExitStack) -> None:
    class Open:
        def __init__(self, fence: Any) -> None:
            self.term = fence.term

        def check(self) -> None:
            return

    def init(self: Any, *, fence: Any, **kwargs: Any) -> None:
        original(self, fence=Open(fence), **kwargs)

    original = _put(stack, sending.TurnMail, "__init__", init)


@_plant("quiesce forgotten at a deferral")
def _no_quiesce(stack: ExitStack) -> None:
    async def answer(self: Consumer, partition: Any, handling: Any) -> Any:
        was = self._is_quiesced
        outcome = await original(self, partition, handling)
        self._is_quiesced = was
        return outcome

    original = _put(stack, Consumer, "_answer", answer)


@dataclass(frozen=True, slots=True)
class Catch:
    """Where a planted bug is caught.

    Attributes:
        options: the simulation.
        code: its exit code.
        promise: what its finding begins with.
    """

    options: SimOptions
    code: int = SAFETY
    promise: str = ""


def names() -> Sequence[str]:
    """Every planted bug."""
    return tuple(_PLANTS)


def hunt(name: str, options: SimOptions, seeds: range) -> SimReport | None:
    """The first of these seeds that catches a planted bug."""
    with planted(name):
        for seed in seeds:
            report = simulate(replace(options, seed=seed))
            if report.code:
                return report
    return None


def main(arguments: Sequence[str] | None = None) -> int:
    """Hunt each planted bug; 1 when one was not caught."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="which; all unless named")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to try for each")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--seats", type=int, default=6)
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument("--faults", default=None)
    asked = parser.parse_args(arguments)
    faults = tuple(asked.faults.split(",")) if asked.faults else None
    options = SimOptions(0, nodes=asked.nodes, seats=asked.seats, minutes=asked.minutes, faults=faults)
    missed = 0
    for name in asked.names or names():
        report = hunt(name, options, range(asked.first, asked.first + asked.seeds))
        missed += report is None
        text = "not caught" if report is None else f"seed {report.options.seed}: {report.code} {report.finding}"
        print(f"{name:<36} {text}"[:230], flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
