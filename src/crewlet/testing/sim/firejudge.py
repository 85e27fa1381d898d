"""Schedules, judged: as a node decides on an instant, and by what the store and the broker then have of it.

A node decides by its document, its clock and the pauses, where it could read them. No mail goes without a claim of its
instant, no end is taken back, none is told that was not so, and no instant is passed by in silence.
"""

import asyncio
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from crewlet.company.instants import Schedule
from crewlet.company.model import Company
from crewlet.duties.fires import FIRES_BUCKET, Fire, Overtaken, Progress, label, mail_id
from crewlet.duties.firing import PAUSES_UNREAD
from crewlet.duties.scheduling import TTL_S
from crewlet.mail.envelope import Envelope
from crewlet.testing.sim.loop import Process
from crewlet.testing.sim.pausejudge import PauseJudge
from crewlet.testing.virtual import EPOCH

FIRES = FIRES_BUCKET.name

_TICK_S = 1.1 * TTL_S
"""A tick is cut short after its lease's time, so that it knows nothing that is older. Clocks drift."""


class FireJudge:
    """Knows what the store has of schedules.

    Args:
        document: what a process has in force, and since when.
        pauses: of the seats.
        fail: called with a promise and how it was broken.
    """

    def __init__(
        self,
        document: Callable[[str], tuple[Company, float] | None],
        pauses: PauseJudge,
        fail: Callable[[str, str], None],
    ) -> None:
        self._document = document
        self._pauses = pauses
        self._fail = fail
        self._sent: set[tuple[str, str]] = set()
        self._progress: dict[str, Progress] = {}
        self._fires: dict[tuple[str, str], Fire] = {}
        self._overtaken: dict[str, list[Overtaken]] = {}
        self._came_late: set[tuple[str, str]] = set()

    def wrote(self, key: str, value: bytes | None) -> None:
        """A record has changed."""
        kind, _, rest = key.partition(".")
        name, _, at = rest.partition(".")
        if kind == "fire" and value is not None:
            self._fire(name, at, msgspec.json.decode(value, type=Fire))
        elif kind == "seen" and value is not None:
            self._advanced(name, msgspec.json.decode(value, type=Progress))
        elif kind == "seen":
            self._progress.pop(name, None)

    def writing(self, process: Process, key: str, value: bytes) -> None:
        """A record is sent; where it is the first of an instant, that is a decision."""
        kind, _, rest = key.partition(".")
        name, _, at = rest.partition(".")
        known = self._document(process.name)
        if kind != "fire" or (name, at) in self._fires or known is None:
            return
        fire, now = msgspec.json.decode(value, type=Fire), asyncio.get_running_loop().time()
        company, adopted_at = known
        if fire.state == "skipped_catchup" or now - max(adopted_at, process.thawed_at) < _TICK_S:
            return
        who, schedule = f"{process.name} claims {at} of {name}", _named(company, name)
        if schedule is None:
            self._fail("P4", f"{who}, which its company has not")
        elif schedule.seat != fire.seat:
            self._fail("P4", f"{who} for {fire.seat}, and its company has it for {schedule.seat}")
        elif schedule.after(fire.instant - timedelta(microseconds=1)) != fire.instant:
            self._fail("P4", f"{who}, and it is due {schedule.rule}")
        elif newer := schedule.newest(fire.instant, EPOCH + timedelta(seconds=now - _TICK_S)):
            self._fail("P4", f"{who}, when {label(newer)} had long been due")
        elif _is_with_pauses_known(fire) and self._pauses.is_paused(fire.seat, for_s=_TICK_S):
            self._fail("P7", f"{who}, and {fire.seat} has long been paused")
        elif fire.state == "skipped_paused" and not self._pauses.was_paused(fire.seat, within_s=_TICK_S):
            self._fail("P4", f"{who} as skipped, and {fire.seat} has long not been paused")

    def sent(self, envelope: Envelope, message_id: str) -> bool:
        """Whether an accepted mail is one of a schedule; it must have been claimed, for that seat."""
        name, instant = envelope.payload.get("schedule"), envelope.payload.get("instant")
        if name is None or instant is None:
            return False
        at = datetime.fromisoformat(str(instant))
        if not message_id == envelope.id == mail_id(str(name), at):
            self._fail("P4", f"{label(at)} of {name} was sent as {message_id}")
        self._sent.add((str(name), label(at)))
        fire = self._fires.get((str(name), label(at)))
        if fire is None or not _may_be_out(fire):
            self._fail("P4", f"{envelope.id} was sent, and its instant is {fire.state if fire else 'not claimed'}")
        elif fire.seat != envelope.to:
            self._fail("P4", f"{envelope.id} went to {envelope.to}, and was claimed for {fire.seat}")
        return True

    def unsettled(self, schedules: Iterable[Schedule], now: float, *, within_s: float) -> str:
        """The first instant, due longer ago than `within_s`, of which nothing is known for good; "" where none is."""
        by = EPOCH + timedelta(seconds=now - within_s)
        for schedule in schedules:
            progress = self._progress.get(schedule.name)
            if progress is None or not progress.is_of(schedule):
                return f"the schedule {schedule.name} is not begun"
            if due := schedule.newest(progress.settled, by):
                return f"{label(due)} of {schedule.name} is not decided"
            for (name, at), fire in self._fires.items():
                if (name, at) in self._came_late:
                    continue
                if name == schedule.name and fire.state == "claimed" and fire.instant < by:
                    return f"{at} of {name} is claimed and not ended"
        return ""

    def _fire(self, name: str, at: str, fire: Fire) -> None:
        before = self._fires.get((name, at))
        if before is not None and before.state not in ("claimed", fire.state):
            self._fail("P5", f"{at} of {name} was {before.state}, and is made {fire.state}")
        if before is None and fire.instant > EPOCH + timedelta(seconds=asyncio.get_running_loop().time()):
            self._fail("P4", f"{at} of {name} is {fire.state} before it is due")
        if fire.state == "fired" and (name, at) not in self._sent:
            self._fail("P4", f"{at} of {name} is told as fired, and its mail has not left")
        progress = self._progress.get(name)
        if before is None and progress is not None and fire.instant <= progress.settled:
            # It was told as overtaken, and is ended when the schedule is due next, or late again.
            self._came_late.add((name, at))
        self._fires[name, at] = fire
        if fire.overtaken is not None:
            self._overtaken.setdefault(name, []).append(fire.overtaken)

    def _advanced(self, name: str, progress: Progress) -> None:
        before, self._progress[name] = self._progress.get(name), progress
        if progress.overtaken is not None:
            self._overtaken.setdefault(name, []).append(progress.overtaken)
        if before is None:
            return
        if progress.settled < before.settled:
            self._fail("P5", f"{name} went back from {label(before.settled)} to {label(progress.settled)}")
        due = before.schedule(name).after(before.settled)
        while due is not None and due <= progress.settled:
            fire = self._fires.get((name, label(due)))
            is_known = fire is not None and fire.state != "claimed"
            if not is_known and not any(each.first <= due < each.before for each in self._overtaken.get(name, ())):
                self._fail("P4", f"{name} went past {label(due)}, which is {'claimed' if fire else 'not recorded'}")
            due = before.schedule(name).after(due)


def _is_with_pauses_known(fire: Fire) -> bool:
    """Whether it is to be sent by somebody who knew the pauses."""
    return fire.state == "claimed" and PAUSES_UNREAD not in fire.reason


def _named(company: Company, name: str) -> Schedule | None:
    return next((schedule for schedule in company.schedules if schedule.name == name), None)


def _may_be_out(fire: Fire) -> bool:
    """Whether its mail may have left: it was claimed at some time, and not decided against at once."""
    return fire.state in ("claimed", "fired", "refused") or (fire.state == "skipped_catchup" and bool(fire.seat))
