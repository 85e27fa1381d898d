"""What a turn does is in this node's history, and what it proves decides its mail."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest
from dispatch_desk import Desk, Remembering, delivery, event, mails

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import CallBegan, CallEnded, Dispatched, RoundBegan, RoundEnded, TurnBegan, TurnEnded
from crewlet.ports.mail import Ack, Defer, Nak
from crewlet.ports.tools import ToolAnswer, ToolInfo, ToolNotCalled, ToolUnavailable
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.guards import GuardBreached
from crewlet.turns.toolbox import EPOCH, IDEMPOTENCY_KEY, RESOURCE
from crewlet.turns.turn import RoundUsage, Turn, TurnBroke, TurnResult


class Files:
    """A tool server of two tools."""

    name = "files"
    trouble = None
    tools: Sequence[ToolInfo] = (
        ToolInfo("files_read", "", {}, server="files", is_read_only=True),
        ToolInfo("files_write", "", {}, server="files"),
    )

    def __init__(self) -> None:
        self.calls: list[tuple[str, Mapping[str, Any], Mapping[str, Any]]] = []
        self.is_gone = False
        self.is_down = False

    async def start(self) -> None: ...

    async def end(self, *, grace_s: float = 0.0) -> None: ...

    async def call(self, tool: str, arguments: Mapping[str, Any], *, meta: Mapping[str, Any]) -> ToolAnswer:
        if self.is_gone:
            raise ToolUnavailable("gone")
        if self.is_down:
            raise ToolNotCalled("down")
        self.calls.append((tool, arguments, meta))
        return ToolAnswer(f"answer {len(self.calls)}")


async def _call(turn: Turn, tool: str, **arguments: Any) -> ToolAnswer:
    assert turn.tools is not None
    return await turn.tools.call(tool, arguments)


@in_virtual_time
async def test_the_history_of_a_turn_has_its_rounds_and_calls_in_their_order() -> None:
    async def script(turn: Turn) -> TurnResult:
        await turn.begin_round(1)
        await turn.usage(RoundUsage(1, "m", 10, 2))
        await _call(turn, "files_read", path="a")
        await _call(turn, "files_write", path="a")
        return TurnResult("delivered", "wrote a")

    desk = await Desk(script, servers=[Files()]).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    kinds = [type(each) for each in desk.history.kept]
    assert kinds == [TurnBegan, RoundBegan, RoundEnded, CallBegan, CallEnded, CallBegan, CallEnded, TurnEnded]
    began, ended = desk.history.kept[0], desk.history.kept[-1]
    assert isinstance(began, TurnBegan) and (began.seat, began.epoch, began.triggers) == ("alice", 7, ("a",))
    assert isinstance(ended, TurnEnded) and (ended.outcome, ended.detail) == ("delivered", "wrote a")
    calls = [each for each in desk.history.kept if isinstance(each, CallBegan)]
    assert [(call.number, call.tool, call.is_effect) for call in calls] == [
        (1, "files_read", False),
        (2, "files_write", True),
    ]


@pytest.mark.proves("TB-02")
@pytest.mark.parametrize(("tool", "is_given_up"), [("files_read", False), ("files_write", True)])
def test_a_turn_that_broke_after_a_call_comes_back_only_when_the_call_only_read(tool: str, is_given_up: bool) -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, tool)
        raise TurnBroke("coughed")

    @in_virtual_time
    async def case() -> None:
        desk = await Desk(script, servers=[Files()]).open()
        answer = await desk.handle_mail(*mails("a"))
        assert answer == (Ack() if is_given_up else Nak("coughed"))
        assert (await desk.completion("a") is not None) == is_given_up
        assert ("turn_trigger_skipped" in desk.events()) == is_given_up

    case()


@in_virtual_time
async def test_a_call_carries_the_term_and_a_key_that_a_re_run_of_the_work_derives_again() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "files_read", path="a")
        raise TurnBroke("coughed")

    files = Files()
    desk = await Desk(script, servers=[files]).open()
    for _ in range(2):
        assert isinstance(await desk.handle_mail(*mails("a")), Nak)
    first, second = (meta for _, _, meta in files.calls)
    assert first[IDEMPOTENCY_KEY] == second[IDEMPOTENCY_KEY]
    assert (first[RESOURCE], first[EPOCH]) == ("seat:alice", 7)


@in_virtual_time
async def test_an_effect_is_on_the_disk_before_it_leaves() -> None:
    files = Files()

    def look(happening: object) -> None:
        if isinstance(happening, CallBegan):
            seen.append(len(files.calls))

    seen: list[int] = []
    desk = Desk(servers=[files])
    desk.history = Remembering(on_keep=look)

    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "files_write")
        return TurnResult("delivered")

    desk.runner.script = script
    await desk.open()
    await desk.handle_mail(*mails("a"))
    assert seen == [0] and len(files.calls) == 1


@pytest.mark.parametrize("trouble", ["refuses", "hangs"])
def test_a_disk_that_keeps_nothing_does_not_stop_a_turn_and_the_effect_counts_all_the_same(trouble: str) -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "files_write")
        raise TurnBroke("coughed")

    async def fail(happening: object) -> None:
        if trouble == "hangs":
            await asyncio.Event().wait()
        raise Unavailable("the disk is full")

    @in_virtual_time
    async def case() -> None:
        files = Files()
        desk = Desk(script, servers=[files])
        desk.history = Remembering(before_keep=fail)
        await desk.open()
        assert await desk.handle_mail(*mails("a")) == Ack()
        assert len(files.calls) == 1
        assert "effect_not_kept" in desk.events()

    case()


@pytest.mark.proves("FE-06")
@in_virtual_time
async def test_an_effect_that_the_fence_stopped_on_its_way_is_none_and_its_mail_goes_back() -> None:
    async def close(happening: object) -> None:
        assert desk.fence is not None
        desk.fence.close("lease_lost")

    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "files_write")
        raise AssertionError("the call left")

    files = Files()
    desk = Desk(script, servers=[files])
    desk.history = Remembering(before_keep=close)
    await desk.open()
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert files.calls == []
    assert await desk.completion("a") is None


@pytest.mark.proves("TB-02")
@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("files_write", {}), ("ask", {"to": "nobody", "question": "?"}), ("ask", {"to": "bob"})],
    ids=["a server that is down", "a question to nobody", "no question"],
)
def test_a_call_that_never_left_is_no_effect_and_the_mail_of_a_turn_that_broke_comes_back(
    tool: str, arguments: dict[str, str]
) -> None:
    async def script(turn: Turn) -> TurnResult:
        answers.append(await _call(turn, tool, **arguments))
        raise TurnBroke("coughed")

    @in_virtual_time
    async def case() -> None:
        files = Files()
        files.is_down = True
        desk = Desk(script, servers=[files])
        desk.channels = Channels(await LocalCells(desk.clock).open(CHANNELS_BUCKET))
        await desk.open()
        assert await desk.handle_mail(*mails("a")) == Nak("coughed")
        assert answers[0].is_error and await desk.completion("a") is None

    answers: list[ToolAnswer] = []
    case()


@pytest.mark.proves("TB-02")
@in_virtual_time
async def test_a_call_that_never_left_takes_no_other_of_the_turn_back() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "files_write")
        files.is_down = True
        await _call(turn, "files_write")
        raise TurnBroke("coughed")

    files = Files()
    desk = await Desk(script, servers=[files]).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed"


@in_virtual_time
async def test_a_server_that_is_gone_is_told_to_the_agent_and_the_turn_goes_on() -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, "files_read")
        return TurnResult("blocked", answer.text)

    files = Files()
    files.is_gone = True
    desk = await Desk(script, servers=[files]).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and "no answer from files_read" in completion.detail


@in_virtual_time
async def test_work_that_was_passed_on_too_often_fails_without_a_run_and_the_seat_goes_on() -> None:
    desk = await Desk().open()
    assert await desk.handle_mail(delivery(event("a", delegation_depth=4))) == Ack()
    assert desk.ran == []
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed" and "depth_cap" in completion.detail
    breach = next(line for line in desk.logs if line["event"] == "turn.guard_breach")
    assert breach["kind"] == "depth_cap"
    assert [about["kind"] for about in desk.told("turn.guard_breach")] == ["depth_cap"]
    assert [(note.stage, "depth_cap" in note.detail) for note in desk.notes[-1:]] == [("breached", True)]
    assert await desk.handle_mail(delivery(event("b", delegation_depth=3))) == Ack()
    assert desk.ran == [["b"]]


@in_virtual_time
async def test_a_turn_that_calls_the_same_with_the_same_result_fails_as_a_stall_and_does_not_come_back() -> None:
    async def script(turn: Turn) -> TurnResult:
        while True:
            await _call(turn, "files_read")

    files = Files()
    files.is_gone = True
    desk = await Desk(script, servers=[files]).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed" and "stall" in completion.detail


@in_virtual_time
async def test_a_breach_on_a_closed_fence_writes_nothing() -> None:
    async def script(turn: Turn) -> TurnResult:
        assert desk.fence is not None
        desk.fence.close("lease_lost")
        raise GuardBreached("max_iter", "no outcome after 24 rounds")

    desk = await Desk(script).open()
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert await desk.completion("a") is None


@pytest.mark.proves("FE-06")
@in_virtual_time
async def test_a_fence_that_closes_after_the_first_round_lets_no_second_one_begin() -> None:
    async def script(turn: Turn) -> TurnResult:
        await turn.begin_round(1)
        assert desk.fence is not None
        desk.fence.close("lease_lost")
        await turn.begin_round(2)
        raise AssertionError("a second round began")

    desk = await Desk(script).open()
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert [each.number for each in desk.history.kept if isinstance(each, RoundBegan)] == [1]


@in_virtual_time
async def test_mail_that_runs_no_turn_is_in_the_history_with_the_reason() -> None:
    desk = await Desk().open()
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(delivery(event("b", type="weather")))
    await desk.handle_mail(delivery(b"not json", id="c"))
    desk.owned = None
    await desk.handle_mail(*mails("d"))
    desk.owned = 7

    async def broken(turn: Turn) -> TurnResult:
        raise TurnBroke("coughed")

    desk.runner.script = broken
    await desk.handle_mail(*mails("e"))
    told = [(each.triggers, each.answer, each.reason) for each in desk.history.kept if isinstance(each, Dispatched)]
    assert told[0] == (("a",), "ack", "already finished: delivered")
    assert told[1] == (("b",), "ack", "weather wakes nobody")
    assert told[2][:2] == (("c",), "bury") and "not an event" in told[2][2]
    assert told[3] == (("d",), "defer", 'seat "alice" is not owned here')
    assert told[4] == (("e",), "nak", "coughed")


@in_virtual_time
async def test_mail_that_breaks_its_turn_at_the_last_delivery_is_told_as_a_dead_letter() -> None:
    async def broken(turn: Turn) -> TurnResult:
        raise TurnBroke("coughed")

    desk = await Desk(broken).open()
    last, young = mails("a", "b")
    assert await desk.handle_mail(msgspec.structs.replace(last, deliveries_left=0), young) == Nak("coughed")
    told = [(each.triggers, each.answer, each.reason) for each in desk.history.kept if isinstance(each, Dispatched)]
    assert told == [(("b",), "nak", "coughed"), (("a",), "bury", "coughed")]


@in_virtual_time
async def test_a_seat_without_servers_has_a_toolbox_all_the_same() -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, "nope")
        return TurnResult("blocked", answer.text)

    desk = await Desk(script).open()
    await desk.handle_mail(*mails("a"))
    completion = await desk.completion("a")
    assert completion is not None and "there is no tool 'nope'" in completion.detail
