"""The promises, held against what really happened: writes as the store took them, calls as they left.

Nothing here asks a node for its opinion. Whatever is judged is judged at true time, at the place where it took effect.
"""

import math
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from crewlet.company.model import Company
from crewlet.mail import topics
from crewlet.seats.records import LeaseRecord, decode_lease, lifetime_s, resource_of
from crewlet.testing.sim.claimjudge import ClaimJudge
from crewlet.testing.sim.effectjudge import EffectJudge
from crewlet.testing.sim.facts import RunningTurn, Tenure, Violation, key_of_trigger, trigger_of
from crewlet.testing.sim.firejudge import FIRES, FireJudge
from crewlet.testing.sim.fleetview import FleetView
from crewlet.testing.sim.history import History
from crewlet.testing.sim.lifejudge import LifeJudge
from crewlet.testing.sim.loop import Process, SimLoop
from crewlet.testing.sim.mail import SimMailBroker
from crewlet.testing.sim.mailboxjudge import MAILBOXES, MailboxJudge
from crewlet.testing.sim.mailjudge import MailJudge
from crewlet.testing.sim.pausejudge import PAUSES, PauseJudge
from crewlet.testing.sim.vacancy import Living, Scene
from crewlet.testing.sim.wire import Broker
from crewlet.turns.turn import Turn

LEASES, LEDGER = "crewlet_leases", "crewlet_ledger"

_SLACK_S = 0.01
_GATE_RACE_S = 15.0
_THAW_S = 0.1


@dataclass(slots=True)
class _Reads:
    """What a process last learnt of ledger keys: True there, False not there, None nobody said."""

    known: dict[tuple[str, str], bool | None] = field(default_factory=dict[tuple[str, str], bool | None])


class Judge:
    """Sees everything, says what was broken first.

    Args:
        grace_s: how long the mail of a removed seat is kept.
        drift: how far a node's clock may run wrong, as a share.
        on_violation: called once.
    """

    def __init__(
        self,
        company: Company,
        loop: SimLoop,
        history: History,
        broker: Broker,
        *,
        ttl_s: float,
        grace_s: float,
        drift: float,
        on_violation: Callable[[Violation], None],
    ) -> None:
        self._company = company
        self._loop = loop
        self._history = history
        self._broker = broker
        self._ttl_s = ttl_s
        self._stretch = 1.0 + 2.0 * drift
        self._on_violation = on_violation
        self.mail: SimMailBroker | None = None
        self.fleet = FleetView(company, ttl_s)
        self._pauses = PauseJudge(self.fail)
        self.leases: dict[str, Tenure] = {}
        self._held: dict[str, Tenure] = {}
        self._claims: dict[str, Tenure] = {}
        self.lives = LifeJudge(ttl_s, self.fail)
        self.effects = EffectJudge(self.fail)
        self.claims = ClaimJudge(self.fail)
        self.mailboxes = MailboxJudge(grace_s, ttl_s, self.leases, self.claims.has_had, self.fail)
        self.newest: dict[str, int] = {}
        self._proof_at: dict[tuple[str, int], float] = {}
        self._released: set[tuple[str, int]] = set()
        self._lapsed: set[tuple[str, int]] = set()
        self.turns: dict[str, RunningTurn] = {}
        self.fires = FireJudge(self.claims.document, self._pauses, self.fail)
        self.mails = MailJudge(history, self.turns, self.mailboxes, self.fires, self.fail)
        self._open: dict[str, list[RunningTurn]] = {}
        self._failed_at: dict[str, float] = {}
        self._lease_failed_at: dict[tuple[str, str], float] = {}
        self._claiming: dict[tuple[str, str], float] = {}
        self._claim_sent_at: dict[str, float] = {}
        self._reads = _Reads()
        self.violation: Violation | None = None
        self.counts = {"turns": 0, "acts": 0, "reruns": 0}

    @property
    def now(self) -> float:
        return self._loop.now_s

    def fail(self, promise: str, text: str) -> None:
        self._history.note("violation", promise, text)
        if self.violation is None:
            self.violation = Violation(promise, text, self.now)
            self._on_violation(self.violation)

    # The store

    def wrote(self, bucket: str, key: str, value: bytes | None, revision: int) -> None:
        if bucket == LEASES and value is not None:
            self._lease_written(key, decode_lease(value))
        elif bucket == LEDGER and value is not None:
            record = msgspec.json.decode(value, type=dict[str, Any])
            self._history.note("ledger", key, record.get("owner"), record.get("epoch"), record.get("outcome"))
            self.mails.recorded[trigger_of(key)] = self.now
        else:
            self._history.note("cell", bucket, key, revision)
            if bucket == PAUSES:
                self._pauses.wrote(value, revision)
            elif bucket == MAILBOXES:
                self.mailboxes.wrote(key, value)
            elif bucket == FIRES:
                self.fires.wrote(key, value)

    def heard(self, process: Process, bucket: str, revision: int) -> None:
        if bucket == PAUSES:
            self._pauses.heard(process, revision)

    def was_read(self, bucket: str, key: str, is_there: bool) -> None:
        if bucket == LEDGER and self._broker.caller is not None:
            self._reads.known[self._broker.caller.name, key] = is_there

    def _lease_written(self, key: str, record: LeaseRecord) -> None:
        now, resource = self.now, resource_of(key) or key
        owner, epoch = record.owner, record.epoch
        before = self.leases.get(key)
        was_live = before is not None and before.is_live(now)
        state = "released" if record.released else "held" if epoch > 0 else "claiming"
        self._history.note("lease", resource, owner, epoch, state)
        if before is not None and was_live and before.record.owner != owner:
            left_s = before.ends_at - now
            self.fail("P7", f"{owner} took {resource} from {before.record.owner}, {left_s:.3f} s before its lapse")
        ends_at = -math.inf if record.released else now + lifetime_s(record.ttl_s, self._ttl_s)
        tenure = Tenure(record, now, now, ends_at, is_held=state == "held")
        if before is not None and before.is_held:
            goes_on = before.record.epoch == epoch and before.record.owner == owner
            if goes_on:
                tenure.began_at = before.began_at
            if record.released:
                self._tenure_released(resource, before)
        else:
            goes_on = False
        if tenure.is_held and not goes_on:
            self._tenure_began(resource, tenure)
        elif tenure.is_held:
            # What lapsed once is over, also when a late renewal gave its record another life.
            if not was_live:
                self._lapsed.add((resource, epoch))
            if (resource, epoch) not in self._lapsed:
                self._proof_at[resource, epoch] = now
        self.leases[key] = tenure
        if tenure.is_held:
            self._held[key] = tenure
        else:
            self._held.pop(key, None)
        if state == "claiming":
            self._claims[key] = tenure
        else:
            self._claims.pop(key, None)
        if resource.startswith("node:"):
            self.fleet.presence(resource.partition(":")[2], record, now, is_live=tenure.is_held)

    def _tenure_began(self, resource: str, tenure: Tenure) -> None:
        record, now = tenure.record, self.now
        if record.epoch <= self.newest.get(resource, 0):
            self.fail("P2", f"{resource} went from epoch {self.newest[resource]} to {record.epoch}")
        self.newest[resource] = max(record.epoch, self.newest.get(resource, 0))
        self._proof_at[resource, record.epoch] = now
        cls, _, handle = resource.partition(":")
        if cls != "seat":
            return
        self.effects.was_taken(record.owner, handle)
        self.lives.was_taken(handle, record.owner, self._open.get(handle, ()))
        lower = [
            key
            for key, other in self._held.items()
            if other.ends_at > now and other.record.protocol < record.protocol and other.began_at < now - _GATE_RACE_S
        ]
        if lower:
            self.fail("P7", f"{record.owner} took {resource} at protocol {record.protocol} beside an older {lower[0]}")
        caller = self._broker.caller
        if caller is not None:
            held = [
                other.record.owner
                for key, other in self._held.items()
                if other.ends_at > now
                and other.record.owner == record.owner
                and key.startswith("seat.")
                and self.fleet.is_same_group(key[5:], handle)
            ]
            failed_at = self._failed_at.get(caller.name, -1e9)
            self.claims.won(record.owner, failed_at=failed_at)
            share = self.fleet.share(handle, record.owner, caller, now, failed_at=failed_at)
            if share is not None and len(held) + 1 > share:
                self.fail("P6", f"{record.owner} took {resource} and holds {len(held) + 1} of a share of {share}")

    def _tenure_released(self, resource: str, before: Tenure) -> None:
        owner, epoch = before.record.owner, before.record.epoch
        self._released.add((resource, epoch))
        cls, _, handle = resource.partition(":")
        caller = self._broker.caller
        if cls != "seat" or caller is None or caller.name != owner:
            return
        self.effects.released(caller, handle)
        for turn in self._open.get(handle, ()):
            if turn.can_act and turn.owner == owner and turn.epoch == epoch:
                self.fail("P1", f"{owner} gave {resource} back while its turn {turn.turn_id} ran")
        if self.mail is not None and self.mail.pulls_of(caller, topics.inbox(handle)):
            self.fail("P1", f"{owner} gave {resource} back with a pull open on its inbox")

    # What nodes send off

    def reading(self, process: Process, bucket: str, key: str) -> None:
        if bucket == LEASES:
            # Whoever reads a lease has no claim of it on the way any more, or is about to give it back.
            self._claiming.pop((process.name, key), None)

    def writing(self, process: Process, bucket: str, key: str, value: bytes | None) -> None:
        if bucket == LEASES and value is not None:
            record = decode_lease(value)
            if record.epoch == 0 and not record.released:
                self._claiming[process.name, key] = self._claim_sent_at[record.claim] = self.now
                if record.owner == process.name and key.startswith("seat."):
                    self.claims.leaves(process, key[5:])
        if bucket == MAILBOXES:
            self.mailboxes.writing(process, key, value)
        if bucket == FIRES and value is not None:
            self.fires.writing(process, key, value)
        if bucket != LEDGER or value is None:
            return
        record = msgspec.json.decode(value, type=dict[str, Any])
        turn = self.turns.get(record.get("turn_id", ""))
        handle, _, trigger = key.partition(".")
        self.effects.recording(handle, trigger)
        newest = self.newest.get(f"seat:{handle}", 0)
        if newest > record.get("epoch", 0) and not (turn is not None and turn.is_exempt):
            self.fail("P3", f"{process.name} records {key} under epoch {record.get('epoch')}, when {newest} was won")

    def listed(self, process: Process, bucket: str, prefix: str, looked_at: float) -> None:
        if bucket == LEASES and prefix == "node.":
            self.fleet.listed(process.name, looked_at)

    def unread(self, process: Process, bucket: str, key: str) -> None:
        if bucket == LEDGER:
            self._reads.known[process.name, key] = None
        else:
            self._failed_at[process.name] = self.now
            if bucket == LEASES:
                self._lease_failed_at[process.name, key] = self.now

    def unwritten(self, process: Process, bucket: str, key: str) -> None:
        if bucket == LEDGER:
            self.mails.unrecorded.add(trigger_of(key))
        else:
            self._failed_at[process.name] = self.now
            if bucket == LEASES:
                self._lease_failed_at[process.name, key] = self.now

    # Turns

    def begin(self, process: Process, turn: Turn) -> RunningTurn:
        """A runner begins to run a turn."""
        term = turn.fence.term
        running = RunningTurn(
            process,
            turn.seat.handle,
            term.owner,
            term.epoch,
            turn.turn_id,
            turn.work_key or turn.turn_id,
            tuple(event.id for event in turn.mail if event.is_ledgered),
        )
        self.counts["turns"] += 1
        self.turns[turn.turn_id] = running
        self._history.note("begin", running.handle, running.owner, running.epoch, *running.triggers)
        self._may_act(running, "began a turn")
        age_s = self.now - self._proof_at.get((term.resource, term.epoch), -1e9)
        if age_s > self._ttl_s / 3 * self._stretch + _SLACK_S:
            self.fail("P7", f"{running.owner} began a turn of {running.handle} {age_s:.3f} s after its last renewal")
        for other in self._open.get(running.handle, ()):
            if other.process is process:
                self.fail("P1", f"{running.owner} began a turn of {running.handle} while another of it runs there")
            if other.can_act and other.owner != running.owner and self.now > other.process.thawed_at + _THAW_S:
                self.fail("P1", f"{running.owner} began a turn of {running.handle} while {other.owner} runs one")
        tenure = self.leases.get(f"seat.{running.handle}")
        if tenure is not None and tenure.record.epoch == running.epoch:
            self._pauses.begins(process, running.handle, tenure.began_at)
        for trigger in running.triggers:
            self.mails.begun.add((running.handle, trigger))
            self._may_run(running, trigger)
        self.effects.begins(running)
        self.lives.turns(process, 1)
        self._open.setdefault(running.handle, []).append(running)
        return running

    def act(self, turn: RunningTurn, what: str) -> None:
        """A call of a turn leaves."""
        self.counts["acts"] += 1
        self._history.note("act", turn.handle, turn.owner, turn.epoch, what)
        self._may_act(turn, what)
        self._pauses.acts(turn.process, turn.handle)

    def end(self, turn: RunningTurn, how: str) -> None:
        """A runner is done with a turn."""
        turn.ended = how
        self.effects.ends(turn)
        self._history.note("end", turn.handle, turn.owner, turn.epoch, how)
        if turn in self._open.get(turn.handle, ()):
            self._open[turn.handle].remove(turn)
            self.lives.turns(turn.process, -1)

    def died(self, process: Process) -> None:
        """A process is gone; so is whatever it ran."""
        self.claims.died(process)
        self.lives.died(process)
        self.effects.died(process)
        for turns in self._open.values():
            turns[:] = [turn for turn in turns if turn.process is not process]

    def _may_act(self, turn: RunningTurn, what: str) -> None:
        self.lives.acts(turn.process, turn.handle)
        resource = f"seat:{turn.handle}"
        newest = self.newest.get(resource, 0)
        if newest != turn.epoch:
            self.fail("P1", f"{turn.owner} {what} for {turn.handle} at epoch {turn.epoch} after {newest} was won")
        elif (resource, turn.epoch) in self._released:
            self.fail("P8", f"{turn.owner} {what} for {turn.handle} after it had given epoch {turn.epoch} back")
        else:
            age_s = self.now - self._proof_at.get((resource, turn.epoch), -1e9)
            if age_s > self._ttl_s * self._stretch + _SLACK_S:
                self.fail("P8", f"{turn.owner} {what} for {turn.handle} {age_s:.3f} s after its last renewal")

    def _may_run(self, turn: RunningTurn, trigger: str) -> None:
        recorded_at = self.mails.recorded.get((turn.handle, trigger))
        if recorded_at is None:
            return
        self.counts["reruns"] += 1
        key = key_of_trigger(turn.handle, trigger)
        known = self._reads.known.get((turn.process.name, key), True)
        if known:
            self.fail(
                "P5", f"{turn.owner} ran {trigger} of {turn.handle} again, recorded {self.now - recorded_at:.3f} s ago"
            )

    def left(self, owner: str, *, is_calm: bool) -> None:
        """A process has drained and ended by itself. In calm weather it leaves no seat to lapse."""
        for key, lease in self.leases.items():
            if lease.record.owner == owner and lease.is_live(self.now):
                if is_calm:
                    self.fail("P6", f"{owner} drained and left {key} to lapse")
                elif lease.record.epoch == 0 and (owner, key) in self._claiming:
                    self.fail("P6", f"{owner} ended and has not tried to give its claim of {key} back")

    def look(self, running: Mapping[str, float]) -> None:
        """Judge what stays as it is. Called every second or so.

        Args:
            running: since when each process has been running without a pause.
        """
        now, limit_s = self.now, self._ttl_s / 3
        for key, lease in self._claims.items():
            age_s = now - lease.at
            if not lease.is_live(now) or age_s < limit_s + 5.0:
                continue
            since = running.get(lease.record.owner)
            # A give-back may give up after its limit. One that had not failed by then had time to succeed; what landed
            # later than that was left to lapse.
            if (
                since is not None
                and since < lease.at < self._claim_sent_at.get(lease.record.claim, lease.at) + limit_s
                and self._lease_failed_at.get((lease.record.owner, key), -1e9) < lease.at + limit_s - 4.0
            ):
                self.fail("P6", f"{lease.record.owner} left its claim of {key} in the way for {age_s:.1f} s")

    def claims_of(self, owner: str) -> int:
        """How many first writes of claims of a process have left, and are not known to have come to an end."""
        return sum(name == owner for name, _ in self._claiming)

    def scene(self, living: Collection[Living]) -> Scene:
        """The leases as they are, for whoever watches the free seats."""
        now = self.now
        live = {
            key: each for key, each in self._held.items() if each.ends_at > now and key.startswith(("seat.", "node."))
        }
        return Scene(
            living,
            frozenset(each.record.owner for key, each in live.items() if key.startswith("node.")),
            {key[5:]: each.began_at for key, each in live.items() if key.startswith("seat.")},
            min((each.record.protocol for each in live.values()), default=0),
        )

    def holders(self) -> Mapping[str, Tenure]:
        """Live seat tenures by handle."""
        now = self.now
        return {
            key[5:]: tenure for key, tenure in self._held.items() if key.startswith("seat.") and tenure.is_live(now)
        }
