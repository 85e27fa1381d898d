"""One instant of a schedule, seen through to its end.

It is claimed before its mail leaves, and a claim without a clear yes fires nothing: the next look reads what came of
it. Between the claim and the end a crash does no harm, since whoever comes next sends the mail again under the same
id, to the same seat.
"""

from datetime import datetime, timedelta

import msgspec
import structlog

from crewlet.company.instants import Schedule
from crewlet.duties.asking import Asking
from crewlet.duties.fires import Fire, Fires, Kept, Overtaken, Recorded, State, label, mail_id
from crewlet.mail.envelope import Envelope
from crewlet.mail.events import Tell, tell_nobody
from crewlet.mail.outbox import Outbox, UnknownSeat
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge

LEAST_CATCH_UP = timedelta(minutes=2)
MOST_CATCH_UP = timedelta(hours=2)
"""A fire is caught up for half the time to the one after it, within these bounds."""
MAILBOX_WITHIN = timedelta(minutes=1)
"""How long after its claim a fire waits for its seat's mailbox, which may just be made."""

_LATE = timedelta(minutes=1)
PAUSES_UNREAD = "nobody said whether the seat was paused"
_PASSED_OVER = "it was claimed only after another node had gone past it"

_log = structlog.get_logger()


class Firing:
    """Decides on instants and ends them.

    Args:
        owner: this process, for the records.
        tell: publishes what happened.
    """

    def __init__(self, fires: Fires, outbox: Outbox, ask: Asking, *, owner: str, tell: Tell = tell_nobody) -> None:
        self._fires = fires
        self._outbox = outbox
        self._ask = ask
        self._owner = owner
        self._publish = tell

    async def decide(
        self,
        schedule: Schedule,
        instant: datetime,
        now: datetime,
        kept: Kept,
        *,
        is_paused: bool | None,
        overtaken: Overtaken | None,
    ) -> Fire:
        """Claim an instant and see it through, or what another began.

        Args:
            kept: how far the schedule is, as it was read before the decision.
            is_paused: None where nobody said: it is fired, as a paused seat's inbox keeps the mail.
            overtaken: what went by before the instant, for its record.

        Raises:
            Unavailable: it is not known to have ended. A further call goes on from where it is.
        """
        late = now - instant
        fire = Fire(instant, "claimed", "", self._owner, schedule.seat, overtaken)
        if late > catch_up(schedule, instant):
            fire = msgspec.structs.replace(fire, state="skipped_catchup", reason=_too_late(schedule, instant, now))
        elif is_paused:
            fire = msgspec.structs.replace(fire, state="skipped_paused", reason=f"the seat {schedule.seat} was paused")
        else:
            reasons = [f"caught up {late.total_seconds():.0f} s late"] if late > _LATE else []
            reasons += [PAUSES_UNREAD] if is_paused is None else []
            fire = msgspec.structs.replace(fire, reason="; ".join(reasons))
        is_mine = await self._fires.claim(schedule.name, fire)
        if is_mine and fire.state != "claimed":
            self._tell(schedule.name, fire)
            return fire
        found = await self._fires.at(schedule.name, instant)
        if found is None:
            raise Unavailable("the record of its fire is not there")
        if is_mine and await self._is_passed_over(schedule.name, instant, kept):
            return await self._end(schedule.name, found, "skipped_catchup", _PASSED_OVER)
        return await self.finish(schedule, found, now)

    async def miss(self, name: str, instant: datetime, reason: str, overtaken: Overtaken | None) -> None:
        """Record that an instant is not fired, unless it is decided already.

        Raises:
            Unavailable: nobody said whether it is recorded.
        """
        fire = Fire(instant, "skipped_catchup", reason, self._owner, overtaken=overtaken)
        if await self._fires.claim(name, fire):
            self._tell(name, fire)

    async def finish(self, schedule: Schedule, found: Recorded, now: datetime) -> Fire:
        """Send the mail of an instant that was claimed, whoever claimed it, and say so.

        Raises:
            Unavailable: it is not known to be out.
        """
        fire = found.fire
        if fire.state != "claimed":
            return fire
        if now - fire.instant > catch_up(schedule, fire.instant):
            reason = f"it was claimed, and its mail may be out; {_too_late(schedule, fire.instant, now)}"
            return await self._end(schedule.name, found, "skipped_catchup", reason)
        try:
            what = f"sending the mail of {schedule.name}, {label(fire.instant)}"
            await self._ask(self._outbox.post(self._mail(schedule, fire)), what)
        except (UnknownSeat, MailRefused) as refused:
            if not isinstance(refused, MessageTooLarge) and now - found.written_at < MAILBOX_WITHIN:
                raise Unavailable(f"not sent yet: {refused}") from refused
            return await self._end(schedule.name, found, "refused", f"its mail was refused: {refused}")
        return await self._end(schedule.name, found, "fired", fire.reason)

    async def finish_left(self, schedule: Schedule, settled: datetime, before: datetime, now: datetime) -> datetime:
        """End what was claimed before an instant and left behind.

        All that is kept of the schedule is looked at: a node that stood still may have claimed any instant of that
        time, `settled` or not, and died before it saw that others had gone past it.

        Returns:
            The newest instant after `settled` and before that one which has a record; else `settled`.

        Raises:
            Unavailable: some of it is not known to have ended.
        """
        newest = settled
        for found in await self._fires.of(schedule.name):
            instant = found.fire.instant
            if instant >= before:
                continue
            if instant > settled:
                await self.finish(schedule, found, now)
                newest = max(newest, instant)
            elif found.fire.state == "claimed":
                await self._end(schedule.name, found, "skipped_catchup", _PASSED_OVER)
        return newest

    async def end_left(self, name: str, settled: datetime, reason: str) -> datetime:
        """Skip whatever of a schedule is claimed and not finished.

        Returns:
            The newest instant after `settled` which has a record; else `settled`.

        Raises:
            Unavailable: some of it is not known to have ended.
        """
        newest = settled
        for found in await self._fires.of(name):
            if found.fire.state == "claimed":
                await self._end(name, found, "skipped_catchup", f"{reason}; it was claimed, and its mail may be out")
            newest = max(newest, found.fire.instant)
        return newest

    async def _is_passed_over(self, name: str, instant: datetime, kept: Kept) -> bool:
        """Whether another node went past this instant, or forgot the schedule, before it was claimed here."""
        current = await self._fires.progress(name)
        if current is None:
            return True
        if current.revision == kept.revision:
            return False
        last = current.progress.last
        return current.progress.settled >= instant and (last is None or last.instant != instant)

    async def _end(self, name: str, found: Recorded, state: State, reason: str) -> Fire:
        ended = msgspec.structs.replace(found.fire, state=state, reason=reason)
        if await self._fires.finish(name, ended, found.revision):
            self._tell(name, ended)
            return ended
        now_there = await self._fires.at(name, ended.instant)
        if now_there is None or now_there.fire.state == "claimed":
            raise Unavailable("another node is at it at this moment")
        return now_there.fire

    def _tell(self, name: str, fire: Fire) -> None:
        about = {"schedule": name, "seat": fire.seat, "instant": fire.instant.isoformat(), "reason": fire.reason}
        if fire.state == "fired":
            _log.info("scheduled_task_fired", **about)
            self._publish("scheduled_task_fired", about)
        else:
            say = _log.info if fire.state == "skipped_paused" else _log.warning
            say(f"schedule_{fire.state}", **about)

    def _mail(self, schedule: Schedule, fire: Fire) -> Envelope:
        return Envelope(
            id=mail_id(schedule.name, fire.instant),
            type="task_assigned",
            timestamp=self._outbox.timestamp(),
            source="program",
            to=fire.seat or schedule.seat,
            subject=f"Schedule {schedule.name}",
            body=schedule.message,
            payload={"schedule": schedule.name, "instant": fire.instant.isoformat()},
        )


def catch_up(schedule: Schedule, instant: datetime) -> timedelta:
    """How late an instant may be and still be fired."""
    following = schedule.after(instant)
    half = (following - instant) / 2 if following is not None else MOST_CATCH_UP
    return min(max(half, LEAST_CATCH_UP), MOST_CATCH_UP)


def _too_late(schedule: Schedule, instant: datetime, now: datetime) -> str:
    late_s, most_s = (now - instant).total_seconds(), catch_up(schedule, instant).total_seconds()
    return f"it was seen {late_s:.0f} s late, and is caught up for {most_s:.0f} s at most"
