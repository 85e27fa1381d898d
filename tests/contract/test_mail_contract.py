"""The mail port's contract, on the twin (in virtual time) and on a real nats-server."""

import asyncio
import functools
from collections.abc import Awaitable, Callable

import pytest
from mail_worlds import nats_world, twin_world

from crewlet.testing import virtual
from crewlet.testing.brokers import Server
from crewlet.testing.contracts import mail as contract
from crewlet.testing.contracts import mailattachments as attachments
from crewlet.testing.contracts import mailbatches as batches
from crewlet.testing.contracts import maildead as dead
from crewlet.testing.contracts import mailholds as holds
from crewlet.testing.contracts import mailpoison as poison
from crewlet.testing.contracts import mailsettling as settling
from crewlet.testing.contracts import mailsubscriptions as subscriptions
from crewlet.testing.contracts.mailworld import MakeWorld

Check = Callable[[MakeWorld], Awaitable[None]]
Run = Callable[[Check], None]


@pytest.fixture(params=["twin", pytest.param("nats", marks=pytest.mark.real)])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "twin":
        return lambda check: virtual.run(_run(check, twin_world))
    server: Server = request.getfixturevalue("server")
    return lambda check: asyncio.run(_run(check, functools.partial(nats_world, server.urls)))


async def _run(check: Check, make: MakeWorld) -> None:
    await check(make)


@pytest.mark.proves("QU-02")
def test_a_deferral_returns_at_the_head_and_quiesces(run: Run) -> None:
    run(contract.a_deferral_returns_at_the_head_and_quiesces)


@pytest.mark.proves("QU-03")
def test_every_hand_back_costs_one_delivery(run: Run) -> None:
    run(contract.every_hand_back_costs_one_delivery)


def test_a_delivery_past_its_budget_is_buried_unrun(run: Run) -> None:
    run(contract.a_delivery_past_its_budget_is_buried_unrun)


@pytest.mark.proves("QU-04")
def test_a_handler_may_publish_to_its_own_inbox(run: Run) -> None:
    run(contract.a_handler_may_publish_to_its_own_inbox)


@pytest.mark.proves("QU-05")
def test_a_cancelled_publisher_does_not_reach_the_handler(run: Run) -> None:
    run(contract.a_cancelled_publisher_does_not_reach_the_handler)


@pytest.mark.proves("QU-06")
def test_a_detach_does_not_wait_and_a_late_deferral_harms_nobody(run: Run) -> None:
    run(attachments.a_detach_does_not_wait_and_a_late_deferral_harms_nobody)


def test_nothing_of_a_late_ack_reaches_the_broker(run: Run) -> None:
    run(attachments.nothing_of_a_late_ack_reaches_the_broker)


def test_a_disowned_handler_hands_nothing_back(run: Run) -> None:
    run(attachments.a_disowned_handler_hands_nothing_back)


@pytest.mark.proves("QU-07")
def test_every_verb_of_a_stopped_instance_says_not_live(run: Run) -> None:
    run(attachments.every_verb_of_a_stopped_instance_says_not_live)


@pytest.mark.proves("QU-08")
def test_a_handler_that_fails_twice_gets_three_deliveries(run: Run) -> None:
    run(contract.a_handler_that_fails_twice_gets_three_deliveries)


def test_a_failure_comes_back_behind_mail_that_waits(run: Run) -> None:
    run(contract.a_failure_comes_back_behind_mail_that_waits)


@pytest.mark.proves("QU-09")
def test_members_of_a_group_share_and_groups_each_get_a_copy(run: Run) -> None:
    run(subscriptions.members_of_a_group_share_and_groups_each_get_a_copy)


@pytest.mark.proves("QU-09")
def test_a_hand_back_may_go_to_the_other_member(run: Run) -> None:
    run(subscriptions.a_hand_back_may_go_to_the_other_member)


@pytest.mark.proves("QU-10")
def test_names_that_look_alike_never_share(run: Run) -> None:
    run(subscriptions.names_that_look_alike_never_share)


@pytest.mark.proves("QU-11")
def test_a_pause_keeps_mail_from_handlers(run: Run) -> None:
    run(holds.a_pause_keeps_mail_from_handlers)


@pytest.mark.proves("QU-12")
def test_starting_and_stopping_twice_is_harmless(run: Run) -> None:
    run(attachments.starting_and_stopping_twice_is_harmless)


@pytest.mark.proves("QU-13")
def test_a_message_over_the_ceiling_is_refused(run: Run) -> None:
    run(subscriptions.a_message_over_the_ceiling_is_refused)


def test_a_publish_that_is_not_admitted_sends_nothing(run: Run) -> None:
    run(subscriptions.a_publish_that_is_not_admitted_sends_nothing)


@pytest.mark.proves("QU-14")
def test_a_quiesced_attachment_holds_its_mail(run: Run) -> None:
    run(holds.a_quiesced_attachment_holds_its_mail)


@pytest.mark.proves("BA-01")
def test_a_deferred_partition_stops_its_batch(run: Run) -> None:
    run(batches.a_deferred_partition_stops_its_batch)


@pytest.mark.proves("QU-02")
def test_an_inbox_opened_while_its_batch_goes_back_begins_nothing_of_it(run: Run) -> None:
    run(batches.an_inbox_opened_while_its_batch_goes_back_begins_nothing_of_it)


@pytest.mark.proves("QU-02")
def test_an_inbox_opened_as_its_only_mail_goes_back_is_handed_that_before_newer_mail(run: Run) -> None:
    run(batches.an_inbox_opened_as_its_only_mail_goes_back_is_handed_that_before_newer_mail)


@pytest.mark.proves("BA-02")
def test_the_conversation_that_waits_longest_goes_first(run: Run) -> None:
    run(batches.the_conversation_that_waits_longest_goes_first)


@pytest.mark.proves("BA-03")
def test_a_partition_is_handled_oldest_first(run: Run) -> None:
    run(batches.a_partition_is_handled_oldest_first)


@pytest.mark.proves("BA-04")
def test_a_hold_during_the_linger_does_not_end_the_loop(run: Run) -> None:
    run(batches.a_hold_during_the_linger_does_not_end_the_loop)


@pytest.mark.proves("BA-05")
def test_one_failing_partition_spares_the_other(run: Run) -> None:
    run(batches.one_failing_partition_spares_the_other)


def test_mail_that_always_fails_takes_nothing_of_its_conversation_along(run: Run) -> None:
    run(batches.mail_that_always_fails_takes_nothing_of_its_conversation_along)


@pytest.mark.proves("BA-05")
def test_mail_that_kills_its_reader_takes_nothing_along(run: Run) -> None:
    run(poison.mail_that_kills_its_reader_takes_nothing_along)


def test_mail_that_stops_its_inbox_each_time_leaves_the_others_their_deliveries(run: Run) -> None:
    run(poison.mail_that_stops_its_inbox_each_time_leaves_the_others_their_deliveries)


def test_mail_that_a_living_reader_gave_back_is_still_taken_together(run: Run) -> None:
    run(poison.mail_that_a_living_reader_gave_back_is_still_taken_together)


@pytest.mark.proves("BA-06")
def test_a_stop_or_pause_during_the_linger_delivers_nothing(run: Run) -> None:
    run(batches.a_stop_or_pause_during_the_linger_delivers_nothing)


@pytest.mark.proves("BA-07")
def test_a_batch_has_its_bounds(run: Run) -> None:
    run(batches.a_batch_has_its_bounds)


@pytest.mark.proves("BA-08")
def test_mail_that_came_during_a_turn_is_taken_together(run: Run) -> None:
    run(batches.mail_that_came_during_a_turn_is_taken_together)


@pytest.mark.proves("DL-03")
def test_each_delivery_has_its_own_headroom(run: Run) -> None:
    run(batches.each_delivery_has_its_own_headroom)


def test_a_detach_hands_back_what_no_handler_has_begun(run: Run) -> None:
    run(batches.a_detach_hands_back_what_no_handler_has_begun)


def test_a_hold_between_partitions_hands_back_the_rest(run: Run) -> None:
    run(batches.a_hold_between_partitions_hands_back_the_rest)


def test_a_hold_taken_before_the_attach_stops_the_first_delivery(run: Run) -> None:
    run(holds.a_hold_taken_before_the_attach_stops_the_first_delivery)


@pytest.mark.proves("HO-01")
def test_a_hold_goes_with_the_seat_to_its_next_node(run: Run) -> None:
    run(holds.a_hold_goes_with_the_seat_to_its_next_node)


@pytest.mark.proves("HO-03")
def test_every_hold_must_go(run: Run) -> None:
    run(holds.every_hold_must_go)


@pytest.mark.proves("HO-04")
def test_a_hold_does_not_bring_back_a_deleted_subscription(run: Run) -> None:
    run(holds.a_hold_does_not_bring_back_a_deleted_subscription)


@pytest.mark.proves("HO-05")
def test_unquiesce_leaves_a_hold_in_force(run: Run) -> None:
    run(holds.unquiesce_leaves_a_hold_in_force)


@pytest.mark.proves("HO-06")
def test_a_hold_gates_its_own_attachment_only(run: Run) -> None:
    run(holds.a_hold_gates_its_own_attachment_only)


@pytest.mark.proves("SU-02")
def test_an_ensured_subscription_keeps_its_mail(run: Run) -> None:
    run(subscriptions.an_ensured_subscription_keeps_its_mail)


def test_a_subscription_begins_at_the_earliest_message_that_is_kept(run: Run) -> None:
    run(subscriptions.a_subscription_begins_at_the_earliest_message_that_is_kept)


@pytest.mark.proves("SU-03")
def test_mail_to_nobody_is_refused_and_does_not_burn_its_id(run: Run) -> None:
    run(subscriptions.mail_to_nobody_is_refused_and_does_not_burn_its_id)


@pytest.mark.proves("SU-03")
def test_a_seats_mail_is_kept_by_its_own_mailbox_alone(run: Run) -> None:
    run(subscriptions.a_seats_mail_is_kept_by_its_own_mailbox_alone)


def test_the_same_id_is_kept_once_a_topic(run: Run) -> None:
    run(subscriptions.the_same_id_is_kept_once_a_topic)


@pytest.mark.proves("SU-06")
def test_detach_keeps_the_mail_and_answers_twice_differently(run: Run) -> None:
    run(subscriptions.detach_keeps_the_mail_and_answers_twice_differently)


@pytest.mark.proves("SU-07")
def test_a_delete_takes_the_mail_and_spares_the_sibling(run: Run) -> None:
    run(subscriptions.a_delete_takes_the_mail_and_spares_the_sibling)


@pytest.mark.proves("SU-08", "SU-09")
def test_a_listing_names_every_pair_exactly(run: Run) -> None:
    run(subscriptions.a_listing_names_every_pair_exactly)


@pytest.mark.proves("DL-02")
def test_one_deferral_makes_no_dead_letter(run: Run) -> None:
    run(contract.one_deferral_makes_no_dead_letter)


def test_an_unprolonged_delivery_goes_to_the_next_reader(run: Run) -> None:
    run(attachments.an_unprolonged_delivery_goes_to_the_next_reader)


def test_a_prolonged_delivery_stays_in_hand(run: Run) -> None:
    run(attachments.a_prolonged_delivery_stays_in_hand)


def test_an_attachment_stops_fetching_when_its_lease_is_over(run: Run) -> None:
    run(attachments.an_attachment_stops_fetching_when_its_lease_is_over)


def test_after_a_detach_no_pull_is_open(run: Run) -> None:
    run(attachments.after_a_detach_no_pull_is_open)


def test_a_redelivery_of_what_is_in_hand_starts_nothing(run: Run) -> None:
    run(batches.a_redelivery_of_what_is_in_hand_starts_nothing)


@pytest.mark.proves("QU-03")
def test_a_dead_letter_tells_who_had_it_and_why_it_came_back(run: Run) -> None:
    run(dead.a_dead_letter_tells_who_had_it_and_why_it_came_back)


def test_a_message_whose_readers_died_is_buried_unrun_with_their_names(run: Run) -> None:
    run(dead.a_message_whose_readers_died_is_buried_unrun_with_their_names)


def test_a_first_delivery_is_never_noted(run: Run) -> None:
    run(dead.a_first_delivery_is_never_noted)


def test_dead_letters_are_listed_in_pages_and_leave_by_name(run: Run) -> None:
    run(dead.dead_letters_are_listed_in_pages_and_leave_by_name)


def test_a_message_is_found_for_as_long_as_it_is_not_settled(run: Run) -> None:
    run(dead.a_message_is_found_for_as_long_as_it_is_not_settled)


def test_a_replay_is_no_repeat_of_what_it_replays(run: Run) -> None:
    run(dead.a_replay_is_no_repeat_of_what_it_replays)


def test_what_a_handler_buries_is_kept_whole_and_the_rest_of_its_conversation_is_worked(run: Run) -> None:
    run(dead.what_a_handler_buries_is_kept_whole_and_the_rest_of_its_conversation_is_worked)


def test_what_is_to_be_buried_past_the_lease_or_after_a_detach_goes_to_the_next_reader(run: Run) -> None:
    run(dead.what_is_to_be_buried_past_the_lease_or_after_a_detach_goes_to_the_next_reader)


def test_what_settles_later_stops_no_other_partition_but_the_next_batch(run: Run) -> None:
    run(settling.what_settles_later_stops_no_other_partition_but_the_next_batch)


def test_what_settles_later_goes_back_with_its_batch(run: Run) -> None:
    run(settling.what_settles_later_goes_back_with_its_batch)


def test_what_settles_after_a_detach_touches_nobody(run: Run) -> None:
    run(settling.what_settles_after_a_detach_touches_nobody)
