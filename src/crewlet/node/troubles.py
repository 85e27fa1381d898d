"""What is the matter with seats, as the nodes that hold them know it.

All nodes are asked at once, and each names only those of its seats that have a trouble.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import msgspec
import structlog

from crewlet.kit.decoding import decode
from crewlet.mail.screening import AGENT_NOT_READY
from crewlet.ports.signals import Forget, Signals

QUESTION = "seat_troubles"
ANSWER_WITHIN_S = 1.0
"""How long the nodes are waited for. One that says nothing by then may be there all the same."""

_MOST = 500
_LONGEST = 300
"""So many seats are named in an answer, and so much of each trouble: far below what a signal may hold."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class TroublesSnapshot:
    """What is the matter, by handle, of the seats with which something is.

    Attributes:
        answered: the nodes that said so, this one included; of seats that another one holds nothing is known.
    """

    answered: tuple[str, ...]
    troubles: Mapping[str, str] = field(default_factory=dict[str, str])


class _Answer(msgspec.Struct, frozen=True):
    node: str
    troubles: dict[str, str]


class Troubles:
    """Asks for troubles, and answers for this node's own seats.

    Args:
        mine: what is the matter with the seats that are held here, by handle, for those with which something is.
    """

    def __init__(self, signals: Signals, node_id: str, mine: Callable[[], Mapping[str, str]]) -> None:
        self._signals = signals
        self._node_id = node_id
        self._mine = mine

    async def serve(self) -> Forget:
        """Answer other nodes."""

        async def answer(_: bytes) -> bytes:
            return msgspec.json.encode(_Answer(self._node_id, self._own()))

        return await self._signals.serve(QUESTION, answer)

    async def of_fleet(self, nodes: int) -> TroublesSnapshot:
        """What every node says, or those that answer in time.

        Args:
            nodes: how many are live, this one included, as far as known.
        """
        answers = [_Answer(self._node_id, self._own())]
        if nodes > 1:
            for data in await self._signals.ask(QUESTION, b"", timeout_s=ANSWER_WITHIN_S, enough=nodes):
                try:
                    heard = decode(data, _Answer)
                except msgspec.MsgspecError as error:
                    _log.warning("seat_troubles_unreadable", error=str(error), bytes=len(data))
                    continue
                if heard.node != self._node_id:
                    answers.append(heard)
        troubles = {handle: text for each in answers for handle, text in each.troubles.items()}
        return TroublesSnapshot(tuple(sorted({each.node for each in answers})), dict(sorted(troubles.items())))

    def _own(self) -> dict[str, str]:
        return {handle: text[:_LONGEST] for handle, text in list(self._mine().items())[:_MOST]}


def told(
    *,
    unproven_s: Mapping[str, float],
    held_back: Mapping[str, str],
    waiting: Mapping[str, str],
    last_error: Mapping[str, str],
) -> Mapping[str, str]:
    """The troubles of the seats of one node, the gravest of each first."""
    found: dict[str, list[str]] = {}
    for handle, age_s in unproven_s.items():
        found.setdefault(handle, []).append(f"its teardown is unproven for {age_s:.0f} s")
    errors = dict(last_error)
    for handle, reason in held_back.items():
        holds = reason.split(", ")
        if AGENT_NOT_READY in holds:
            why = errors.pop(handle, "it is being started")
            found.setdefault(handle, []).append(f"not ready, its mail waits: {why}")
        others = ", ".join(hold for hold in holds if hold != AGENT_NOT_READY)
        if others:
            found.setdefault(handle, []).append(f"held back: {others}")
    for handle, what in waiting.items():
        found.setdefault(handle, []).append(what)
    for handle, error in errors.items():
        found.setdefault(handle, []).append(f"last error: {error}")
    return {handle: "; ".join(texts) for handle, texts in found.items()}
