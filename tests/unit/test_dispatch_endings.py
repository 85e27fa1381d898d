"""What becomes of the mail when a turn has ended, one way or another."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
import structlog
from dispatch_desk import Desk, Script, delivery, event, mails

from crewlet.mail.work_key import outgoing_id, work_key
from crewlet.ports.cells import Cells, Unknown, WriteResult
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import Ack, Defer, Nak, Published
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.guards import GuardBreached
from crewlet.turns.record import TurnNote
from crewlet.turns.turn import OutgoingMail, Turn, TurnBroke, TurnResult


async def _forever(turn: Turn) -> TurnResult:
    await asyncio.Event().wait()
    raise AssertionError


async def _reach_then_wait(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    await turn.send(OutgoingMail("bob", "hello"))
    return await _forever(turn)


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
        seen.append(dict(structlog.contextvars.get_contextvars()))

    async def script(turn: Turn) -> TurnResult:
        await asyncio.create_task(child())
        return TurnResult("delivered")

    desk = await Desk(script).open()
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(*mails("b"))
    assert [names["work_key"] for names in seen] == [work_key("alice", "a"), work_key("alice", "b")]
    assert structlog.contextvars.get_contextvars() == {}
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
            return await _forever(turn)
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
    desk = await Desk(_reach_then_wait).open()
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
            return await _forever(turn)
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
            return await _forever(turn)
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
    desk = await Desk(_reach_then_wait).open()
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


@in_virtual_time
async def test_a_finished_turn_is_acked_only_when_its_record_is_there_however_long_the_ledger_is_away() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    away = _AwayFor(desk.cells, desk.clock, 20)
    await desk.open(cast("Cells", away))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert await desk.completion("a") is not None
    assert desk.clock.elapsed() >= away.back_at


@in_virtual_time
async def test_a_finished_turn_whose_fence_closes_before_its_record_is_there_is_deferred() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 10)
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1000)))
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert "turn_unrecorded" in desk.events()


@pytest.mark.parametrize(
    "error",
    [None, Fenced("closed"), TurnBroke("coughed"), Unavailable("nobody"), GuardBreached("stall", "again"), "stopped"],
)
@pytest.mark.parametrize("closes_after_s", [0.0, 1.0, 3.01, 5.0])
def test_nothing_unproven_is_acked_or_given_up_once_the_fence_has_closed_before_the_ledger_answered(
    error: Exception | str | None, closes_after_s: float
) -> None:
    @in_virtual_time
    async def case() -> None:
        async def script(turn: Turn) -> TurnResult:
            assert desk.fence is not None
            if not closes_after_s:
                desk.fence.close("lease_lost")
            if error == "stopped":
                desk.dispatch.stop("enough")
                await asyncio.sleep(0)
            if isinstance(error, Exception):
                raise error
            return TurnResult("delivered")

        desk = await Desk(script).open()
        assert desk.cells is not None
        desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + max(closes_after_s, 1.0))
        await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1000)))
        outcome = await desk.handle_mail(*mails("a"))
        if isinstance(error, TurnBroke | Unavailable) and closes_after_s:
            assert isinstance(outcome, Nak)  # it needs no ledger
        else:
            assert isinstance(outcome, Defer)
        assert "turn_trigger_skipped" not in desk.events()

    case()


@in_virtual_time
async def test_a_record_is_not_tried_again_when_the_fence_has_closed_in_the_pause_before() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    away = _AwayFor(desk.cells, desk.clock, 1000)
    # The first try is given up after 3 s; the fence closes in the pause that follows.
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 3.01)
    await desk.open(cast("Cells", away))
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert away.tries == 1


@in_virtual_time
async def test_a_ledger_that_stays_away_does_not_stop_a_seat_that_cannot_lose_its_lease() -> None:
    desk = await Desk().open()
    assert desk.cells is not None
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1e6)))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert "turn_unrecorded" in desk.events()


async def _reach_then_break(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    raise TurnBroke("coughed")


async def _reach_then_finish(turn: Turn) -> TurnResult:
    turn.reach("an outside call")
    return TurnResult("delivered")


async def _panic_as_it_is_ended(turn: Turn) -> TurnResult:
    try:
        return await _forever(turn)
    except asyncio.CancelledError:
        raise RuntimeError("clean-up failed") from None


@pytest.mark.parametrize(
    "script",
    [_reach_then_wait, _reach_then_break, _reach_then_finish, _panic_as_it_is_ended],
    ids=lambda it: it.__name__,
)
def test_what_is_certain_is_recorded_after_the_fence_closed_as_soon_as_the_ledger_is_back(script: Script) -> None:
    @in_virtual_time
    async def case() -> None:
        desk = await Desk(script).open()
        assert desk.cells is not None
        away = _AwayFor(desk.cells, desk.clock, 20)
        await desk.open(cast("Cells", away))
        assert desk.fence is not None
        asyncio.get_running_loop().call_later(1, desk.fence.close, "lease_lost")
        assert await desk.handle_mail(*mails("a")) == Ack()
        assert away.tries > 1
        assert await desk.completion("a") is not None
        assert "turn_unrecorded" not in desk.events()

    case()


@in_virtual_time
async def test_a_turn_with_an_effect_is_given_up_without_a_record_when_the_ledger_stays_away() -> None:
    desk = await Desk(_reach_then_break).open()
    assert desk.cells is not None
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 1)
    await desk.open(cast("Cells", _AwayFor(desk.cells, desk.clock, 1e6)))
    assert await desk.handle_mail(*mails("a")) == Ack(), "a re-run would do the same again"
    assert "turn_unrecorded" in desk.events()
    assert desk.clock.elapsed() <= 1070


class _AwayFor:
    """A bucket that answers no write for a while."""

    def __init__(self, cells: Cells, clock: VirtualClock, seconds: float) -> None:
        self._cells = cells
        self._clock = clock
        self.back_at = clock.elapsed() + seconds
        self.tries = 0

    async def has_none(self, keys: Sequence[str]) -> bool:
        return False

    async def read(self, key: str) -> object:
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        how["admit"]()
        self.tries += 1
        if self._clock.elapsed() < self.back_at:
            await self._clock.sleep(3)
            return Unknown("nobody answered")
        return await self._cells.create(key, value, **how)
