"""The judgement on a demonstration: evidence in, verdict out. Pure, and no node's opinion is part of it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

from crewlet.testing.demo.trail import Line, Run, runs_of

BROKER_SHADOW_S = 10.0
"""For so long after a broker member went down a record or an ack may have been lost with it."""

JUST_BEFORE_S = 1.0
"""A run that was over for less than this when the fault came may have had no time left to be recorded."""

WORDS = {"killed": "killed", "parent_killed": "killed with its parent", "frozen": "frozen"}
"""The faults that take seats from a node, in words."""

GOOD_OUTCOMES = frozenset({"delivered", "no_action"})


@dataclass(frozen=True, slots=True)
class Send:
    """Mail that the store acknowledged. `by` is a seat, or `demo`; `to` is "" where the sender alone knows."""

    id: str
    by: str
    to: str = ""


@dataclass(frozen=True, slots=True)
class Completion:
    """The ledger's record that a seat finished a message. `written_at` is the store's own time, seconds since 1970."""

    seat: str
    trigger: str
    written_at: float
    outcome: str = "delivered"


@dataclass(frozen=True, slots=True)
class Fault:
    """Harm done to a node, from `at` to `until` by boot time.

    For `broker` its broker member was restarted; for `parent_killed` its parent was killed, and node and broker member
    went with it.
    """

    kind: Literal["killed", "frozen", "broker", "parent_killed"]
    node: str
    at: float
    until: float


@dataclass(frozen=True, slots=True)
class Evidence:
    """All there is to judge by.

    Attributes:
        nodes: how many there were.
        seats: every handle of the company.
        lines: by seat, in the order in which the file has them, which is the order of the writes.
        sends: mail that the demonstration itself sent.
        completions: the whole ledger.
        waiting: by seat, messages that the stream still keeps for it.
        faults: in their order.
        broker_restarts: broker processes that came in another's place.
        lease_ttl_s: the TTL in force.
        elapsed_s: how long the demonstration took.
        complaints: sentences about what could not be measured, or went wrong outside the evidence.
    """

    nodes: int
    seats: Sequence[str]
    lines: Mapping[str, Sequence[Line]]
    sends: Sequence[Send]
    completions: Sequence[Completion]
    waiting: Mapping[str, int] = field(default_factory=dict[str, int])
    faults: Sequence[Fault] = ()
    broker_restarts: int = 0
    lease_ttl_s: float = 10.0
    elapsed_s: float = 0.0
    complaints: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came out. `problems` are sentences that name a message or seat; with none it is `ok`."""

    nodes: int
    seats: int
    sent: int
    finished: int
    lost: int
    ran_twice: int
    rerun_after_cut: tuple[str, ...]
    owners_at_once_max: int
    stale_epoch_writes: int
    takeover_s: Mapping[str, float | None]
    broker_restarts: int
    lease_ttl_s: float
    elapsed_s: float
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """The object that `crewlet demo --json` prints."""
        return {
            "ok": self.ok,
            "nodes": self.nodes,
            "seats": self.seats,
            "sent": self.sent,
            "finished": self.finished,
            "lost": self.lost,
            "ran_twice": self.ran_twice,
            "rerun_after_cut": list(self.rerun_after_cut),
            "owners_at_once_max": self.owners_at_once_max,
            "stale_epoch_writes": self.stale_epoch_writes,
            "takeover_s": dict(self.takeover_s),
            "broker_restarts": self.broker_restarts,
            "lease_ttl_s": self.lease_ttl_s,
            "elapsed_s": self.elapsed_s,
        }


def judge(evidence: Evidence) -> Verdict:
    """Weigh the evidence."""
    problems = list(evidence.complaints)
    runs = {seat: runs_of(lines) for seat, lines in evidence.lines.items()}
    every_run = sorted((run for found in runs.values() for run in found), key=lambda run: run.began_at)
    sends = _all_sends(evidence.sends, every_run)
    lost = _lost(sends, evidence.completions, problems)
    again = _ran_after_completion(every_run, evidence.completions, problems)
    reruns = _reruns(every_run, evidence, again, problems)
    _strays(evidence, problems)
    _idleness(evidence, problems)
    return Verdict(
        nodes=evidence.nodes,
        seats=len(evidence.seats),
        sent=len(sends),
        finished=len(sends) - len(lost),
        lost=len(lost),
        ran_twice=len(again),
        rerun_after_cut=reruns,
        owners_at_once_max=max((_owners_at_once(found, problems) for found in runs.values()), default=0),
        stale_epoch_writes=sum(_stale_epochs(lines, problems) for lines in evidence.lines.values()),
        takeover_s={kind: _takeover(kind, evidence.faults, runs, problems) for kind in WORDS},
        broker_restarts=evidence.broker_restarts,
        lease_ttl_s=evidence.lease_ttl_s,
        elapsed_s=evidence.elapsed_s,
        problems=tuple(problems),
    )


def _all_sends(sends: Iterable[Send], runs: Iterable[Run]) -> Mapping[str, Send]:
    """By id. A re-run sends the same mail under the same id, which is one send."""
    found = {send.id: send for send in sends}
    for run in runs:
        for message_id in run.sent:
            found.setdefault(message_id, Send(message_id, by=run.seat))
    return found


def _lost(sends: Mapping[str, Send], completions: Iterable[Completion], problems: list[str]) -> Sequence[str]:
    finished = {completion.trigger for completion in completions}
    finished_by = {(completion.seat, completion.trigger) for completion in completions}
    lost = [
        message_id
        for message_id, send in sends.items()
        if ((send.to, message_id) not in finished_by if send.to else message_id not in finished)
    ]
    for message_id in lost:
        send = sends[message_id]
        where = f" to {send.to}" if send.to else ""
        problems.append(f"message {message_id} from {send.by}{where} was never finished")
    for completion in completions:
        if completion.outcome not in GOOD_OUTCOMES:
            problems.append(f"message {completion.trigger} ended as {completion.outcome} at seat {completion.seat}")
    return lost


def _ran_after_completion(
    runs: Iterable[Run], completions: Iterable[Completion], problems: list[str]
) -> Mapping[str, Sequence[str]]:
    """By run, the triggers it worked on although the store already had them as finished."""
    finished_at = {(completion.seat, completion.trigger): completion.written_at for completion in completions}
    again: dict[str, Sequence[str]] = {}
    for run in runs:
        done = [t for t in run.triggers if finished_at.get((run.seat, t), float("inf")) < run.began_wall]
        for trigger in done:
            late_s = run.began_wall - finished_at[run.seat, trigger]
            problems.append(f"message {trigger} ran again at seat {run.seat} {late_s:.3f} s after it was finished")
        if done:
            again[run.name] = done
    return again


def _reruns(
    runs: Iterable[Run], evidence: Evidence, again: Mapping[str, Sequence[str]], problems: list[str]
) -> tuple[str, ...]:
    """Triggers that a fault cut short and that then ran again. A repeat without a fault is a problem."""
    by_trigger: dict[tuple[str, str], list[Run]] = {}
    for run in runs:
        for trigger in run.triggers:
            by_trigger.setdefault((run.seat, trigger), []).append(run)
    victims = _victims(evidence)
    reruns: list[str] = []
    for (seat, trigger), attempts in by_trigger.items():
        for earlier, later in pairwise(attempts):
            if _is_cut_by_fault(earlier, evidence.faults, victims):
                if trigger not in reruns:
                    reruns.append(trigger)
            elif trigger not in again.get(later.name, ()):
                problems.append(f"message {trigger} ran again at seat {seat} although no fault had cut it short")
    return tuple(reruns)


def _victims(evidence: Evidence) -> Mapping[str, Fault]:
    """By owner, the fault that met that incarnation: the node's newest before the fault."""
    victims: dict[str, Fault] = {}
    for fault in evidence.faults:
        if fault.kind == "broker":
            continue
        lines = [line for found in evidence.lines.values() for line in found if line.boottime <= fault.at]
        mine = [line for line in lines if line.owner.rpartition(":")[0] == fault.node]
        if mine:
            victims[max(mine, key=lambda line: line.boottime).owner] = fault
    return victims


def _is_cut_by_fault(run: Run, faults: Iterable[Fault], victims: Mapping[str, Fault]) -> bool:
    """Whether a fault may have kept the run, or the record of it, from being finished."""
    fault = victims.get(run.owner)
    if fault is not None and run.last_at >= fault.at - JUST_BEFORE_S:
        return True
    return any(
        fault.kind in ("broker", "parent_killed")  # a broker member went down in both
        and run.began_at <= fault.until + BROKER_SHADOW_S
        and run.last_at >= fault.at - JUST_BEFORE_S
        for fault in faults
    )


def _owners_at_once(runs: Sequence[Run], problems: list[str]) -> int:
    """The most owners whose runs of one seat overlapped. Two runs that only touch do not."""
    most = 0
    for run in runs:  # the most there ever are, are there when one of them begins
        others = {
            other.owner: other
            for other in runs
            if other.owner != run.owner
            and (other.began_at < run.began_at < other.last_at or other.began_at == run.began_at)
        }
        most = max(most, 1 + len(others))
        for owner, other in others.items():
            problems.append(
                f"seat {run.seat} was run by {owner} and {run.owner} at once:"
                f" {run.name} began {other.last_at - run.began_at:.3f} s before {other.name} was over"
            )
    return most


def _stale_epochs(lines: Sequence[Line], problems: list[str]) -> int:
    """Lines of an epoch lower than one already seen. Two owners of one epoch are a problem too, though not counted."""
    stale = 0
    newest: Line | None = None
    told: set[str] = set()
    for line in lines:
        if newest is None or line.epoch > newest.epoch:
            newest = line
        elif line.epoch < newest.epoch:
            stale += 1
            if line.run not in told:
                told.add(line.run)
                problems.append(f"seat {line.seat} wrote at epoch {line.epoch} after epoch {newest.epoch}: {line.run}")
        elif line.owner != newest.owner and line.run not in told:
            told.add(line.run)
            problems.append(f"seat {line.seat} has epoch {line.epoch} with two owners: {newest.owner}, {line.owner}")
    return stale


def _takeover(
    kind: str, faults: Iterable[Fault], runs: Mapping[str, Sequence[Run]], problems: list[str]
) -> float | None:
    """From the fault to the first begin by another owner: the longest over the seats that the node had last run."""
    took: list[float] = []
    for fault in faults:
        if fault.kind != kind:
            continue
        held = {seat: found for seat, found in runs.items() if _holder(found, fault) == fault.node}
        for found in held.values():
            owner = _last_before(found, fault).owner
            begins = [run.began_at for run in found if run.began_at > fault.at and run.owner != owner]
            took += [min(begins) - fault.at] if begins else []
        if not took:
            what = f"no seat of {fault.node} was seen to be taken over after the node was {WORDS[kind]}"
            problems.append(what)
    return round(max(took), 3) if took else None


def _holder(runs: Sequence[Run], fault: Fault) -> str:
    return _last_before(runs, fault).node if any(run.began_at <= fault.at for run in runs) else ""


def _last_before(runs: Sequence[Run], fault: Fault) -> Run:
    return max((run for run in runs if run.began_at <= fault.at), key=lambda run: run.began_at)


def _strays(evidence: Evidence, problems: list[str]) -> None:
    for seat, count in evidence.waiting.items():
        if count:
            problems.append(f"{count} message{'s' * (count != 1)} for seat {seat} still wait in the stream")


def _idleness(evidence: Evidence, problems: list[str]) -> None:
    """A demonstration in which nothing happened proves nothing."""
    if not evidence.sends:
        problems.append("no mail was sent")
    done = {fault.kind for fault in evidence.faults}
    problems += [f"no node was {WORDS[kind]}" for kind in WORDS if kind not in done]
    if not evidence.broker_restarts:
        problems.append("no broker member was restarted")
