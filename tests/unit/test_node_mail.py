"""What a sender and an operator see of mail, on whole nodes: states, inboxes, dead letters."""

import base64
from dataclasses import replace

import pytest
from node_rig import Fleet
from structlog.testing import capture_logs

from crewlet.company.budgets import Budget
from crewlet.company.model import Company, Seat
from crewlet.mail import topics
from crewlet.mail.outbox import UnknownSeat
from crewlet.mail.pauses import Wish
from crewlet.mail.reuse import IdReused
from crewlet.node.assembly import Node
from crewlet.node.letterdesk import NoEvent, UnknownLetter
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.virtual import in_virtual_time

LONG_S = 3600.0


async def state(node: Node, message_id: str, seat: str = "a") -> str:
    return (await node.commands.mail_outcome(seat, message_id)).state


async def buried(fleet: Fleet, node: Node, message_id: str) -> str:
    """Send mail that breaks every turn, and wait until it is a dead letter; the letter's id."""
    fleet.poison.add(message_id)
    await fleet.send("a", message_id)
    before = node.health().dead_letters or 0
    await fleet.until(lambda: (node.health().dead_letters or 0) > before, "it is dead-lettered", LONG_S)
    outcome = await node.commands.mail_outcome("a", message_id)
    assert outcome.state == "dead_lettered" and outcome.dead_letter is not None
    return outcome.dead_letter


@in_virtual_time
async def test_a_mails_state_is_told_at_every_stage_and_on_every_node() -> None:
    fleet = Fleet(("a",), turn_s=20)
    one = await fleet.node("n1")
    two = await fleet.node("n2")
    assert await state(one, "m") == await state(two, "m") == "unknown"
    await fleet.send("a", "m")
    for node in (one, two):
        assert await state(node, "m") == "open"
    await fleet.until(lambda: fleet.runs, "it runs")
    for node in (one, two):
        assert await state(node, "m") == "open"
    await fleet.until(lambda: fleet.finished("m"), "it is finished")
    await fleet.clock.sleep(1)
    for node in (one, two):
        outcome = await node.commands.mail_outcome("a", "m")
        assert (outcome.state, outcome.outcome) == ("finished", "delivered")
    assert await state(one, "never sent") == "unknown"
    await fleet.close()


@in_virtual_time
async def test_mail_whose_turns_break_is_open_and_says_how_often_and_why() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    fleet.poison.add("m")
    await fleet.send("a", "m")
    await fleet.until(lambda: len(fleet.runs) == 4, "it was tried four times")
    await fleet.clock.sleep(0.5)
    outcome = await node.commands.mail_outcome("a", "m")
    assert (outcome.state, outcome.deliveries, outcome.detail) == ("open", 4, "m is poison")
    fleet.poison.clear()
    await fleet.until(lambda: fleet.finished("m"), "it is finished")
    await fleet.close()


@in_virtual_time
async def test_mail_that_breaks_its_turns_for_good_is_a_dead_letter_and_a_replay_finishes_it() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    letter_id = await buried(fleet, node, "m")
    assert len(fleet.runs) == 25
    assert (await node.commands.mail_outcome("a", "m")).detail == "m is poison"
    detail = await node.commands.letters.show(letter_id)
    assert (detail.letter.seat, detail.letter.mail, detail.letter.deliveries) == ("a", "m", 25)
    assert (detail.body, detail.type) == ("m", "external_notification")
    assert [each.number for each in detail.history] == list(range(1, 26))
    assert {(each.owner, each.reason) for each in detail.history} == {("n1:1", "m is poison")}
    assert len((await node.commands.letters.list("a")).letters) == 1
    assert (await node.commands.letters.list("b")).letters == ()
    fleet.poison.clear()
    replayed = await node.commands.letters.replay(letter_id)
    assert not replayed.is_repeat
    await fleet.until(lambda: fleet.finished("m"), "the replay is finished")
    await fleet.clock.sleep(1)
    assert await state(node, "m") == "finished"
    assert (await node.commands.letters.replay(letter_id)).is_repeat
    await fleet.clock.sleep(60)
    assert len(fleet.finished("m")) == 1
    (short,) = (await node.commands.letters.list()).letters
    assert short.replay == "done"
    await fleet.close()


@in_virtual_time
async def test_a_replay_that_breaks_again_is_a_new_dead_letter_with_its_own_budget() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    first = await buried(fleet, node, "m")
    await node.commands.letters.replay(first)
    await fleet.until(lambda: node.health().dead_letters == 2, "it is dead-lettered again", LONG_S)
    assert len(fleet.runs) == 50
    assert [each.deliveries for each in (await node.commands.letters.list("a")).letters] == [25, 25]
    assert (await node.commands.mail_outcome("a", "m")).dead_letter != first
    await fleet.close()


@in_virtual_time
async def test_what_is_no_event_is_shown_as_far_as_it_can_be_read_and_is_not_replayed() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    raw = b"to \x1b[31mwhom\xff it may concern" + b"." * 100_000
    mail = TwinMail(fleet.broker, clock=fleet.clock)
    await mail.start()
    await mail.publish(topics.inbox("a").topic, raw, message_id="raw")
    await mail.stop()
    await fleet.until(lambda: node.health().dead_letters == 1, "it is buried", LONG_S)
    (letter,) = (await node.commands.letters.list("a")).letters
    assert (letter.mail, letter.deliveries) == ("raw", 1)
    detail = await node.commands.letters.show(letter.id)
    assert (detail.type, detail.size_bytes) == ("", len(raw))
    assert base64.b64decode(detail.data) == raw
    assert detail.body.startswith("to \\x1b[31mwhom\\xff it may concern...") and len(detail.body) < 3000
    with pytest.raises(NoEvent, match="is not an event"):
        await node.commands.letters.replay(letter.id)
    assert (await node.commands.letters.drop(letter.id)).mail == "raw"
    assert fleet.runs == []
    await fleet.close()


@in_virtual_time
async def test_a_removed_seats_dead_letter_is_shown_and_not_replayed() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    letter_id = await buried(fleet, node, "m")
    desk = replace(node.commands.letters, company=lambda: Company("acme", (Seat("b"),)))
    assert len((await desk.list("a")).letters) == 1
    with pytest.raises(UnknownSeat):
        await desk.list("aa")
    assert (await desk.show(letter_id)).letter.seat == "a"
    with pytest.raises(UnknownSeat):
        await desk.replay(letter_id)
    assert await state(node, "m") == "dead_lettered"
    await fleet.close()


@in_virtual_time
async def test_a_drop_is_the_way_out_and_names_itself_in_the_log() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    letter_id = await buried(fleet, node, "m")
    with capture_logs() as logs:
        dropped = await node.commands.letters.drop(letter_id)
    assert (dropped.id, dropped.seat, dropped.mail) == (letter_id, "a", "m")
    (line,) = [each for each in logs if each["event"] == "dead_letter_dropped"]
    assert (line["letter"], line["id"], line["seat"], line["node"]) == (letter_id, "m", "a", "n1")
    for verb in (node.commands.letters.drop, node.commands.letters.show, node.commands.letters.replay):
        with pytest.raises(UnknownLetter):
            await verb(letter_id)
    assert await state(node, "m") == "unknown"
    with pytest.raises(Misuse):
        await node.commands.letters.show("nonsense")
    with pytest.raises(Misuse):
        await node.commands.letters.list("no such Handle")
    await fleet.close()


@in_virtual_time
async def test_an_inbox_says_what_waits_how_old_it_is_and_who_reads_it() -> None:
    fleet = Fleet(("a",), turn_s=100)
    node = await fleet.node("n1")
    mail = await node.commands.seat_mail("a")
    assert (mail.waiting, mail.in_hand, mail.oldest_at, mail.node, mail.held) == (0, 0, None, "n1", "")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "it runs")
    for name in ("two", "three"):
        await fleet.clock.sleep(10)
        await fleet.send("a", name)
    mail = await node.commands.seat_mail("a")
    assert (mail.waiting, mail.in_hand) == (2, 1)
    assert mail.oldest_age_s is not None and 19 < mail.oldest_age_s < 22
    other = await fleet.node("n2")
    seen = await other.commands.seat_mail("a")
    assert (seen.waiting, seen.in_hand, seen.node, seen.held, seen.is_held_known) == (2, 1, "n1", "", True)
    assert seen.why.startswith("a has been at work since ")
    with pytest.raises(UnknownSeat):
        await node.commands.seat_mail("nobody")
    await fleet.close()


@in_virtual_time
async def test_an_inbox_that_nobody_reads_says_why() -> None:
    fleet = Fleet(("a",))
    fleet.roles = frozenset({"ingress"})
    node = await fleet.node("n1")
    await fleet.send("a", "m")
    await fleet.clock.sleep(5)
    mail = await node.commands.seat_mail("a")
    assert (mail.waiting, mail.node, mail.is_held_known) == (1, None, True)
    assert mail.held.startswith("no live node may run it") and mail.why.startswith("a: no live node may run it")
    fleet.roles = frozenset({"seats"})
    await fleet.node("n2")
    await fleet.until(lambda: fleet.finished("m"), "it is read")
    await fleet.close()


@in_virtual_time
async def test_an_inbox_of_a_removed_seat_is_shown_until_it_is_deleted_and_then_how_much_went_with_it() -> None:
    fleet = Fleet(("a", "b"), roles=frozenset({"seats", "workers"}), removed_seat_grace_s=600.0)
    node = await fleet.node("n1")
    await node.commands.pausing.pause("a", Wish("p"))
    await fleet.until(lambda: "a" in node.seats.held_back(), "it is held")
    await fleet.send("a", "m")
    await node.adopt(Company("Test", (Seat("b"),)))
    await fleet.until(lambda: "a" not in node.host.held(), "it is given back")
    shown = await node.commands.seat_mail("a")
    assert shown.waiting + shown.in_hand == 1 and "left the company" in shown.held
    assert (await node.commands.duties.run("maintenance")).outcome == "done"
    shown = await node.commands.seat_mail("a")
    assert shown.left_at is not None and shown.deleted_from is not None and shown.oldest_age_s is not None
    assert (shown.deleted_from - shown.left_at).total_seconds() == 600.0
    await fleet.clock.sleep(LONG_S)
    shown = await node.commands.seat_mail("a")
    assert (shown.waiting, shown.retired_messages, shown.left_at) == (0, 1, None)
    assert shown.retired_at is not None
    with pytest.raises(UnknownSeat):
        await node.commands.seat_mail("never-there")
    await fleet.close()


@in_virtual_time
async def test_every_node_says_why_the_mail_of_a_paused_or_overspent_seat_is_not_read() -> None:
    fleet = Fleet(("a", "b"))
    company = replace(fleet.company, seats=(Seat("a"), Seat("b", budget=Budget(day=0))))
    fleet.company = company
    one = await fleet.node("n1")
    two = await fleet.node("n2")
    await fleet.until(lambda: fleet.holder("a") and fleet.holder("b"), "both are held")
    await one.commands.pausing.pause("a", Wish("p", "ada", "wrong customer"))
    await fleet.clock.sleep(1)
    for node in (one, two):
        paused, spent = await node.commands.seat_mail("a"), await node.commands.seat_mail("b")
        assert (paused.held, spent.held) == ("seat_paused", "budget_window")
        assert paused.why.startswith("a was paused by ada (wrong customer); `crewlet seat resume a`")
        assert spent.why.startswith("b has spent 0 of 0 tokens this day, so that b is held back until 2030-01-02")
    await one.commands.pausing.resume("a")
    await fleet.clock.sleep(1)
    assert [(await node.commands.seat_mail("a")).why for node in (one, two)] == ["", ""]
    await fleet.close()


@in_virtual_time
async def test_an_id_that_has_a_dead_letter_is_not_sent_anew_on_any_node_until_the_letter_is_dropped() -> None:
    fleet = Fleet(("a",))
    one = await fleet.node("n1")
    two = await fleet.node("n2")
    sender = one if fleet.holder("a") == "n1" else two
    letter_id = await buried(fleet, sender, "m")
    runs = len(fleet.runs)
    await fleet.clock.sleep(300)  # past the two minutes in which the broker itself knows an id
    for node in (one, two):
        sent = await node.commands.send_mail("a", "m", message_id="m")
        assert (sent.is_duplicate, sent.dead_letter) == (True, letter_id)
    await fleet.clock.sleep(60)
    assert len(fleet.runs) == runs
    fleet.poison.clear()
    await two.commands.letters.replay(letter_id)
    sent = await one.commands.send_mail("a", "m", message_id="m")
    assert (sent.is_duplicate, sent.dead_letter) == (True, None)
    await fleet.until(lambda: fleet.finished("m"), "the replay is finished")
    await fleet.clock.sleep(1)
    sent = await one.commands.send_mail("a", "m", message_id="m")
    assert (sent.is_duplicate, sent.dead_letter) == (True, None)
    await one.commands.letters.drop(letter_id)
    assert (await two.commands.send_mail("a", "m", message_id="m")).is_duplicate, "it is finished, letter or not"
    await one.commands.letters.drop(await buried(fleet, sender, "n"))
    fleet.poison.clear()
    await fleet.clock.sleep(300)
    assert not (await two.commands.send_mail("a", "n", message_id="n")).is_duplicate
    await fleet.until(lambda: fleet.finished("n"), "it is worked as new mail")
    await fleet.close()


@in_virtual_time
async def test_an_id_that_only_the_broker_still_knows_is_refused_until_it_has_forgotten_it() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    stranger = TwinMail(fleet.broker, clock=fleet.clock)
    await stranger.start()
    await stranger.publish(topics.inbox("a").topic, b"no event", message_id="m")
    await fleet.until(lambda: node.health().dead_letters, "it is buried at once")
    letter_id = (await node.commands.mail_outcome("a", "m")).dead_letter
    assert letter_id is not None
    await node.commands.letters.drop(letter_id)
    with pytest.raises(Unavailable, match="two minutes"):
        await node.commands.send_mail("a", "m", message_id="m")
    await fleet.clock.sleep(121)
    assert not (await node.commands.send_mail("a", "m", message_id="m")).is_duplicate
    await fleet.until(lambda: fleet.finished("m"), "it is worked")
    await fleet.close()


@in_virtual_time
async def test_an_id_that_is_used_for_another_mail_is_refused_for_as_long_as_the_first_is_known() -> None:
    fleet = Fleet(("a",), turn_s=5)
    one = await fleet.node("n1")
    two = await fleet.node("n2")
    sender = one if fleet.holder("a") == "n1" else two

    async def refuses_another(message_id: str) -> None:
        for node in (one, two):
            for said in ({"body": "other"}, {"body": message_id, "subject": "other"}):
                with pytest.raises(IdReused, match=f"id '{message_id}' was sent before"):
                    await node.commands.send_mail("a", message_id=message_id, **said)
            assert (await node.commands.send_mail("a", message_id, message_id=message_id)).is_duplicate

    await fleet.send("a", "waits")
    await refuses_another("waits")
    await fleet.until(lambda: fleet.finished("waits"), "it is finished")
    await fleet.clock.sleep(300)  # past the two minutes in which the broker itself knows an id
    await refuses_another("waits")
    await buried(fleet, sender, "dead")
    await refuses_another("dead")
    assert {trigger for run in fleet.runs for trigger in run.triggers} == {"waits", "dead"}
    await fleet.close()


@in_virtual_time
async def test_an_id_of_which_nobody_knows_the_text_any_more_is_taken_for_a_repeat() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    stranger = TwinMail(fleet.broker, clock=fleet.clock)
    await stranger.start()
    await stranger.publish(topics.inbox("a").topic, b"no event", message_id="m")
    await fleet.until(lambda: node.health().dead_letters, "it is buried at once")
    sent = await node.commands.send_mail("a", "m", message_id="m")
    assert sent.is_duplicate and sent.dead_letter
    await fleet.close()
