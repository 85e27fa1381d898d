"""What must be true of a piece of work that ran as if it had run once, and what is said when it is not."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from crewlet.testing.inmemory.records import Records, Run
from crewlet.testing.inmemory.tools import StandIns


@dataclass(frozen=True)
class Posted:
    """A mail that was sent to a seat, and what has become of it so far."""

    id: str
    seat: str
    records: Records

    @property
    def runs(self) -> list[Run]:
        """The runs that worked on it, oldest first, those that were cut short included."""
        return self.records.runs_of(self.seat, self.id)

    @property
    def outcome(self) -> str:
        """The outcome word on record; `dead_lettered` where its deliveries were used up; "" while there is none."""
        finishing = self.records.finishing(self.seat, self.id)
        if finishing:
            return finishing[-1].outcome
        return "dead_lettered" if (self.seat, self.id) in self.records.buried else ""

    @property
    def detail(self) -> str:
        """What goes with the outcome, or why the newest run came to none."""
        finishing = self.records.finishing(self.seat, self.id) or self.runs
        return finishing[-1].detail if finishing else ""

    def __repr__(self) -> str:
        return f"<mail {self.id} to {self.seat}: {self.outcome or 'no outcome yet'}>"


def ran_once(posted: Posted, stand_ins: StandIns, effects: Iterable[Any] | None) -> None:
    """Hold a piece of work against what running it once would have done.

    Raises:
        AssertionError: it did more, or has not been done; with the seat's history.
    """
    records, runs = posted.records, posted.runs
    finishing = records.finishing(posted.seat, posted.id)
    if not finishing:
        state = "died" if posted.outcome else "has no outcome yet"
        raise _failed(posted, f"{posted.seat} has not done the work of mail {posted.id}: it {state}")
    if len(finishing) > 1:
        raise _failed(posted, f"{posted.seat} finished mail {posted.id} {len(finishing)} times")
    began = f"{len(runs)} runs began on it" if len(runs) > 1 else "one run began on it"
    for tool, arguments, times in _repeated_calls(runs, stand_ins):
        problem = f"{tool} was called {times} times with {dict(arguments)}, and does not tell a repeat by its key"
        raise _failed(posted, f"mail {posted.id} did not run as if once ({began}): {problem}")
    for to, text in _orphaned_mail(records, posted.seat, runs, finishing[0]):
        problem = (
            f"{to} got the mail {text!r} from a run that was cut short, and the run that finished the work sent none "
            "of that id: mail of a re-run has the same ids only when it is sent in the same order"
        )
        raise _failed(posted, f"mail {posted.id} did not run as if once ({began}): {problem}")
    for effect, times in _repeated(effects or ()):
        problem = f"the effect {effect} took place {times} times"
        raise _failed(posted, f"mail {posted.id} did not run as if once ({began}): {problem}")
    if effects is not None and not list(effects):
        raise _failed(posted, f"mail {posted.id} had no effect")


def _failed(posted: Posted, problem: str) -> AssertionError:
    return AssertionError(f"{problem}\n\n{posted.records.history(posted.seat)}")


def _repeated_calls(runs: Iterable[Run], stand_ins: StandIns) -> Iterable[tuple[str, Any, int]]:
    """Effects that more than one call had: the same key came twice to a tool that does not look at it."""
    calls = [call for run in runs for call in run.calls if call.is_effect]
    counted = Counter(call.key for call in calls)
    for call in {call.key: call for call in calls}.values():
        tool = stand_ins.tool(call.tool, call.server)
        if counted[call.key] > 1 and not (tool is not None and tool.takes_key):
            yield call.tool, call.arguments, counted[call.key]


def _orphaned_mail(records: Records, seat: str, runs: Iterable[Run], finishing: Run) -> Iterable[tuple[str, str]]:
    """Mail that running once would not have sent."""
    ids = {run.turn_id for run in runs}
    for (to, mail_id), mail in records.mail.items():
        if mail.source == f"seat:{seat}" and mail.parent_turn_id in ids and (to, mail_id) not in finishing.sent:
            yield to, mail.subject or mail.body


def _repeated(effects: Iterable[Any]) -> Iterable[tuple[str, int]]:
    """Counted by equality: what users write down need not be hashable."""
    seen: list[Any] = []
    counts: list[int] = []
    for effect in effects:
        if effect in seen:
            counts[seen.index(effect)] += 1
        else:
            seen.append(effect)
            counts.append(1)
    return [(repr(effect), count) for effect, count in zip(seen, counts, strict=True) if count > 1]
