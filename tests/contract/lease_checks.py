"""The checks of the lease layer, each beside the behaviours it proves."""

import pytest

from crewlet.testing.contracts import leasefaults, leasegate, leases

proves = pytest.mark.proves

LEASES = [
    pytest.param(leases.a_former_owner_claims_a_lapsed_lease_at_a_higher_epoch, marks=proves("LS-01")),
    pytest.param(leases.a_lapsed_lease_is_not_held_by_its_release, marks=proves("LS-02")),
    pytest.param(leases.an_older_epoch_of_the_same_owner_changes_nothing, marks=proves("LS-03")),
    pytest.param(leases.what_is_refused_leaves_the_record_as_it_was, marks=proves("LS-04")),
    pytest.param(leases.an_unreachable_store_is_never_an_answer, marks=proves("LS-05")),
    pytest.param(leases.an_owner_that_claims_again_keeps_its_epoch_and_moves_its_deadline, marks=proves("LS-06")),
    pytest.param(leases.a_claim_without_a_hint_keeps_the_hint_and_one_with_a_hint_moves_it, marks=proves("LS-07")),
    pytest.param(leases.hints_outlive_leases_and_keep_to_their_class, marks=proves("LS-08")),
    pytest.param(leases.facts_are_copied_in_and_out, marks=proves("LS-10")),
    pytest.param(leases.no_two_names_share_a_record, marks=proves("LS-11")),
    pytest.param(leases.a_ttl_beyond_the_bucket_is_an_error, marks=proves("LS-12")),
    pytest.param(leases.arguments_out_of_range_are_errors, marks=proves("LS-13")),
    pytest.param(leases.a_release_without_an_owner_is_an_error, marks=proves("LS-14")),
    pytest.param(leases.one_owner_claiming_many_times_at_once_has_one_epoch, marks=proves("LS-15")),
    pytest.param(leases.each_tenure_was_acquired_later_than_the_one_before, marks=proves("LS-18")),
    pytest.param(leases.a_renewal_moves_the_deadline_and_not_the_time_of_acquisition),
    pytest.param(leases.deadlines_differ_as_their_ttls_do, marks=proves("LS-20")),
    pytest.param(leases.a_shorter_ttl_is_honoured_though_the_bucket_keeps_longer),
    pytest.param(leases.every_resource_counts_from_one, marks=proves("LS-21")),
    pytest.param(leases.what_is_not_held_is_not_renewed, marks=proves("LS-24")),
    pytest.param(leases.a_departed_owner_cannot_release_its_successor, marks=proves("LS-25")),
    pytest.param(leases.a_release_frees_at_once_and_only_once, marks=proves("LS-26")),
    pytest.param(leases.what_is_not_held_is_not_read_as_held, marks=proves("LS-27")),
    pytest.param(leases.a_class_that_is_none_is_an_error, marks=proves("LS-29")),
    pytest.param(leases.facts_read_back_as_they_were, marks=proves("LS-30")),
    pytest.param(leases.of_many_claimants_exactly_one_wins, marks=proves("LS-31")),
]

FAULTS = [
    pytest.param(leasefaults.an_outage_inside_the_ttl_costs_nothing, marks=proves("LS-32")),
    pytest.param(leasefaults.a_failed_counter_leaves_nothing_held, marks=proves("PC-01", "PC-11")),
    pytest.param(leasefaults.a_lost_token_is_a_gap, marks=proves("PC-02")),
    pytest.param(leasefaults.a_caller_cancelled_at_the_counter_gives_back, marks=proves("PC-03")),
    pytest.param(leasefaults.a_claiming_record_whose_answer_was_lost_is_known_and_given_back, marks=proves("PC-04")),
    pytest.param(leasefaults.a_commit_whose_answer_was_lost_stands, marks=proves("PC-06")),
    pytest.param(leasefaults.a_commit_that_never_arrived_leaves_nothing_held),
    pytest.param(leasefaults.a_sibling_is_not_disturbed, marks=proves("PC-07")),
    pytest.param(leasefaults.a_claim_waits_for_its_sibling),
    pytest.param(leasefaults.a_write_that_comes_after_its_caller_gave_up_does_not_land, marks=proves("PC-08")),
    pytest.param(leasefaults.a_late_commit_does_not_land, marks=proves("PC-08")),
    pytest.param(leasefaults.every_moment_of_giving_up_leaves_a_seat_that_can_be_claimed, marks=proves("PC-09")),
    pytest.param(leasefaults.a_caller_that_gave_up_once_its_record_was_in_gives_back, marks=proves("PC-10")),
    pytest.param(leasefaults.a_second_cancellation_does_not_cut_the_give_back_short),
    pytest.param(leasefaults.a_dead_claimants_record_lapses, marks=proves("PC-12")),
    pytest.param(leasefaults.a_lapsed_lease_that_is_still_there_is_not_renewed),
    pytest.param(leasefaults.a_renewal_that_lands_after_the_lapse_counts_for_nothing),
    pytest.param(leasefaults.an_owner_whose_renewal_landed_too_late_claims_at_a_new_epoch),
    pytest.param(leasefaults.a_renewal_still_on_its_way_cannot_land_after_the_release),
    pytest.param(leasefaults.a_renewal_whose_answer_was_lost_is_known_at_the_next_call),
    pytest.param(leasefaults.a_member_without_quorum_concludes_nothing),
    pytest.param(leasefaults.a_release_whose_answer_was_lost_ends_the_tenure_here),
]

GATE = [
    pytest.param(leasegate.a_held_seat_refuses_as_held_before_the_gate_is_judged, marks=proves("PG-01")),
    pytest.param(leasegate.a_gated_refusal_burns_nothing, marks=proves("PG-02")),
    pytest.param(leasegate.a_running_tenure_is_renewed_but_not_claimed_again, marks=proves("PG-03")),
    pytest.param(leasegate.other_classes_do_not_gate, marks=proves("PG-04")),
    pytest.param(leasegate.a_lease_written_an_instant_ago_gates, marks=proves("PG-05")),
    pytest.param(leasegate.a_claim_carries_the_builds_own_protocol, marks=proves("PG-07")),
    pytest.param(leasegate.a_newer_node_is_still_counted_while_its_claims_are_gated, marks=proves("PG-09")),
    pytest.param(leasegate.any_seat_of_an_older_build_gates_every_other, marks=proves("PG-10")),
    pytest.param(leasegate.an_older_presence_alone_gates, marks=proves("PG-11")),
    pytest.param(leasegate.the_gate_only_looks_down, marks=proves("PG-12")),
    pytest.param(leasegate.the_gate_lifts_with_the_last_lower_lease, marks=proves("PG-13")),
    pytest.param(leasegate.a_gated_claim_costs_the_same_with_many_leases, marks=proves("PG-15")),
]

DUTIES = [
    pytest.param(leasegate.duties_are_leased_for_their_own_time, marks=proves("DU-01")),
    pytest.param(leasegate.a_record_with_an_age_of_its_own_lapses_by_it),
    pytest.param(leasegate.a_duty_kept_keeps_its_epoch_and_a_duty_released_is_free, marks=proves("DU-03")),
    pytest.param(leasegate.a_duty_does_not_gate_seats, marks=proves("DU-05")),
]

EVERYWHERE = [*LEASES, *FAULTS, *GATE, *DUTIES]

VIRTUAL_ONLY = [
    pytest.param(leasegate.duties_lapse_at_their_own_deadlines, marks=proves("DU-01", "DU-02")),
    pytest.param(leasegate.the_view_stops_a_minute_after_the_last_judgement),
]
