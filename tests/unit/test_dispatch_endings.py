"""What becomes of the mail when a turn has ended, one way or another."""

import asyncio

import pytest
from dispatch_desk import Desk, delivery, event, forever, mails, reach_then_wait

from crewlet.kit import logcontext
from crewlet.mail.work_key import outgoing_id, work_key
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Ack, Defer, Nak, Published
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.record import TurnNote
from crewlet.turns.turn import OutgoingMail, Turn, TurnBroke, TurnResult


@in_virtual_time
async def test_a_finished_turn_is_recorded_under_its_tenure_before_its_mail_is_acked() -> None:
    async def blocked(turn: Turn) -> TurnResult:
        return TurnResult("blocked", "no key")

    desk = await Desk(blocked).open()
    assert await desk.handle_mail(*mails("a", "b")) == Ack()
    for trigger in "ab":
        completion = await desk.completion(trigger)
        assert completion is not None
        assert (completion.outcome, completion.detail) == ("blocked", "no key")
        assert (completion.owner, completion.epoch) == ("node-a:1", 7)
        assert completion.turn_id == desk.runner.turns[0].turn_id
        assert completion.work_key == work_key("alice", "ab")


@pytest.mark.proves("LG-11")
@in_virtual_time
async def test_a_turns_names_are_bound_in_its_logs_and_its_tasks_and_nowhere_after_it() -> None:
    seen: list[dict[str, object]] = []

    async def child() -> None:
        seen.append(dict(logcontext.names()))

    async def script(turn: Turn) -> TurnResult:
        await asyncio.create_task(child())
        return TurnResult("delivered")

    desk = await Desk(script).open()
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(*mails("b"))
    assert [names["work_key"] for names in seen] == [work_key("alice", "a"), work_key("alice", "b")]
    assert logcontext.names() == {}
    started = [line for line in desk.logs if line["event"] == "turn_started"]
    assert [(line["seat"], line["epoch"]) for line in started] == [("alice", 7), ("alice", 7)]
    assert started[0]["turn_id"] != started[1]["turn_id"]


@in_virtual_time
async def test_a_turn_that_broke_without_a_trace_comes_back_and_is_not_recorded() -> None:
    async def script(turn: Turn) -> TurnResult:
        raise TurnBroke("the program coughed")

    desk = await Desk(script).open()
    assert await desk.handle_mail(*mails("a")) == Nak("the program coughed")
    assert await desk.completion("a") is None
    assert desk.published == []
    assert "turn_broke" in desk.events()


@in_virtual_time
async def test_a_turn_that_broke_after_it_reached_outside_is_recorded_and_acked() -> None:
    async def script(turn: Turn) -> TurnResult:
        turn.reach("an outside call")
        raise TurnBroke("coughed")

    desk = await Desk(script).open()
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed"
    assert "turn_trigger_skipped" in desk.events()
    (completed,), (skipped,) = desk.told("turn_completed"), desk.told("turn_trigger_skipped")
    assert (completed["outcome"], completed["triggers"]) == ("failed", ["a"])
    assert (skipped["trigger"], skipped["by_turn"]) == ("a", completed["turn_id"])
    assert skipped["reason"] == completed["detail"] == "broke after it had reached outside: coughed"


@in_virtual_time
async def test_mail_that_a_broken_turn_sent_is_sent_once_by_its_re_run() -> None:
    async def script(turn: Turn) -> TurnResult:
        await turn.send(OutgoingMail("bob", "hello"))
        raise TurnBroke("coughed")

    desk = await Desk(script).open()
    assert await desk.handle_mail(*mails("a")) == Nak("coughed")
    assert await desk.handle_mail(*mails("a")) == Nak("coughed")
    first, second = desk.mail.published
    assert first.id == second.id


@in_virtual_time
async def test_a_world_that_did_not_answer_breaks_the_turn_and_is_no_panic() -> None:
    async def script(turn: Turn) -> TurnResult:
        raise Unavailable("nobody answered")

    desk = await Desk(script).open()
    assert isinstance(await desk.handle_mail(*mails("a")), Nak)


class _NoException(BaseException):
    """As extensions that are not written in Python raise where they panic."""


@pytest.mark.parametrize("error", [RuntimeError("boom"), asyncio.CancelledError(), _NoException("boom")], ids=repr)
def test_a_panic_is_recorded_and_acked_and_its_stack_is_in_the_log(error: BaseException) -> None:
    async def script(turn: Turn) -> TurnResult:
        raise error

    @in_virtual_time
    async def case() -> None:
        desk = await Desk(script).open()
        assert await desk.handle_mail(*mails("a")) == Ack()
        completion = await desk.completion("a")
        assert completion is not None and completion.outcome == "failed"
        panicked = next(line for line in desk.logs if line["event"] == "turn_phase_panicked")
        assert isinstance(panicked["exc_info"], BaseException)
        breach = next(line for line in desk.logs if line["event"] == "turn.guard_breach")
        assert breach["kind"] == "unhandled_exception"
        (published,) = desk.told("turn.guard_breach")
        assert (published["seat"], published["kind"]) == ("alice", "unhandled_exception")
        assert published["turn_id"] == desk.runner.turns[0].turn_id
        assert "Traceback" not in str(published)
        assert [event_type for event_type, _ in desk.published][1:] == ["turn_completed", "turn_trigger_skipped"]

    case()


@in_virtual_time
async def test_a_turn_whose_fence_closes_is_ended_and_its_mail_deferred_and_nothing_recorded() -> None:
    ended: list[str] = []

    async def script(turn: Turn) -> TurnResult:
        try:
            return await forever(turn)
        finally:
            await asyncio.sleep(3)
            ended.append(turn.turn_id)

    desk = await Desk(script).open()
    assert desk.fence is not None
    asyncio.get_running_loop().call_later(5, desk.fence.close, "lease_lost")
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert len(ended) == 1, "the answer came before the turn was seen to end"
    assert await desk.completion("a") is None
    assert desk.deferrals == ["alice"]
    assert "turn_fenced" in desk.events()


@in_virtual_time
async def test_a_fenced_turn_that_had_reached_outside_is_recorded_and_acked() -> None:
    desk = await Desk(reach_then_wait).open()
    assert desk.fence is not None
    asyncio.get_running_loop().call_later(5, desk.fence.close, "lease_lost")
    assert await desk.handle_mail(*mails("a")) == Ack()
    completion = await desk.completion("a")
    assert completion is not None and completion.outcome == "failed"
    assert desk.deferrals == []


@in_virtual_time
async def test_a_turn_that_panics_on_the_closed_fence_is_recorded_all_the_same() -> None:
    async def script(turn: Turn) -> TurnResult:
        try:
            return await forever(turn)
        except asyncio.CancelledError:
            raise RuntimeError("clean-up failed") from None

    desk = await Desk(script).open()
    assert desk.fence is not None
    asyncio.get_running_loop().call_later(5, desk.fence.close, "lease_lost")
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert await desk.completion("a") is not None


@pytest.mark.parametrize("error", [None, Fenced("closed"), TurnBroke("coughed")])
def test_whatever_a_turn_says_as_its_fence_closes_nothing_is_written_without_proof(error: Exception | None) -> None:
    @in_virtual_time
    async def case() -> None:
        async def script(turn: Turn) -> TurnResult:
            assert desk.fence is not None
            desk.fence.close("lease_lost")
            if error is not None:
                raise error
            return TurnResult("delivered")

        desk = await Desk(script).open()
        assert isinstance(await desk.handle_mail(*mails("a")), Defer)
        assert await desk.completion("a") is None

    case()


@pytest.mark.proves("FE-06")
@in_virtual_time
async def test_a_fence_that_is_closed_before_the_first_round_lets_nothing_run() -> None:
    desk = await Desk().open()
    assert desk.fence is not None
    desk.fence.close("lease_lost")
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert desk.ran == []


@in_virtual_time
async def test_a_closed_fence_sends_nothing_more() -> None:
    async def script(turn: Turn) -> TurnResult:
        assert desk.fence is not None
        desk.fence.close("lease_lost")
        await turn.send(OutgoingMail("bob", "hello"))
        raise AssertionError("the mail went out")

    desk = await Desk(script).open()
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert desk.mail.published == []


@in_virtual_time
async def test_cancel_returns_when_the_turn_is_seen_to_end_and_its_mail_is_deferred() -> None:
    seen: list[str] = []

    async def script(turn: Turn) -> TurnResult:
        try:
            return await forever(turn)
        finally:
            await asyncio.sleep(3)
            seen.append("turn ended")

    desk = await Desk(script).open()
    handling = asyncio.create_task(desk.handle_mail(*mails("a")))
    while not desk.runner.turns:
        await asyncio.sleep(0.1)
    assert desk.dispatch.is_busy
    await desk.dispatch.cancel("deadline")
    assert seen == ["turn ended"]
    assert await handling == Defer("deadline")
    assert not desk.dispatch.is_busy
    await desk.dispatch.cancel("again")


@in_virtual_time
async def test_a_cancelled_handler_ends_its_turn_and_records_a_proven_effect_before_it_goes() -> None:
    desk = await Desk(reach_then_wait).open()
    handling = asyncio.create_task(desk.handle_mail(*mails("a")))
    while not desk.mail.published:
        await asyncio.sleep(0.1)
    handling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await handling
    assert await desk.completion("a") is not None
    assert not desk.dispatch.is_busy


@in_virtual_time
async def test_mail_that_a_turn_sends_carries_its_cause_and_the_same_ids_at_a_re_run() -> None:
    async def script(turn: Turn) -> TurnResult:
        for to in ("bob", "bob", "carol"):
            await turn.send(OutgoingMail(to, "hello", conversation="c1"))
        return TurnResult("delivered")

    runs: list[list[str]] = []
    for _ in range(2):  # the second ledger knows nothing of the first run
        desk = await Desk(script).open()
        await desk.handle_mail(delivery(event("a", delegation_depth=2, trace_id="7f")))
        runs.append([mail.id for mail in desk.mail.published])
        mail = desk.mail.published[0]
        assert (mail.source, mail.to, mail.conversation, mail.type) == (
            "seat:alice",
            "bob",
            "c1",
            "external_notification",
        )
        assert (mail.delegation_depth, mail.trace_id, mail.node) == (3, "7f", "node-a")
        assert mail.parent_turn_id == desk.runner.turns[0].turn_id
    work = work_key("alice", "a")
    assert runs[0] == [outgoing_id("alice", work, to, n) for to, n in [("bob", 0), ("bob", 1), ("carol", 0)]]
    assert runs[0] == runs[1]


@in_virtual_time
async def test_a_send_that_nobody_answered_is_repeated_under_the_same_id_until_the_fence_closes() -> None:
    async def script(turn: Turn) -> TurnResult:
        sent.append(await turn.send(OutgoingMail("bob", "hello")))
        return TurnResult("delivered")

    sent: list[str] = []
    desk = await Desk(script).open()
    desk.mail.answers = [Unavailable("lost")] * 3
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert [mail.id for mail in desk.mail.published] == sent

    desk.mail.answers = [Unavailable("lost")] * 1000
    desk.fence = desk.new_fence(8, good_until=desk.clock.elapsed() + 30)
    assert isinstance(await desk.handle_mail(*mails("b")), Defer)
    assert len(sent) == 1


@in_virtual_time
async def test_a_duplicate_answer_is_logged_and_counts_as_sent() -> None:
    async def script(turn: Turn) -> TurnResult:
        await turn.send(OutgoingMail("bob", "hello"))
        return TurnResult("delivered")

    desk = await Desk(script).open()
    desk.mail.answers = [Published(1, is_duplicate=True)]
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert "turn_send_duplicate" in desk.events()


@in_virtual_time
async def test_a_watcher_that_raises_changes_nothing() -> None:
    desk = await Desk().open()

    def broken(note: TurnNote) -> None:
        raise RuntimeError("the page is gone")

    desk.watcher = broken
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert "turn_note_failed" in desk.events()


@in_virtual_time
async def test_whoever_watches_hears_the_stages_of_a_turn() -> None:
    async def script(turn: Turn) -> TurnResult:
        turn.progress("half way")
        return TurnResult("delivered")

    desk = await Desk(script).open()
    await desk.handle_mail(*mails("a"))
    assert [(note.stage, note.detail) for note in desk.notes] == [
        ("started", ""),
        ("progress", "half way"),
        ("finished", "delivered"),
    ]
