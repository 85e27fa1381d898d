"""What a turn has done so far: the evidence by which a broken one is judged, and what others may watch."""

from collections.abc import Mapping
from typing import Literal

import msgspec
import structlog

MAX_ANSWERED = 1_000

_log = structlog.get_logger()

Stage = Literal[
    "started", "progress", "waiting", "finished", "breached", "stopped", "broke", "fenced", "parked", "panicked"
]


class TurnNote(msgspec.Struct, frozen=True, gc=False):
    """Something happened in a turn.

    Attributes:
        handle: the seat.
        turn_id: the run.
        stage: what happened. All but `started`, `progress` and `waiting` end the turn.
        detail: one line for people.
    """

    handle: str
    turn_id: str
    stage: Stage
    detail: str = ""


class Work(msgspec.Struct, frozen=True, gc=False):
    """What one run works on.

    Attributes:
        handle: the seat.
        turn_id: names this run.
        key: the unit of work across re-runs; "" when no trigger is ledgered.
        triggers: ids of the mail whose completion is recorded.
        digests: of the text of those whose id their sender chose; recorded with them.
        runner: the kind of what runs it.
    """

    handle: str
    turn_id: str
    key: str
    triggers: tuple[str, ...]
    digests: Mapping[str, str]
    runner: str

    @property
    def name(self) -> str:
        """What the ids of mail and calls are derived from."""
        return self.key or self.turn_id


class TurnRecord(msgspec.Struct):
    """What one run has done, in this process's own memory.

    Attributes:
        mails: ids of the mail it sent and had confirmed. They prove nothing outside: an id is derived from the work, so
            a re-run sends the same mail, which its reader works once.
        outside: calls that cannot be taken back or told from a repeat, each entered before it left. One is enough to
            give the turn's mail up when the turn breaks.
        answered: chat messages that its thread showed it as waiting, beside those that woke it, each once.
        is_beyond: there were more of them than are recorded.
    """

    mails: list[str] = []
    outside: list[str] = []
    answered: dict[str, None] = {}
    is_beyond: bool = False

    def has_answered(self, chat_message: str) -> None:
        """Note a chat message as answered. What is beyond the bound comes back, and is looked at again."""
        if chat_message in self.answered:
            return
        if len(self.answered) < MAX_ANSWERED:
            self.answered[chat_message] = None
        elif not self.is_beyond:
            self.is_beyond = True
            _log.warning("answered_beyond_bound", at_most=MAX_ANSWERED)

    @property
    def reached_outside(self) -> bool:
        return bool(self.outside)
