"""Which of several reasons not to work a delivery is the one that counts."""

from collections.abc import Collection

import pytest

from crewlet.mail.screening import BUDGET_WINDOW, NO_ENGINE, PAUSES_UNREAD, SANDBOX, SEAT_PAUSED, Posture, screen

EVERYTHING = (BUDGET_WINDOW, SANDBOX, NO_ENGINE, SEAT_PAUSED, PAUSES_UNREAD)


@pytest.mark.proves("IN-01")
@pytest.mark.parametrize(
    ("is_owned", "holds", "posture", "name", "is_parked"),
    [
        (False, EVERYTHING, "stuck", "not_owned", False),
        (True, EVERYTHING, "stuck", PAUSES_UNREAD, True),
        (True, EVERYTHING[:-1], "shed", SEAT_PAUSED, True),
        (True, EVERYTHING[:-2], "shed", NO_ENGINE, True),
        (True, EVERYTHING[:-3], "shed", SANDBOX, True),
        (True, ("another", BUDGET_WINDOW), "shed", BUDGET_WINDOW, True),
        (True, ("one", "another"), "shed", "another", True),
        (True, (), "shed", "shed", False),
        (True, (), "stuck", "stuck", False),
    ],
)
def test_of_several_reasons_the_first_in_order_is_named(
    is_owned: bool, holds: Collection[str], posture: Posture, name: str, is_parked: bool
) -> None:
    refusal = screen("alice", is_owned=is_owned, holds=holds, posture=posture)
    assert refusal is not None
    assert (refusal.name, refusal.is_parked) == (name, is_parked)
    assert refusal.reason


@pytest.mark.proves("IN-01")
def test_with_no_reason_against_it_a_delivery_goes_on() -> None:
    assert screen("alice", is_owned=True, holds=(), posture="current") is None


def test_the_refusal_of_a_seat_that_is_not_ours_names_the_seat() -> None:
    refusal = screen("alice", is_owned=False, holds=(), posture="current")
    assert refusal is not None and refusal.reason == 'seat "alice" is not owned here'
