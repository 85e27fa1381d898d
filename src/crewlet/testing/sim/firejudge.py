"""Schedules, judged: no mail without a claim of its instant, no end taken back, no instant passed by in silence."""

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

import msgspec

from crewlet.company.instants import Schedule
from crewlet.duties.fires import FIRES_BUCKET, Fire, Overtaken, Progress, label
from crewlet.mail.envelope import Envelope
from crewlet.testing.virtual import EPOCH

FIRES = FIRES_BUCKET.name


class FireJudge:
    """Knows what the store has of schedules.

    Args:
        fail: called with a promise and how it was broken.
    """

    def __init__(self, fail: Callable[[str, str], None]) -> None:
        self._fail = fail
        self._progress: dict[str, Progress] = {}
        self._fires: dict[tuple[str, str], Fire] = {}
        self._overtaken: dict[str, list[Overtaken]] = {}

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

    def sent(self, envelope: Envelope) -> bool:
        """Whether an accepted mail is one of a schedule; it must have been claimed, for that seat."""
        name, instant = envelope.payload.get("schedule"), envelope.payload.get("instant")
        if name is None or instant is None:
            return False
        fire = self._fires.get((str(name), label(datetime.fromisoformat(str(instant)))))
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
                if name == schedule.name and fire.state == "claimed" and fire.instant < by:
                    return f"{at} of {name} is claimed and not ended"
        return ""

    def _fire(self, name: str, at: str, fire: Fire) -> None:
        before = self._fires.get((name, at))
        if before is not None and before.state not in ("claimed", fire.state):
            self._fail("P5", f"{at} of {name} was {before.state}, and is made {fire.state}")
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


def _may_be_out(fire: Fire) -> bool:
    """Whether its mail may have left: it was claimed at some time, and not decided against at once."""
    return fire.state in ("claimed", "fired") or (fire.state == "missed" and bool(fire.seat))
