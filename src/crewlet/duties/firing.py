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
from crewlet.duties.fires import CEILING_S, Fire, Fires, Kept, Overtaken, Recorded, State, label, mail_id
from crewlet.duties.frame import Turned
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox, UnknownSeat
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge

CEILING = timedelta(seconds=CEILING_S)
MAILBOX_WITHIN = timedelta(minutes=1)
"""How long after its claim a fire waits for its seat's mailbox, which may just be made."""

_LATE = timedelta(minutes=1)
_TOO_OLD = f"it was more than {CEILING_S / 3600:g} h ago"
_PASSED_OVER = "it was claimed only after another node had gone past it"

_log = structlog.get_logger()


class Firing:
    """Decides on instants and ends them.

    Args:
        owner: this process, for the records.
    """

    def __init__(self, fires: Fires, outbox: Outbox, ask: Asking, *, owner: str) -> None:
        self._fires = fires
        self._outbox = outbox
        self._ask = ask
        self._owner = owner

    async def decide(
        self,
        schedule: Schedule,
        instant: datetime,
        now: datetime,
        kept: Kept,
        turned: Turned,
        *,
        is_paused: bool,
        overtaken: Overtaken | None,
    ) -> Fire:
        """Claim an instant and see it through, or what another began.

        Args:
            kept: how far the schedule is, as it was read before the decision.
            overtaken: what went by before the instant, for its record.

        Raises:
            Unavailable: it is not known to have ended. A further call goes on from where it is.
        """
        late = now - instant
        fire = Fire(instant, "claimed", "", self._owner, schedule.seat, overtaken)
        if late > CEILING:
            fire = msgspec.structs.replace(fire, state="missed", reason=_TOO_OLD)
        elif is_paused:
            fire = msgspec.structs.replace(fire, state="skipped_paused", reason=f"the seat {schedule.seat} was paused")
        elif late > _LATE:
            fire = msgspec.structs.replace(fire, reason=f"caught up {late.total_seconds():.0f} s late")
        is_mine = await self._fires.claim(schedule.name, fire)
        turned()
        if is_mine and fire.state != "claimed":
            _tell(schedule.name, fire)
            return fire
        found = await self._fires.at(schedule.name, instant)
        turned()
        if found is None:
            raise Unavailable("the record of its fire is not there")
        if is_mine and await self._is_passed_over(schedule.name, instant, kept):
            turned()
            return await self._end(schedule.name, found, "missed", _PASSED_OVER, turned)
        turned()
        return await self.finish(schedule, found, now, turned)

    async def miss(self, name: str, instant: datetime, reason: str, overtaken: Overtaken | None) -> None:
        """Record that an instant is not fired, unless it is decided already.

        Raises:
            Unavailable: nobody said whether it is recorded.
        """
        fire = Fire(instant, "missed", reason, self._owner, overtaken=overtaken)
        if await self._fires.claim(name, fire):
            _tell(name, fire)

    async def finish(self, schedule: Schedule, found: Recorded, now: datetime, turned: Turned) -> Fire:
        """Send the mail of an instant that was claimed, whoever claimed it, and say so.

        Raises:
            Unavailable: it is not known to be out.
        """
        fire = found.fire
        if fire.state != "claimed":
            return fire
        if now - fire.instant > CEILING:
            reason = f"it was claimed and not finished, and {_TOO_OLD}"
            return await self._end(schedule.name, found, "missed", reason, turned)
        try:
            what = f"sending the mail of {schedule.name}, {label(fire.instant)}"
            await self._ask(self._outbox.post(self._mail(schedule, fire)), what)
        except (UnknownSeat, MailRefused) as refused:
            if not isinstance(refused, MessageTooLarge) and now - found.written_at < MAILBOX_WITHIN:
                raise Unavailable(f"not sent yet: {refused}") from refused
            turned()
            return await self._end(schedule.name, found, "missed", f"its mail was refused: {refused}", turned)
        turned()
        return await self._end(schedule.name, found, "fired", fire.reason, turned)

    async def finish_left(
        self, schedule: Schedule, settled: datetime, before: datetime, now: datetime, turned: Turned
    ) -> datetime:
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
            turned()
            instant = found.fire.instant
            if instant >= before:
                continue
            if instant > settled:
                await self.finish(schedule, found, now, turned)
                newest = max(newest, instant)
            elif found.fire.state == "claimed":
                await self._end(schedule.name, found, "missed", _PASSED_OVER, turned)
        turned()
        return newest

    async def end_left(self, name: str, settled: datetime, reason: str, turned: Turned) -> datetime:
        """End as missed whatever of a schedule is claimed and not finished.

        Returns:
            The newest instant after `settled` which has a record; else `settled`.

        Raises:
            Unavailable: some of it is not known to have ended.
        """
        newest = settled
        for found in await self._fires.of(name):
            turned()
            if found.fire.state == "claimed":
                await self._end(name, found, "missed", f"{reason}; it was claimed, and its mail may be out", turned)
            newest = max(newest, found.fire.instant)
        turned()
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

    async def _end(self, name: str, found: Recorded, state: State, reason: str, turned: Turned) -> Fire:
        ended = msgspec.structs.replace(found.fire, state=state, reason=reason)
        if await self._fires.finish(name, ended, found.revision):
            _tell(name, ended)
            return ended
        turned()
        now_there = await self._fires.at(name, ended.instant)
        if now_there is None or now_there.fire.state == "claimed":
            raise Unavailable("another node is at it at this moment")
        return now_there.fire

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


def _tell(name: str, fire: Fire) -> None:
    say = _log.warning if fire.state == "missed" else _log.info
    say(f"schedule_{fire.state}", schedule=name, seat=fire.seat, instant=fire.instant.isoformat(), reason=fire.reason)
