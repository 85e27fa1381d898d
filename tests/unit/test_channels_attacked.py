"""Questions between seats under attack: too long, too deep, refused, unreadable, late or lost."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, cast

import pytest
from channels_rig import TTL_S, turned, watched
from dispatch_desk import Desk, delivery, event, mails

from crewlet.company.model import Company, Reply, ScriptRunner, Seat
from crewlet.duties.answering import ChannelSweep
from crewlet.duties.asking import Asking
from crewlet.mail.channel import MAX_ANSWER_CHARS, Channel, ChannelClosed
from crewlet.mail.channels import KEPT_S
from crewlet.mail.outbox import UnknownSeat
from crewlet.ports.errors import Unavailable
from crewlet.ports.keys import MAX_VALUE_BYTES
from crewlet.ports.mail import Ack, Defer, Nak, NoMailbox
from crewlet.ports.tools import ToolAnswer
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.runners.script import ScriptTurns
from crewlet.turns.turn import Turn, TurnBroke, TurnResult

WORST = "\x01" * MAX_ANSWER_CHARS


async def _call(turn: Turn, tool: str, **arguments: Any) -> ToolAnswer:
    assert turn.tools is not None
    return await turn.tools.call(tool, arguments)


def _request(channel: str = "0a-1", *, id: str = "r1", **more: Any) -> Any:
    return delivery(event(id, type="a2a_request", source="seat:bob", payload={"channel": channel}, **more))


@in_virtual_time
async def test_the_longest_question_and_the_longest_answer_fit_the_store_whatever_their_characters() -> None:
    async def script(turn: Turn) -> TurnResult:
        if turn.mail[0].type == "a2a_request":
            told.append(await _call(turn, "answer", text=WORST))
        else:
            told.append(await _call(turn, "ask", to="bob", question=WORST))
        return TurnResult("delivered")

    told: list[ToolAnswer] = []
    desk = Desk(script)
    cells, desk.channels = await watched(desk.clock)
    await desk.open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    (asked,) = desk.mail.published
    assert asked.body == WORST
    channel_id = asked.payload["channel"]
    await desk.channels.open("0a-1", Channel("bob", "alice", WORST))
    assert await desk.handle_mail(_request()) == Ack()
    assert not any(answer.is_error for answer in told), told
    assert desk.mail.published[1].body == WORST
    assert 600_000 < cells.biggest < MAX_VALUE_BYTES
    answered, found = await desk.channels.find("0a-1"), await desk.channels.find(channel_id)
    assert answered is not None and (answered.channel.question, answered.channel.answer) == ("", "")
    assert found is not None and len(found.channel.question) == 2_000


@in_virtual_time
async def test_a_question_that_is_refused_leaves_no_channel_behind_and_may_be_asked_again_by_a_re_run() -> None:
    async def script(turn: Turn) -> TurnResult:
        told.append(await _call(turn, "ask", to="bob", question="how?"))
        raise TurnBroke("coughed")

    told: list[ToolAnswer] = []
    desk = Desk(script)
    cells, desk.channels = await watched(desk.clock)
    desk.mail.answers = [NoMailbox("there is no mailbox")]
    for _ in range(3):
        await desk.open()  # each ledger knows nothing of the run before
        await desk.handle_mail(*mails("a"))
        if len(told) == 1:
            assert await cells.list() == [], "the asker would be told after an hour that nobody has answered"
        if len(told) == 2:
            desk.mail.answers = [NoMailbox("there is no mailbox")]
    assert [answer.is_error for answer in told] == [True, False, True]
    (asked,) = desk.mail.published
    found = await desk.channels.find(asked.payload["channel"])
    assert found is not None and found.channel.state == "open", "an earlier run's question may be in the inbox"


@pytest.mark.parametrize(("depth", "may_ask"), [(2, True), (3, False)])
def test_work_that_nobody_would_take_further_asks_nobody(depth: int, may_ask: bool) -> None:
    async def script(turn: Turn) -> TurnResult:
        told.append(await _call(turn, "ask", to="bob", question="how?"))
        return TurnResult("blocked")

    told: list[ToolAnswer] = []

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        cells, desk.channels = await watched(desk.clock)
        await desk.open()
        assert await desk.handle_mail(delivery(event("a", delegation_depth=depth))) == Ack()
        assert told[0].is_error is not may_ask, told
        assert len(await cells.list()) == len(desk.mail.published) == int(may_ask)

    case()


@pytest.mark.parametrize("replies", [("so",), ("so", "so")])
def test_the_first_reply_of_a_script_answers_the_question_in_its_mail(replies: tuple[str, ...]) -> None:
    @in_virtual_time
    async def case() -> None:
        desk = Desk()
        _, desk.channels = await watched(desk.clock)
        await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
        script = ScriptRunner(tuple(Reply(text) for text in replies))
        desk.runner = cast("Any", ScriptTurns(clock=desk.clock))
        desk.seat = Seat("alice", runner=script)
        await desk.open()
        assert await desk.handle_mail(_request()) == Ack()
        assert [mail.type for mail in desk.mail.published] == ["a2a_message", "external_notification"][: len(replies)]
        completion = await desk.completion("r1")
        assert completion is not None and completion.outcome == "delivered"

    case()


@in_virtual_time
async def test_two_equal_questions_of_a_turn_are_two_and_a_re_run_asks_the_same_two() -> None:
    async def script(turn: Turn) -> TurnResult:
        for _ in range(2):
            assert not (await _call(turn, "ask", to="bob", question="how?")).is_error
        raise TurnBroke("coughed")

    desk = Desk(script)
    cells, desk.channels = await watched(desk.clock)
    for _ in range(2):
        await desk.open()
        assert await desk.handle_mail(*mails("a")) == Ack()
    first, second, *again = [mail.id for mail in desk.mail.published]
    assert first != second and again == [first, second]
    assert len(await cells.list()) == 2


@pytest.mark.parametrize("at", ["ask", "answer"])
def test_a_turn_that_is_fenced_between_record_and_mail_is_taken_up_by_its_re_run_under_the_same_ids(at: str) -> None:
    async def script(turn: Turn) -> TurnResult:
        arguments = {"to": "bob", "question": "how?"} if at == "ask" else {"text": f"answer {len(runs)}"}
        runs.append(turn.turn_id)
        await _call(turn, at, **arguments)
        return TurnResult("delivered")

    runs: list[str] = []

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        cells, desk.channels = await watched(desk.clock)
        if at == "answer":
            await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
        mail = _request() if at == "answer" else mails("a")[0]
        await desk.open()
        desk.mail.answers = [Unavailable("lost")] * 1000
        desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 5)
        # A question is an effect: it is given up, and its asker told of its channel after an hour.
        assert isinstance(await desk.handle_mail(mail), Ack if at == "ask" else Defer)
        assert len(await cells.list()) == 1 and desk.mail.published == []
        desk.mail.answers = []
        desk.fence = desk.new_fence(8)
        await desk.open()  # as where the ledger's record did not get through
        assert await desk.handle_mail(mail) == Ack()
        (posted,) = desk.mail.published
        assert len(runs) == 2 and len(await cells.list()) == 1
        if at == "answer":
            assert posted.body == "answer 0", "the first answer counts"

    case()


@in_virtual_time
async def test_an_answer_is_not_refused_because_the_store_was_behind() -> None:
    clock = VirtualClock()
    cells, channels = await watched(clock)
    await channels.open("0a", Channel("bob", "alice", "how?"))
    cells.blind_reads = 1
    with pytest.raises(Unavailable):
        await channels.answer("0a", by="alice", text="so", work="w")
    assert (await channels.answer("0a", by="alice", text="so", work="w")).state == "answered"


@in_virtual_time
async def test_a_channel_that_is_not_there_is_closed_for_good_by_the_first_who_wants_to_answer_in_it() -> None:
    clock = VirtualClock()
    cells, channels = await watched(clock)
    for _ in range(2):
        with pytest.raises(ChannelClosed):
            await channels.answer("0a", by="alice", text="so", work="w")
    assert (await channels.open("0a", Channel("bob", "alice", "how?"))).channel.state == "idle"
    await clock.sleep(KEPT_S + 1)
    assert (await channels.sweep(turned)).removed == 1 and await cells.list() == []


@pytest.mark.parametrize(
    "value", [b"", b"\xff\xfe", b"[]", b'{"asker":"bob","to":"alice","question":"","state":"newer"}']
)
def test_a_record_that_cannot_be_read_stops_neither_the_sweep_nor_a_turn(value: bytes) -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, "answer", text="so")
        assert answer.is_error and "cannot be read" in answer.text
        return TurnResult("blocked")

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        cells, desk.channels = await watched(desk.clock)
        await cells.create("channel.0a-1", value)
        await desk.channels.open("0b", Channel("bob", "alice", "how?"))
        await desk.open()
        assert await desk.handle_mail(_request()) == Ack()
        await desk.clock.sleep(3601)
        sweep = ChannelSweep(desk.channels, desk.outbox, Asking(TTL_S, desk.clock))
        with pytest.raises(Unavailable, match="0a-1 cannot be read"):
            await sweep.sweep(turned)
        assert [mail.payload["channel"] for mail in desk.mail.published] == ["0b"]

    case()


@pytest.mark.parametrize("state", ["idle", "answered"])
def test_a_question_that_nobody_waits_for_runs_no_turn(state: str) -> None:
    @in_virtual_time
    async def case() -> None:
        desk = Desk()
        _, desk.channels = await watched(desk.clock)
        await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
        if state == "answered":
            await desk.channels.answer("0a-1", by="alice", text="so", work="other")
        else:
            await desk.clock.sleep(3601)
            await desk.channels.sweep(turned)
        await desk.open()
        assert await desk.handle_mail(_request()) == Ack()
        assert desk.ran == [] and "turn_trigger_skipped" in desk.events()
        completion = await desk.completion("r1")
        assert completion is not None and completion.outcome == "no_action"

    case()


@in_virtual_time
async def test_a_turn_that_broke_after_its_answer_runs_again_and_does_the_rest() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "answer", text="so")
        if len(desk.runner.turns) == 1:
            raise TurnBroke("coughed")
        return TurnResult("delivered")

    desk = Desk(script)
    _, desk.channels = await watched(desk.clock)
    await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
    await desk.open()
    assert isinstance(await desk.handle_mail(_request()), Nak)
    assert await desk.handle_mail(_request()) == Ack()
    assert len(desk.runner.turns) == 2 and len(desk.mail.published) == 1


@pytest.mark.parametrize("answered", [("0a-1",), ("0a-1", "0a-2")])
def test_questions_that_come_back_beside_a_third_run_again_whatever_was_answered_before_the_turn_broke(
    answered: tuple[str, ...],
) -> None:
    async def script(turn: Turn) -> TurnResult:
        told.append([(await _call(turn, "answer", text="so", channel=each)).text for each in answered])
        if len(desk.runner.turns) == 1:
            raise TurnBroke("coughed")
        return TurnResult("delivered")

    told: list[list[str]] = []
    desk = Desk(script)

    @in_virtual_time
    async def case() -> None:
        _, desk.channels = await watched(desk.clock)
        asked = [f"0a-{number}" for number in (1, 2, 3)]
        for channel in asked:
            await desk.channels.open(channel, Channel("bob", "alice", "how?"))
        first, second, third = [_request(channel, id=f"r{number}") for number, channel in enumerate(asked, 1)]
        await desk.open()
        assert isinstance(await desk.handle_mail(first, second), Nak)
        assert await desk.handle_mail(first, second, third) == Ack()
        assert desk.ran == [["r1", "r2"], ["r1", "r2", "r3"]]
        assert told == [["answered bob"] * len(answered)] * 2, "the re-run finds the answers that it gave"
        assert len(desk.mail.published) == len(answered)

    case()


@in_virtual_time
async def test_a_question_that_was_answered_upon_a_colleagues_word_is_not_worked_again_beside_others() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "answer", text="so", channel="0a-1")
        return TurnResult("delivered")

    desk = Desk(script)
    _, desk.channels = await watched(desk.clock)
    for channel in ("0a-1", "0a-2"):
        await desk.channels.open(channel, Channel("bob", "alice", "how?"))
    word = event("w1", type="a2a_message", source="seat:carol", payload={"channel": "0c", "upon": ["0a-1"]})
    await desk.open()
    assert await desk.handle_mail(delivery(word)) == Ack()
    await desk.handle_mail(_request("0a-1", id="r1"), _request("0a-2", id="r2"))
    assert desk.ran == [["w1"], ["r2"]]


@in_virtual_time
async def test_the_questions_of_a_turn_are_looked_up_at_the_same_time() -> None:
    desk = Desk()
    cells, desk.channels = await watched(desk.clock)
    asked = [f"0a-{number}" for number in range(10)]
    for channel in asked:
        await desk.channels.open(channel, Channel("bob", "alice", "how?"))

    async def slowly(request: str) -> None:
        await desk.clock.sleep(1)

    cells.before = slowly
    await desk.open()
    began = desk.clock.elapsed()
    assert await desk.handle_mail(*[_request(channel, id=channel) for channel in asked]) == Ack()
    assert desk.ran == [asked] and desk.clock.elapsed() - began < 2


@in_virtual_time
async def test_an_ask_costs_the_same_beside_ten_thousand_open_channels_and_a_sweep_of_them_says_that_it_turns() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "ask", to="bob", question=turn.mail[0].id)
        return TurnResult("delivered")

    desk = Desk(script)
    cells, desk.channels = await watched(desk.clock)
    await desk.open()

    async def costs(trigger: str) -> Sequence[str]:
        cells.asked.clear()
        assert await desk.handle_mail(*mails(trigger)) == Ack()
        return tuple(cells.asked)

    alone = await costs("a")
    for number in range(10_000):
        await desk.channels.open(f"{number:x}", Channel("bob", "alice", "how?"))
    assert await costs("b") == alone == ("create",)
    await desk.clock.sleep(3601)

    async def slowly(request: str) -> None:
        await desk.clock.sleep(0.1)

    cells.before = slowly
    beats = [desk.clock.elapsed()]
    swept = await desk.channels.sweep(lambda: beats.append(desk.clock.elapsed()))
    assert len(swept.undelivered) == 10_002
    assert max(later - earlier for earlier, later in pairwise(beats)) <= 0.11


@pytest.mark.parametrize("length", [64, 1_000_000])
def test_a_handle_that_is_none_costs_no_search_and_is_not_told_in_full(length: int) -> None:
    company = Company("acme", tuple(Seat(f"seat-{number}") for number in range(1_000)))
    sentence = str(UnknownSeat("s" * length, company))
    assert len(sentence) < 150 and "no handle is so long" in sentence
