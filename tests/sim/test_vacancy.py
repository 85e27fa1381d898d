"""How long a seat may be free in a settled fleet, as the simulator's judge counts it."""

from collections.abc import Mapping

from crewlet.company.model import Seat
from crewlet.testing.sim.vacancy import Living, Scene, Vacancies

NODE = Living("n1", "n1:a", 3, {}, is_level=True)
SEATS = [Seat(f"s{number}") for number in range(6)]


def looked_at(vacancies: Vacancies, now: float, held: Mapping[str, float]) -> None:
    vacancies.look(now, Scene([NODE], frozenset({NODE.owner}), held, oldest=3), SEATS)


def test_a_seat_that_stays_free_for_longer_than_a_sweep_is_told() -> None:
    found: list[str] = []
    vacancies = Vacancies(lambda promise, text: found.append(text))
    for second in range(10):
        looked_at(vacancies, float(second), {f"s{number}": -100.0 for number in range(4)})
    assert "s4 has been free for 9.0 s" in found[0]


def test_seats_that_came_free_and_were_taken_between_two_looks_count_among_those_free_at_once() -> None:
    found: list[str] = []
    vacancies = Vacancies(lambda promise, text: found.append(text))
    for second in range(10):
        taken = {"s0": 4.3, "s1": 4.3, "s2": 4.4, "s3": 4.4} if second > 4 else {}
        looked_at(vacancies, float(second), {f"s{number}": -100.0 for number in range(4)} | taken)
    assert not found
