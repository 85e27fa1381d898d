"""Mail, judged: what was accepted is settled with a record, buried after somebody tried, or still waits."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from crewlet.mail.envelope import Envelope
from crewlet.mail.work_key import outgoing_id
from crewlet.ports.mail import Subscription
from crewlet.testing.sim.facts import RunningTurn
from crewlet.testing.sim.firejudge import FireJudge
from crewlet.testing.sim.history import History
from crewlet.testing.sim.mail import SimMailBroker
from crewlet.testing.sim.mailboxjudge import MailboxJudge

_MAX_ORDINAL = 16


@dataclass(slots=True)
class Accepted:
    """A message that the broker keeps."""

    handle: str
    message_id: str
    is_acked: bool = False
    is_dead: bool = False
    is_removed: bool = False


class MailJudge:
    """Sees what the broker does with mail.

    Args:
        fail: called with a promise and how it was broken.
        turns: every turn that was begun, by id.
        mailboxes: judges what is deleted.
        fires: judges the mail of schedules.

    Attributes:
        fed: the ids of the mail from outside.
        settled_at: when mail of a topic was last settled.
        recorded: when the ledger first had a message, by seat and id; `unrecorded` where nobody knows whether it has.
        begun: what a turn has begun on, likewise.
    """

    def __init__(
        self,
        history: History,
        turns: Mapping[str, RunningTurn],
        mailboxes: MailboxJudge,
        fires: FireJudge,
        fail: Callable[[str, str], None],
    ) -> None:
        self._history = history
        self._turns = turns
        self._mailboxes = mailboxes
        self._fires = fires
        self._fail = fail
        self.fed: set[str] = set()
        self.accepted_mail: dict[tuple[str, int], Accepted] = {}
        self.settled_at: dict[str, float] = {}
        self.recorded: dict[tuple[str, str], float] = {}
        self.unrecorded: set[tuple[str, str]] = set()
        self.begun: set[tuple[str, str]] = set()

    def accepted(self, topic: str, message_id: str, sequence: int, data: bytes) -> None:
        self._history.note("mail", topic, message_id, sequence)
        if topic.startswith("crewlet.events."):
            return  # nobody works by it
        envelope = msgspec.json.decode(data, type=Envelope)
        if topic.startswith("dlq."):
            for mail in self.accepted_mail.values():
                if mail.message_id == envelope.id and mail.handle == envelope.to:
                    mail.is_dead = True
                    if (mail.handle, mail.message_id) not in self.begun:
                        self._fail("P4", f"{mail.message_id} of {mail.handle} was buried, and no turn ever began on it")
            return
        self.accepted_mail[topic, sequence] = Accepted(envelope.to, message_id)
        if message_id in self.fed or self._fires.sent(envelope, message_id):
            return
        turn = self._turns.get(envelope.parent_turn_id)
        if turn is None or not any(
            message_id == outgoing_id(turn.handle, turn.work, envelope.to, n) for n in range(_MAX_ORDINAL)
        ):
            self._fail("P4", f"{message_id} to {envelope.to} was sent by nobody: a copy of something")

    def acked(self, topic: str, message_id: str, sequence: int) -> None:
        self._history.note("ack", topic, message_id, sequence)
        mail = self.accepted_mail[topic, sequence]
        mail.is_acked = True
        self.settled_at[topic] = asyncio.get_running_loop().time()
        trigger = (mail.handle, message_id)
        if trigger not in self.recorded and trigger not in self.unrecorded and not mail.is_dead:
            self._fail("P4", f"{message_id} of {mail.handle} was settled, and nobody has recorded it as finished")

    def deleted(self, subscription: Subscription) -> None:
        self._history.note("deleted", subscription.topic)
        self._mailboxes.deleted(subscription)
        for (topic, _), accepted in self.accepted_mail.items():
            if topic == subscription.topic:
                accepted.is_removed = True

    def unaccounted(self, mail: SimMailBroker) -> list[str]:
        """Accepted mail that is neither settled nor waiting: it is gone."""
        return [
            accepted.message_id
            for (topic, sequence), accepted in self.accepted_mail.items()
            if not (accepted.is_acked or accepted.is_dead or accepted.is_removed)
            and not mail.is_unsettled(topic, sequence)
        ]
