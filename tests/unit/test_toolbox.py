"""The one way from an agent to the world: fenced, recorded, named, bounded, guarded."""

from collections.abc import Callable, Mapping
from typing import Any

import pytest

from crewlet.mail.envelope import Envelope
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo, ToolUnavailable
from crewlet.turns.effects import CallNames, reaches_outside
from crewlet.turns.guards import GuardBreached, Rounds, check_depth
from crewlet.turns.toolbox import MAX_ANSWER_CHARS, MAX_ARGUMENT_BYTES, Call, Tool, Toolbox

READS = ToolInfo("read", "", {}, server="files", is_read_only=True)
WRITES = ToolInfo("write", "", {}, server="files")


class OpenFence:
    """Open until it is closed by hand."""

    term = Term("seat:alice", "n1:x", 7)
    good_until = 1e9

    def __init__(self) -> None:
        self.is_closed = False

    def check(self) -> None:
        if self.is_closed:
            raise Fenced("lost")

    def on_close(self, call: Callable[[str], None]) -> Callable[[], None]:
        return lambda: None


class Trail:
    """Remembers what was told, in order."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.is_broken = False

    async def leaving(self, call: Call, *, is_effect: bool) -> None:
        if self.is_broken:
            raise Unavailable("the disk is full")
        self.told.append(f"leaving {call.tool.name}{' as an effect' if is_effect else ''}")

    def not_made(self, call: Call) -> None:
        self.told.append(f"{call.tool.name} was not made")

    def called(self, call: Call, answer: ToolAnswer) -> None:
        self.told.append(f"called {call.tool.name}: {answer.text}")


class Desk:
    """A toolbox whose tools answer with a count, or as they are told."""

    def __init__(self, *infos: ToolInfo) -> None:
        self.fence, self.trail = OpenFence(), Trail()
        self.calls: list[Call] = []
        self.answer: str | Exception | None = None
        tools = [Tool(info, self._act) for info in infos]
        self.box = Toolbox(handle="alice", work="w1", fence=self.fence, tools=lambda: tools, journal=self.trail)

    async def _act(self, call: Call) -> ToolAnswer:
        self.calls.append(call)
        self.trail.told.append(f"at {call.tool.name}")
        if isinstance(self.answer, Exception):
            raise self.answer
        return ToolAnswer(self.answer or f"answer {len(self.calls)}")


@pytest.mark.proves("TB-02")
@pytest.mark.parametrize(
    ("server", "is_read_only", "is_open_world", "counts"),
    [
        ("files", None, None, True),
        ("files", False, None, True),
        ("files", True, None, False),
        ("files", True, False, False),
        ("files", None, False, True),
        ("web", True, True, True),
        ("", None, None, False),
        ("", False, None, False),
        ("", False, False, False),
        ("", None, True, True),
    ],
)
def test_only_a_server_that_may_write_or_a_tool_that_says_so_reaches_outside(
    server: str, is_read_only: bool | None, is_open_world: bool | None, counts: bool
) -> None:
    tool = ToolInfo("t", "", {}, server=server, is_read_only=is_read_only, is_open_world=is_open_world)
    assert reaches_outside(tool) is counts


async def test_a_call_is_recorded_before_it_leaves_and_whether_it_is_an_effect() -> None:
    desk = Desk(READS, WRITES)
    await desk.box.call("write", {"a": 1})
    await desk.box.call("read", {"a": 1})
    assert desk.trail.told == [
        "leaving write as an effect",
        "at write",
        "called write: answer 1",
        "leaving read",
        "at read",
        "called read: answer 2",
    ]


async def test_nothing_leaves_once_the_fence_has_closed() -> None:
    desk = Desk(WRITES)
    desk.fence.is_closed = True
    with pytest.raises(Fenced):
        await desk.box.call("write", {})
    assert desk.trail.told == []


async def test_a_fence_that_closes_while_the_effect_is_recorded_keeps_the_call_here() -> None:
    desk = Desk(WRITES)

    async def slowly(call: Call, *, is_effect: bool) -> None:
        desk.fence.is_closed = True

    desk.trail.leaving = slowly
    with pytest.raises(Fenced):
        await desk.box.call("write", {})
    assert desk.calls == []


async def test_an_effect_that_cannot_be_recorded_does_not_leave() -> None:
    desk = Desk(WRITES)
    desk.trail.is_broken = True
    with pytest.raises(Unavailable):
        await desk.box.call("write", {})
    assert desk.calls == []


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("nope", {}, "there is no tool 'nope'; there are: write"),
        ("write", {"a": "x" * MAX_ARGUMENT_BYTES}, "bytes"),
        ("write", {"a": object()}, "not JSON"),
    ],
)
async def test_a_call_that_the_agent_got_wrong_is_answered_and_does_not_leave(
    name: str, arguments: Mapping[str, Any], says: str
) -> None:
    desk = Desk(WRITES)
    answer = await desk.box.call(name, arguments)
    assert answer.is_error and says in answer.text
    assert desk.trail.told == []


async def test_a_server_that_does_not_answer_is_an_error_for_the_agent() -> None:
    desk = Desk(WRITES)
    desk.answer = ToolUnavailable("silent for 60 s")
    answer = await desk.box.call("write", {})
    assert answer.is_error and "silent for 60 s" in answer.text
    assert desk.trail.told[-1] == "called write: no answer from write: silent for 60 s"


async def test_an_answer_beyond_bounds_is_cut_and_says_so() -> None:
    desk = Desk(READS)
    desk.answer = "x" * (MAX_ANSWER_CHARS + 1)
    answer = await desk.box.call("read", {})
    assert len(answer.text) < MAX_ANSWER_CHARS + 100 and answer.text.endswith(
        f"[cut: {MAX_ANSWER_CHARS + 1} characters in all]"
    )


async def test_the_same_call_with_the_same_result_twice_running_is_a_stall() -> None:
    desk = Desk(READS)
    desk.answer = "same"
    await desk.box.call("read", {"a": 1, "b": 2})
    await desk.box.call("read", {"a": 2, "b": 2})
    await desk.box.call("read", {"a": 1, "b": 2})
    with pytest.raises(GuardBreached, match="stall"):
        await desk.box.call("read", {"b": 2, "a": 1})


async def test_the_same_call_with_another_result_is_no_stall() -> None:
    desk = Desk(READS)
    for _ in range(3):
        await desk.box.call("read", {"a": 1})
    assert len(desk.calls) == 3


async def test_a_rerun_gives_each_call_the_key_it_had() -> None:
    first, second = Desk(READS, WRITES), Desk(READS, WRITES)
    for name, arguments in (("write", {"a": 1, "b": 2}), ("write", {"a": 2}), ("write", {"a": 1, "b": 2})):
        await first.box.call(name, arguments)
    # The re-run looks around first, and says its arguments in another order.
    for name, arguments in (
        ("read", {}),
        ("write", {"b": 2, "a": 1}),
        ("write", {"a": 2}),
        ("write", {"b": 2, "a": 1}),
    ):
        await second.box.call(name, arguments)
    keys = [call.key for call in first.calls]
    assert len(set(keys)) == 3
    assert [call.key for call in second.calls[1:]] == keys


def test_keys_differ_by_seat_work_tool_arguments_and_ordinal() -> None:
    names = CallNames("alice", "w1")
    keys = {
        names.next("t", {}),
        names.next("t", {}),
        names.next("u", {}),
        names.next("t", {"a": 1}),
        CallNames("bob", "w1").next("t", {}),
        CallNames("alice", "w2").next("t", {}),
    }
    assert len(keys) == 6


@pytest.mark.parametrize(("depth", "is_breached"), [(0, False), (3, False), (4, True)])
def test_work_may_be_passed_on_three_times(depth: int, is_breached: bool) -> None:
    mail = [Envelope(id="e", type="external_notification", timestamp="", source="seat:bob", delegation_depth=depth)]
    if is_breached:
        with pytest.raises(GuardBreached, match="depth_cap"):
            check_depth(mail)
    else:
        check_depth(mail)


def test_a_turn_has_so_many_rounds_and_no_more() -> None:
    rounds = Rounds(2)
    assert [rounds.begin(), rounds.begin()] == [1, 2]
    with pytest.raises(GuardBreached, match="max_iter"):
        rounds.begin()
