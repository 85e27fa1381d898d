"""Whole nodes together: handing seats over without losing or repeating mail."""

import asyncio

import msgspec
import pytest
from node_rig import TTL_S, Fleet
from structlog.testing import capture_logs

from crewlet.company.model import Company, Seat
from crewlet.kit import wording
from crewlet.mail import topics
from crewlet.mail.pauses import Wish
from crewlet.node.documents import TELL_AFTER_S
from crewlet.node.troubles import TroublesSnapshot, told
from crewlet.seats.lease import SEAT, Granted
from crewlet.seats.leases import leases_bucket
from crewlet.seats.records import decode_lease, encode
from crewlet.testing.virtual import in_virtual_time


@in_virtual_time
async def test_a_node_alone_runs_the_whole_company_and_a_second_one_takes_its_share() -> None:
    fleet = Fleet(("a", "b", "c", "d"))
    await fleet.node("n1")
    assert fleet.nodes["n1"].health().seats == ("a", "b", "c", "d")
    await fleet.node("n2")
    await fleet.until(lambda: len(fleet.nodes["n2"].health().seats) == 2, "the shares are even")
    assert len(fleet.nodes["n1"].health().seats) == 2
    snapshot = await fleet.nodes["n2"].fleet()
    assert [(row.id, row.seats) for row in snapshot.nodes] == [("n1", 2), ("n2", 2)]
    assert all(row.node in ("n1", "n2") and row.epoch for row in snapshot.seats)
    assert snapshot.unplaceable == ()
    await fleet.close()


@in_virtual_time
async def test_while_no_node_is_live_it_is_not_said_that_no_node_fits() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    fleet.cut.add("n1")
    await fleet.clock.sleep(2 * TTL_S)
    assert not node.health().has_presence and node.health().presence_error
    fleet.cut.clear()
    snapshot = await node.fleet()
    assert snapshot.nodes == () and not any(seat.node for seat in snapshot.seats)
    assert snapshot.unplaceable == () == snapshot.unmanned_roles
    assert (await node.commands.seat_mail("a")).held.startswith("no node of the fleet is live")
    await fleet.close()


@in_virtual_time
async def test_a_seat_that_nobody_holds_says_since_when_whether_it_was_given_back_or_lapsed() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    leases = node.leases
    won = await leases.claim("seat:lapsed", "gone:1", ttl_s=2)
    assert isinstance(won, Granted)
    lapses_at = won.lease.expires_at
    await node.host.drain()
    released_at = (await node.leases.survey(SEAT))[1]["a"]
    await fleet.clock.sleep(3)
    live, ended = await leases.survey(SEAT)
    assert live == [] and ended["lapsed"] == lapses_at and ended["a"] == released_at
    (a, b) = (await node.fleet()).seats
    assert (a.node, a.free_since) == (None, released_at) and b.free_since is not None
    mail = await node.commands.seat_mail("a")
    assert mail.why.endswith(f"(free since {wording.instant(released_at)})")
    await fleet.clock.sleep(TTL_S)
    assert (await node.fleet()).seats[0].free_since is None
    await fleet.close()


@in_virtual_time
async def test_a_claim_that_failed_is_not_taken_for_the_end_of_a_tenure() -> None:
    fleet = Fleet(("a",))
    node = await fleet.node("n1")
    await node.host.drain()
    (_, ended), released = await node.leases.survey(SEAT), await fleet.store.open(leases_bucket(TTL_S))
    entry = await released.read("seat.a")
    assert entry is not None and "a" in ended
    leftover = msgspec.structs.replace(decode_lease(entry.value), acquired_at=None)
    await released.replace("seat.a", encode(leftover), expect=entry.revision)
    assert (await node.leases.survey(SEAT))[1] == {}
    await fleet.close()


@pytest.mark.proves("EE-01")
@in_virtual_time
async def test_a_node_cut_off_from_renewals_runs_nothing_and_its_peer_runs_the_mail_once() -> None:
    fleet = Fleet(("a",))
    await fleet.node("n1")
    await fleet.node("n2")
    fleet.cut.add("n1")
    await fleet.until(lambda: fleet.nodes["n1"].host.may_start("a") is None, "n1 stopped admitting")
    assert fleet.nodes["n1"].health().seats == ("a",)
    await fleet.nodes["n2"].commands.send_mail("a", "late", message_id="late")
    await fleet.until(lambda: fleet.finished("late"), "the peer took over")
    assert [run.node for run in fleet.runs] == ["n2"]
    assert fleet.runs[0].epoch == 2
    fleet.cut.clear()
    await asyncio.sleep(3 * TTL_S)
    assert len(fleet.runs) == 1
    await fleet.close()


@pytest.mark.proves("EE-02")
@in_virtual_time
async def test_a_turn_whose_lease_moves_stops_at_the_fence_and_runs_once_on_the_successor() -> None:
    fleet = Fleet(("a",), turn_s=2 * TTL_S)
    await fleet.node("n1")
    await fleet.node("n2")
    await fleet.send("a", "long")
    await fleet.until(lambda: fleet.runs, "it runs")
    fleet.cut.add("n1")
    await fleet.until(lambda: fleet.finished("long"), "the successor finished it")
    first, second = fleet.runs
    assert (first.node, first.ended_at) == ("n1", None)
    assert second.node == "n2" and second.epoch > first.epoch
    completion = await fleet.nodes["n2"].commands.mail_outcome("a", "long")
    assert completion.outcome == "delivered"
    fleet.cut.clear()
    await asyncio.sleep(2 * TTL_S)
    assert len(fleet.runs) == 2
    await fleet.close()


@pytest.mark.proves("EE-04")
@in_virtual_time
async def test_mail_sent_while_no_node_runs_is_run_in_order_and_once_by_a_new_fleet() -> None:
    fleet = Fleet(("a", "b"))
    old = await fleet.node("old")
    outbox = old.commands.outbox
    await fleet.stop("old")
    for number in range(3):
        await fleet.publish(outbox, "a", f"m{number}")
    await fleet.node("new-1")
    await fleet.node("new-2")
    await fleet.until(lambda: all(fleet.finished(f"m{number}") for number in range(3)), "all ran")
    assert [run.triggers for run in fleet.runs] == [("m0",), ("m1",), ("m2",)]
    await fleet.close()


@pytest.mark.proves("SU-01")
@in_virtual_time
async def test_every_node_makes_every_mailbox_also_of_seats_it_will_not_run() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    for handle in ("a", "b"):
        for subscription in topics.mailbox(handle):
            assert await node.commands.outbox.mail.waiting(subscription) is not None
    await fleet.close()


@pytest.mark.proves("QU-06")
@in_virtual_time
async def test_a_drain_lets_the_running_turn_end_and_hands_the_rest_to_the_peer() -> None:
    fleet = Fleet(("a",), turn_s=20)
    await fleet.node("n1")
    await fleet.node("n2")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "the first runs")
    await fleet.send("a", "two")
    await fleet.stop("n1")
    assert fleet.finished("one") and fleet.runs[0].node == "n1"
    await fleet.until(lambda: fleet.finished("two"), "the second runs")
    assert [run.node for run in fleet.runs] == ["n1", "n2"]
    await fleet.close()


@in_virtual_time
async def test_a_restart_under_the_same_id_takes_its_seats_again_at_a_higher_epoch() -> None:
    fleet = Fleet(("a",))
    await fleet.node("n1")
    await fleet.stop("n1")
    await fleet.node("n1", incarnation=2)
    await fleet.until(lambda: fleet.holder("a"), "it is held again")
    term = fleet.nodes["n1"].host.term("a")
    assert term is not None and (term.owner, term.epoch) == ("n1:2", 2)
    await fleet.close()


@in_virtual_time
async def test_the_same_id_is_one_mail_and_two_seats_may_share_an_id() -> None:
    fleet = Fleet(("a", "b"))
    node = await fleet.node("n1")
    assert not (await node.commands.send_mail("a", "x", message_id="same")).is_duplicate
    assert (await node.commands.send_mail("a", "x", message_id="same")).is_duplicate
    assert not (await node.commands.send_mail("b", "x", message_id="same")).is_duplicate
    await fleet.until(lambda: len(fleet.runs) == 2, "both seats ran it")
    await asyncio.sleep(60)
    assert sorted(run.seat for run in fleet.runs) == ["a", "b"]
    await fleet.close()


@pytest.mark.proves("DR-09")
@in_virtual_time
async def test_a_drain_waits_for_a_turn_while_the_broker_is_away_but_not_once_it_is_gone_for_good() -> None:
    fleet = Fleet(("a",), turn_s=3600)
    node = await fleet.node("n1")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "it runs")
    leaving = asyncio.create_task(node.drain())
    await fleet.clock.sleep(10 * TTL_S)
    assert not leaving.done() and node.seats.in_flight == 1
    with capture_logs() as logs:
        fleet.gone.add("n1")
        await fleet.clock.sleep(2)
        assert leaving.done() and node.seats.in_flight == 0
    assert [line["in_flight"] for line in logs if line["event"] == "drain_hurried"] == [1]
    assert not fleet.finished("one")
    await node.close()


@pytest.mark.proves("DR-07")
@in_virtual_time
async def test_a_drain_pauses_deliveries_only_after_the_seats_are_released() -> None:
    fleet = Fleet(("a",), turn_s=10)
    node = await fleet.node("n1")
    await fleet.send("a", "one")
    await fleet.until(lambda: fleet.runs, "it runs")
    held_at_pause: list[tuple[str, ...]] = []
    mail = node.commands.outbox.mail
    pause = mail.pause

    def noted() -> None:
        held_at_pause.append(node.health().seats)
        pause()

    setattr(mail, "pause", noted)  # noqa: B010 - a port has no attribute to assign
    await fleet.stop("n1")
    assert held_at_pause == [()]
    assert fleet.finished("one")


@in_virtual_time
async def test_a_seat_that_only_the_old_document_names_is_warned_of_by_name_when_nobody_holds_it() -> None:
    fleet = Fleet(("a", "b"))
    old = await fleet.node("n1")
    fleet.company = Company("acme", (Seat("a"), Seat("c")))
    with capture_logs() as logs:
        new = await fleet.node("n2")
        await fleet.clock.sleep(TELL_AFTER_S - 10)
        assert not [line for line in logs if line["event"] == "company_documents_differ"]
        await fleet.clock.sleep(40)
    snapshots = [await node.fleet() for node in (old, new)]
    assert [each.other_documents for each in snapshots] == [("n2",), ("n1",)]
    assert [node.health().other_documents for node in (old, new)] == [("n2",), ("n1",)]
    unheld = sorted({"a", "b", "c"} - {handle for node in (old, new) for handle in node.host.held()})
    assert unheld and all(each.disputed == tuple(unheld) for each in snapshots)
    warned = [line for line in logs if line["event"] == "company_documents_differ"]
    assert sorted(line["nodes"][0] for line in warned) == ["n1", "n2"]
    assert all(line["unheld"] == unheld for line in warned)
    strays = {stray.handle for stray in snapshots[1].strays}
    assert strays == {"b"} & set(old.host.held()), "a lease of a seat that one document lacks is shown all the same"
    await old.adopt(fleet.company)
    await fleet.until(lambda: len(old.host.held()) + len(new.host.held()) == 2, "all seats are held")
    await fleet.clock.sleep(TTL_S)
    assert [(await node.fleet()).other_documents for node in (old, new)] == [(), ()]
    assert [node.health().other_documents for node in (old, new)] == [None, None]
    await fleet.close()


@in_virtual_time
async def test_every_node_says_what_is_the_matter_with_the_seats_of_all_nodes() -> None:
    fleet = Fleet(("a", "b"))
    one, two = await fleet.node("n1"), await fleet.node("n2")
    await fleet.until(lambda: fleet.holder("a") and fleet.holder("b"), "both are held")
    await fleet.until(lambda: fleet.holder("a") != fleet.holder("b"), "each node holds one")
    await fleet.clock.sleep(TTL_S)
    for node in (one, two):
        assert await node.troubles() == TroublesSnapshot(("n1", "n2"))
    fleet.poison.add("m")
    await fleet.send("a", "m")
    await fleet.until(lambda: fleet.runs, "its turn broke")
    await one.commands.pausing.pause("b", Wish("p"))
    await fleet.clock.sleep(0.5)
    for node in (one, two):
        shown = await node.troubles()
        assert shown.answered == ("n1", "n2")
        assert shown.troubles == {"a": "last error: m is poison", "b": "held back: seat_paused"}
    await fleet.stop("n2")
    assert (await one.troubles()).answered == ("n1",)
    await fleet.close()


@in_virtual_time
async def test_a_node_that_has_just_come_is_waited_for_when_troubles_are_asked() -> None:
    fleet = Fleet(("a", "b"))
    one = await fleet.node("n1")
    await fleet.node("n2")
    await fleet.node("n3")
    assert one.host.live_nodes == 1  # as of its last pass
    assert (await one.troubles()).answered == ("n1", "n2", "n3")
    await fleet.close()


def test_the_gravest_trouble_of_a_seat_comes_first() -> None:
    found = told(
        unproven_s={"a": 72.4},
        held_back={"a": "draining", "b": "x"},
        waiting={"b": "waiting for y"},
        last_error={"a": "z"},
    )
    assert found == {
        "a": "its teardown is unproven for 72 s; held back: draining; last error: z",
        "b": "held back: x; waiting for y",
    }
