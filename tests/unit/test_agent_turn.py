"""Which of a turn's calls are awaited, and when they raise `Fenced`, as docs/how-to/python-seats.md says."""

import inspect
import json
from collections.abc import Callable
from typing import Any

import pytest

from crewlet.agent import Fenced, SyncTurn, Turn
from crewlet.agent.link import Exchange, Message

START: Message = {
    "turn_id": "t1",
    "work_key": "w",
    "seat": "desk",
    "triggers": [],
    "mail": [],
    "tools": [],
    "term": {"resource": "seat:desk", "owner": "n:1", "epoch": 3, "good_until": 100.0},
}
ANSWERS: dict[str, Message] = {
    "send": {"sent": {"id": "m1"}},
    "call": {"result": {"text": "so", "is_error": False}},
    "check": {"term": {"good_until": 100.0}},
}
AWAITED: dict[str, Callable[[Any], Any]] = {
    "send": lambda turn: turn.send("bob", "hello"),
    "call": lambda turn: turn.call("note", {"text": "x"}),
    "check": lambda turn: turn.term.check(),
}
PLAIN: dict[str, Callable[[Any], Any]] = {
    "progress": lambda turn: turn.progress("on it"),
    "usage": lambda turn: turn.usage("small", 1, 2),
    "answered": lambda turn: turn.answered("c1"),
}


class Node(Exchange):
    """The other end: answers at once what is answered."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.heard: list[str] = []

    def elapsed(self) -> float:
        return self.now

    def write(self, line: bytes) -> None:
        (kind,) = json.loads(line)
        self.heard.append(kind)
        if kind in ANSWERS:
            self.answered(ANSWERS[kind])


async def _made(call: Callable[[Any], Any], turn: Turn) -> None:
    made = call(turn)
    if made is not None:
        await made


def _node() -> Node:
    node = Node()
    node.begin_turn("t1")
    return node


async def test_send_call_and_check_of_a_turn_are_awaited_and_the_rest_is_not() -> None:
    node = _node()
    turn = Turn(node, START)
    for call in AWAITED.values():
        asked = call(turn)
        assert inspect.isawaitable(asked)
        await asked
    assert [call(turn) for call in PLAIN.values()] == [None] * 3
    assert node.heard == [*AWAITED, *PLAIN]


def test_nothing_of_a_sync_turn_is_awaited() -> None:
    node = _node()
    turn = SyncTurn(node, START)
    assert not any(inspect.isawaitable(call(turn)) for call in (AWAITED | PLAIN).values())
    assert node.heard == [*AWAITED, *PLAIN]


@pytest.mark.parametrize("call", (AWAITED | PLAIN).values(), ids=(AWAITED | PLAIN).keys())
async def test_each_call_of_a_turn_that_is_over_raises_fenced_and_says_nothing(call: Callable[[Any], Any]) -> None:
    node = _node()
    turn, sync = Turn(node, START), SyncTurn(node, START)
    node.end_turn({"outcome": "delivered"})
    node.heard.clear()
    with pytest.raises(Fenced):
        await _made(call, turn)
    with pytest.raises(Fenced):
        call(sync)
    assert node.heard == []


async def test_a_check_that_is_answered_after_the_lease_has_run_out_raises_fenced() -> None:
    node = _node()
    node.now = 100.0
    with pytest.raises(Fenced, match="not renewed in time"):
        await Turn(node, START).term.check()
    with pytest.raises(Fenced, match="not renewed in time"):
        SyncTurn(node, START).term.check()
