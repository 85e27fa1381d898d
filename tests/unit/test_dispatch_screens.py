"""What happens to a partition before a turn runs on it."""

import asyncio
from typing import cast

import pytest
from dispatch_desk import BrokenCells, Desk, delivery, event, mails

from crewlet.mail.work_key import work_key
from crewlet.ports.cells import Cells
from crewlet.ports.history import Dispatched
from crewlet.ports.mail import Ack, Bury, Defer, Delivery
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.slots import Slots
from crewlet.turns.turn import OutcomeWord, Turn, TurnResult


@in_virtual_time
async def test_mail_of_a_seat_that_is_not_owned_here_is_deferred_and_the_deferral_noted() -> None:
    desk = await Desk().open()
    desk.owned = None
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert desk.deferrals == ["alice"]
    assert desk.ran == []
    assert desk.events() == ["turn_deferred"]


@in_virtual_time
async def test_a_seat_without_a_tenure_here_defers() -> None:
    desk = await Desk().open()
    desk.fence = None
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert desk.ran == []


@in_virtual_time
async def test_one_turn_takes_the_whole_partition_in_order() -> None:
    desk = await Desk().open()
    assert await desk.handle_mail(*mails("b", "a", "c")) == Ack()
    assert desk.ran == [["b", "a", "c"]]


@pytest.mark.proves("IN-02")
@in_virtual_time
async def test_duplicates_of_one_event_are_one_event_at_the_place_where_it_was_first_seen() -> None:
    desk = await Desk().open()
    assert await desk.handle_mail(*mails("b", "a", "b", "c", "a")) == Ack()
    assert desk.ran == [["b", "a", "c"]]


@pytest.mark.proves("LG-01")
@in_virtual_time
async def test_only_the_unfinished_part_of_a_partition_runs_and_under_its_own_key() -> None:
    desk = await Desk().open()
    await desk.handle_mail(*mails("a", "b"))
    assert await desk.handle_mail(*mails("a", "b", "c")) == Ack()
    assert desk.ran == [["a", "b"], ["c"]]
    assert [turn.work_key for turn in desk.runner.turns] == [work_key("alice", "ab"), work_key("alice", "c")]
    assert [line["trigger"] for line in desk.logs if line["event"] == "turn_trigger_skipped"] == ["a", "b"]


@in_virtual_time
async def test_a_partition_that_is_finished_already_is_acked_without_a_turn() -> None:
    desk = await Desk().open()
    await desk.handle_mail(*mails("a"))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert len(desk.ran) == 1


@pytest.mark.proves("LG-02")
@in_virtual_time
async def test_a_ledger_that_cannot_be_read_or_written_lets_the_turn_run_and_the_mail_be_acked() -> None:
    desk = await Desk().open(cast("Cells", BrokenCells()))
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert desk.ran == [["a"]]
    assert "dispatch_panicked" not in desk.events(), "what cannot be written is no error to the turn"


@pytest.mark.proves("LG-04")
@in_virtual_time
async def test_an_event_that_is_not_ledgered_comes_along_and_does_not_change_the_key() -> None:
    desk = await Desk().open()
    outcome = await desk.handle_mail(*mails("a"), delivery(event("x", type="observed"), sequence=2))
    assert outcome == Ack()
    assert desk.ran == [["a", "x"]]
    assert desk.runner.turns[0].work_key == work_key("alice", ["a"])
    assert await desk.completion("x") is None


@pytest.mark.proves("LG-04")
@in_virtual_time
async def test_exactly_four_types_make_a_turn_and_others_alone_are_logged_and_dropped() -> None:
    desk = await Desk().open()
    ledgered = ["task_assigned", "external_notification", "a2a_request", "a2a_message"]
    for type in [*ledgered, "reflection_due", "agent_spawned", ""]:
        assert await desk.handle_mail(delivery(event(f"id-{type}", type=type))) == Ack()
    assert desk.ran == [[f"id-{type}"] for type in ledgered]
    assert desk.events().count("event_dropped") == 3


@pytest.mark.proves("LG-08")
@in_virtual_time
async def test_what_one_seat_finished_is_still_another_seats_to_work() -> None:
    alice = await Desk().open()
    bob = await Desk(handle="bob").open(alice.cells)
    await alice.handle_mail(*mails("a"))
    await bob.handle_mail(*mails("a"))
    assert bob.ran == [["a"]]


@in_virtual_time
async def test_a_delivery_that_is_no_event_is_named_and_buried_before_anything_runs() -> None:
    desk = await Desk().open()
    broken, *rest = delivery(b"\xff{", sequence=9, id="bad"), *mails("a")
    answer = await desk.answer((broken, *rest))
    assert isinstance(answer, Bury) and answer.delivery is broken and answer.reason.startswith("not an event: ")
    assert desk.ran == [] and await desk.completion("bad") is None, "a letter is no end of its work"
    assert await desk.handle_mail(*rest) == Ack()
    assert desk.ran == [["a"]]
    told = [each for each in desk.history.kept if isinstance(each, Dispatched)]
    assert [(each.triggers, each.answer) for each in told] == [(("bad",), "bury")]


@in_virtual_time
async def test_what_is_no_event_is_not_buried_by_a_node_that_does_not_own_its_seat() -> None:
    desk = await Desk().open()
    desk.owned = None
    assert isinstance(await desk.answer((delivery(b"rubbish", id=""),)), Defer)


@in_virtual_time
async def test_mail_that_is_finished_is_not_acked_by_a_node_whose_fence_closed_meanwhile() -> None:
    desk = await Desk().open()
    await desk.handle_mail(*mails("a"))
    read = desk.ledger.finished

    async def slow(handle: str, ids: object, chat_messages: object) -> object:
        answer = await read(handle, ("a",))
        assert desk.fence is not None
        desk.fence.close("lease_lost")
        return answer

    desk.ledger.finished = slow  # type: ignore[method-assign,assignment]
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)


@pytest.mark.proves("IN-01")
@in_virtual_time
async def test_mail_that_raced_a_hold_is_parked_before_the_ledger_is_asked_and_the_deferral_noted() -> None:
    desk = await Desk().open()
    await desk.handle_mail(*mails("a"))
    desk.holds = ["seat_paused"]
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert desk.deferrals == ["alice"]
    assert desk.events()[-1] == "turn_parked" and desk.logs[-1]["refusal"] == "seat_paused"
    assert desk.dispatch.refusal is not None and desk.dispatch.refusal.name == "seat_paused"
    desk.holds = []
    assert await desk.handle_mail(*mails("a")) == Ack()
    assert desk.dispatch.refusal is None


@in_virtual_time
async def test_a_node_whose_posture_is_shed_defers_what_it_owns() -> None:
    desk = await Desk().open()
    desk.posture = "shed"
    assert isinstance(await desk.handle_mail(*mails("a")), Defer)
    assert (desk.ran, desk.deferrals, desk.events()) == ([], ["alice"], ["turn_deferred"])


@pytest.mark.proves("IN-05")
@in_virtual_time
async def test_a_seat_that_was_paused_while_its_mail_waited_for_a_slot_does_not_start() -> None:
    slots = Slots(1)
    desk = await Desk(slots=slots).open()
    taken = await slots.take()
    waiting = asyncio.create_task(desk.handle_mail(*mails("a")))
    await asyncio.sleep(1)
    desk.holds = ["seat_paused"]
    desk.dispatch.stop("paused by a person")
    taken.release()
    assert isinstance(await waiting, Defer)
    assert (desk.ran, await desk.completion("a"), slots.running) == ([], None, 0)


def _chat(id: str, message: str) -> Delivery:
    return delivery(event(id, chat_message=message))


def _answers(*messages: str, outcome: OutcomeWord = "delivered") -> Desk:
    async def script(turn: Turn) -> TurnResult:
        for message in messages:
            turn.answered(message)
        return TurnResult(outcome)

    return Desk(script)


@in_virtual_time
async def test_a_message_that_a_later_turn_answered_in_its_thread_is_skipped_and_finished_under_its_own_id() -> None:
    desk = await _answers("slack:C1:1.0").open()
    assert await desk.handle_mail(_chat("later", "slack:C1:2.0")) == Ack()
    failed = delivery(event("failed", chat_message="slack:C1:1.0", digest="d"))
    assert await desk.handle_mail(failed) == Ack()
    assert desk.ran == [["later"]]
    (skipped,) = [line for line in desk.logs if line["event"] == "turn_trigger_skipped"]
    assert (skipped["trigger"], skipped["reason"]) == ("failed", "a later turn answered it in its thread")
    assert skipped["by_turn"] == desk.runner.turns[0].turn_id
    completion = await desk.completion("failed")
    assert completion is not None and (completion.outcome, completion.digest) == ("delivered", "d")


@in_virtual_time
async def test_only_the_seat_whose_turn_answered_a_message_is_through_with_it() -> None:
    alice = await _answers("slack:C1:1.0").open()
    await alice.handle_mail(_chat("later", "slack:C1:2.0"))
    bob = await Desk(handle="bob").open(alice.cells)
    await bob.handle_mail(_chat("failed", "slack:C1:1.0"))
    assert bob.ran == [["failed"]]


@pytest.mark.parametrize("outcome", ["failed", "blocked"])
@in_virtual_time
async def test_a_turn_that_did_not_get_to_answer_leaves_the_waiting_message_to_its_own_turn(
    outcome: OutcomeWord,
) -> None:
    desk = await _answers("slack:C1:1.0", outcome=outcome).open()
    await desk.handle_mail(_chat("later", "slack:C1:2.0"))
    await desk.handle_mail(_chat("failed", "slack:C1:1.0"))
    assert desk.ran == [["later"], ["failed"]]


@in_virtual_time
async def test_of_more_answered_messages_than_a_turn_may_have_the_rest_comes_back() -> None:
    desk = await _answers(*(f"m{number // 2}" for number in range(10_000))).open()
    await desk.handle_mail(_chat("later", "x"))
    assert desk.events().count("answered_beyond_bound") == 1
    await desk.handle_mail(_chat("first", "m999"), _chat("last", "m1000"))
    assert desk.ran == [["later"], ["last"]]


@in_virtual_time
async def test_a_chat_message_and_a_trigger_of_one_name_are_two() -> None:
    desk = await _answers("x").open()
    await desk.handle_mail(*mails("a"))
    await desk.handle_mail(*mails("x"), _chat("y", "a"))
    assert desk.ran == [["a"], ["x", "y"]]
