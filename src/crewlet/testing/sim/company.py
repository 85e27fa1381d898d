"""The company of a simulation: script seats that sleep and write to one another, some of them placed."""

from crewlet.company.model import Company, Placement, ScriptRunner, ScriptStep, Seat, Send, Sleep
from crewlet.testing.sim.dice import Dice


def labels_of(index: int) -> dict[str, str]:
    """What the machine of that number carries."""
    return {"zone": "ab"[index % 2]}


def company_of(seed: int, nodes: int, seats: int, *, ttl_s: float) -> Company:
    """A company whose work fits the fleet: a seat sends only to later ones, so that every thread comes to an end."""
    dice = Dice(seed, "company")
    pace_s = 0.25 * seats
    members: list[Seat] = []
    for index in range(seats):
        steps: list[ScriptStep] = [Sleep(round(dice.between(0.1, pace_s), 3))]
        if index % 11 == 7:
            steps = [Sleep(round(dice.between(0.5, 1.5) * ttl_s, 3))]
        if index + 1 < seats and index % 3 == 0:
            steps += [Send(f"s{dice.below(seats - index - 1) + index + 1:02d}", "please"), Sleep(0.2)]
        members.append(
            Seat(f"s{index:02d}", placement=_placement(dice, index, nodes), runner=ScriptRunner(tuple(steps)))
        )
    return Company("simulated", tuple(members), coalesce_window_s=dice.pick((0.0, 0.0, 2.0)))


def is_slow(index: int) -> bool:
    """Whether the seat of that number takes long over its mail, so that it should get little."""
    return index % 11 == 7


def _placement(dice: Dice, index: int, nodes: int) -> Placement:
    if index % 5 == 3 and nodes > 1:
        return Placement(labels=(("zone", dice.pick(("a", "b"))),))
    if index % 13 == 5:
        return Placement(node=f"n{dice.below(nodes)}")
    return Placement()
