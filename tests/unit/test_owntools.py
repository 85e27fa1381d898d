"""What every seat's agent can do without a tool server: on one seat's dispatch, in virtual time."""

from typing import Any

import pytest
from dispatch_desk import Desk, delivery, event, mails

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.channel import Channel, ChannelClosed
from crewlet.mail.channels import CHANNELS_BUCKET, KEPT_S, Channels
from crewlet.mail.work_key import outgoing_id, work_key
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import Progressed
from crewlet.ports.mail import Ack, Nak
from crewlet.ports.tools import ToolAnswer
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.turn import Turn, TurnBroke, TurnResult


async def _call(turn: Turn, tool: str, **arguments: Any) -> ToolAnswer:
    assert turn.tools is not None
    return await turn.tools.call(tool, arguments)


def _names(turn: Turn) -> set[str]:
    assert turn.tools is not None
    return {info.name for info in turn.tools.infos}


async def _asking(desk: Desk, asker: str = "bob") -> Channels:
    """A channel `0a-1` in which alice was asked."""
    desk.channels = Channels(await LocalCells(desk.clock).open(CHANNELS_BUCKET))
    await desk.channels.open("0a-1", Channel(asker, "alice", "how?", depth=2, trace_id="7f"))
    return desk.channels


def _request(id: str = "r1", channel: str = "0a-1") -> Any:
    return delivery(event(id, type="a2a_request", source="seat:bob", delegation_depth=2, payload={"channel": channel}))


@in_virtual_time
async def test_mail_by_tool_has_the_id_that_its_work_derives_and_proves_nothing_outside() -> None:
    async def script(turn: Turn) -> TurnResult:
        told.append(await _call(turn, "send_mail", to="bob", body="hello", subject="s"))
        raise TurnBroke("coughed")

    told: list[ToolAnswer] = []
    desk = await Desk(script).open()
    for _ in range(2):
        assert isinstance(await desk.handle_mail(delivery(event("a", conversation="c1"))), Nak)
    expected = outgoing_id("alice", work_key("alice", "a"), "bob", 0)
    assert [mail.id for mail in desk.mail.published] == [expected, expected]
    mail = desk.mail.published[0]
    assert (mail.to, mail.subject, mail.conversation, mail.delegation_depth) == ("bob", "s", "c1", 1)
    assert expected in told[0].text


@pytest.mark.parametrize(
    ("tool", "arguments", "says"),
    [
        ("send_mail", {"to": "bobb", "body": "x"}, "did you mean 'bob'"),
        ("send_mail", {"to": "bob"}, "body"),
        ("send_mail", {"to": "bob", "body": 1}, "body"),
        ("send_mail", {"to": "bob", "body": "x", "cc": "carol"}, "cc"),
        ("note", {"text": "x" * 10_001}, "10000"),
        ("ask", {"to": "alice", "question": "?"}, "yourself"),
        ("ask", {"to": "nobody", "question": "?"}, "no seat 'nobody'"),
        ("ask", {"to": "bob", "question": "x" * 100_001}, "100000"),
        ("send_mail", {"to": "bob", "body": ""}, "length >= 1"),
        ("ask", {"to": "bob", "question": ""}, "length >= 1"),
        ("answer", {"text": ""}, "length >= 1"),
        ("note", {"text": ""}, "length >= 1"),
        ("send_mail", {"to": "bob", "body": "\ud800"}, "not JSON"),
        ("send_mail", {"to": "bob\udfff", "body": "x"}, "not JSON"),
        ("ask", {"to": "bob", "question": "x" * 1_048_577}, "bytes"),
        ("answer", {"text": "\x00" * 100_001}, "100000"),
        ("answer", {"text": "x", "channel": "*"}, "no mail of this turn asks in '*'"),
        *(
            (tool, {"to": handle, text: "x"}, "the company has no seat")
            for tool, text in (("send_mail", "body"), ("ask", "question"))
            for handle in ("", "*", ">", "bob.inbox", "bob ", "BOB", "bob\x00", "b\nob", "../bob", "x" * 1_000_000)
        ),
        ("answer", {"text": "x", "channel": "0a-2"}, "no mail of this turn asks in '0a-2'"),
    ],
)
def test_what_an_agent_got_wrong_is_answered_with_an_error_and_nothing_leaves(
    tool: str, arguments: dict[str, Any], says: str
) -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, tool, **arguments)
        assert answer.is_error and says in answer.text, answer
        return TurnResult("blocked")

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        await _asking(desk)
        await desk.open()
        assert await desk.handle_mail(_request()) == Ack()
        assert desk.mail.published == [] and "turn_phase_panicked" not in desk.events()

    case()


@in_virtual_time
async def test_a_note_is_in_the_history_of_its_turn() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "note", text="the customer likes tea")
        return TurnResult("delivered")

    desk = await Desk(script).open()
    await desk.handle_mail(*mails("a"))
    told = [each.text for each in desk.history.kept if isinstance(each, Progressed)]
    assert told == ["note: the customer likes tea"]


@in_virtual_time
async def test_a_question_opens_a_channel_and_is_an_effect_and_a_re_run_asks_the_same_one() -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, "ask", to="bob", question="how?")
        assert not answer.is_error
        raise TurnBroke("coughed")

    desk = Desk(script)
    channels = await _asking(desk)
    await desk.open()
    for trigger in ("a", "a"):
        await desk.open()  # the second ledger knows nothing of the first run
        assert await desk.handle_mail(delivery(event(trigger, delegation_depth=1, trace_id="7f"))) == Ack()
    first, second = desk.mail.published
    assert first.id == second.id
    assert (first.type, first.to, first.source, first.body) == ("a2a_request", "bob", "seat:alice", "how?")
    assert (first.delegation_depth, first.trace_id) == (2, "7f")
    found = await channels.find(first.payload["channel"])
    assert found is not None and (found.channel.asker, found.channel.to, found.channel.state) == (
        "alice",
        "bob",
        "open",
    )


@in_virtual_time
async def test_an_answer_closes_its_channel_and_is_mail_of_the_depth_of_its_question() -> None:
    async def script(turn: Turn) -> TurnResult:
        answer = await _call(turn, "answer", text="like this")
        assert answer == ToolAnswer("answered bob")
        return TurnResult("delivered")

    desk = Desk(script)
    channels = await _asking(desk)
    await desk.open()
    assert await desk.handle_mail(_request()) == Ack()
    (mail,) = desk.mail.published
    assert (mail.type, mail.to, mail.source, mail.body) == ("a2a_message", "bob", "seat:alice", "like this")
    assert (mail.delegation_depth, mail.payload["channel"], mail.is_ledgered) == (2, "0a-1", True)
    found = await channels.find("0a-1")
    assert found is not None and (found.channel.state, found.channel.is_delivered) == ("answered", True)


@in_virtual_time
async def test_a_re_run_that_answers_differently_is_told_that_the_first_answer_counts() -> None:
    async def script(turn: Turn) -> TurnResult:
        texts.append((await _call(turn, "answer", text=f"answer {len(texts)}")).text)
        raise TurnBroke("coughed")

    texts: list[str] = []
    desk = Desk(script)
    await _asking(desk)
    await desk.open()
    for _ in range(2):
        assert isinstance(await desk.handle_mail(_request()), Nak)
    assert [mail.body for mail in desk.mail.published] == ["answer 0"]
    assert "that answer counts" in texts[1]


@in_virtual_time
async def test_a_closed_channel_refuses_the_answer_of_other_work() -> None:
    async def script(turn: Turn) -> TurnResult:
        await channels.answer("0a-1", by="alice", text="first", work="another")
        answer = await _call(turn, "answer", text="mine")
        return TurnResult("blocked", answer.text)

    desk = Desk(script)
    channels = await _asking(desk)
    await desk.open()
    assert await desk.handle_mail(_request()) == Ack()
    completion = await desk.completion("r1")
    assert completion is not None and "it has its answer" in completion.detail
    assert desk.mail.published == []


@in_virtual_time
async def test_an_answer_is_repeated_while_the_broker_is_away_and_sent_as_one_mail() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "answer", text="like this")
        return TurnResult("delivered")

    desk = Desk(script)
    await _asking(desk)
    await desk.open()
    desk.mail.answers = [Unavailable("lost")] * 3
    assert await desk.handle_mail(_request()) == Ack()
    assert len(desk.mail.published) == 1


@in_virtual_time
async def test_answering_is_offered_only_where_something_was_asked() -> None:
    async def script(turn: Turn) -> TurnResult:
        seen.append(_names(turn))
        return TurnResult("no_action")

    seen: list[set[str]] = []
    desk = Desk(script)
    await _asking(desk)
    await desk.open()
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(_request())
    assert seen == [{"send_mail", "note", "ask"}, {"send_mail", "note", "ask", "answer"}]


async def _channels() -> tuple[VirtualClock, Channels]:
    clock = VirtualClock()
    return clock, Channels(await LocalCells(clock).open(CHANNELS_BUCKET))


def _turned() -> None: ...


@in_virtual_time
async def test_a_question_is_given_up_after_an_hour_and_its_late_answer_refused() -> None:
    clock, channels = await _channels()
    await channels.open("0a", Channel("bob", "alice", "how?"))
    await clock.sleep(3599)
    assert (await channels.sweep(_turned)).undelivered == ()
    await clock.sleep(2)
    (given_up,) = (await channels.sweep(_turned)).undelivered
    assert given_up.channel.state == "idle"
    message = given_up.channel.message("0a", "t")
    assert (message.to, message.source, message.payload["is_unanswered"]) == ("bob", "program", True)
    with pytest.raises(ChannelClosed, match="given up"):
        await channels.answer("0a", by="alice", text="late", work="w")


@in_virtual_time
async def test_an_answer_that_was_left_behind_is_found_until_it_is_delivered_and_forgotten_after_a_week() -> None:
    clock, channels = await _channels()
    await channels.open("0a", Channel("bob", "alice", "how?"))
    await channels.answer("0a", by="alice", text="so", work="w")
    assert (await channels.sweep(_turned)).undelivered == (), "whoever answers is still at it"
    await clock.sleep(61)
    assert [found.channel.answer for found in (await channels.sweep(_turned)).undelivered] == ["so"]
    await channels.delivered("0a")
    await clock.sleep(KEPT_S - 1)
    assert (await channels.sweep(_turned)) == (await channels.sweep(_turned))
    assert await channels.find("0a") is not None
    await clock.sleep(2)
    assert (await channels.sweep(_turned)).removed == 1
    assert await channels.find("0a") is None


@pytest.mark.parametrize("name", ["", "../x", "A", "0a.0b", "*", "x" * 65])
def test_what_is_no_channel_is_not_found(name: str) -> None:
    @in_virtual_time
    async def case() -> None:
        _, channels = await _channels()
        assert await channels.find(name) is None
        with pytest.raises(ChannelClosed):
            await channels.answer(name, by="alice", text="x", work="w")

    case()
