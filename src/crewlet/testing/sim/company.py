"""The company of a simulation and its changes: script seats that sleep and write to one another, some placed."""

from collections.abc import Iterable
from dataclasses import replace

from crewlet.company.model import Company, Placement, ScriptRunner, ScriptStep, Seat, Send, Sleep, ToolProgram
from crewlet.testing.sim.dice import Dice

_SLOW, _SLOW_REST = 11, 7
"""One seat in eleven takes long over a mail."""


def labels_of(index: int) -> dict[str, str]:
    """What the machine of that number carries."""
    return {"zone": "ab"[index % 2]}


def company_of(seed: int, nodes: int, seats: int, *, ttl_s: float) -> Company:
    """A company whose work fits the fleet: a seat sends to later ones only, so that every thread ends, and to no slow
    one.
    """
    dice = Dice(seed, "company")
    pace_s = 0.25 * seats
    members: list[Seat] = []
    for index in range(seats):
        steps: list[ScriptStep] = [Sleep(round(dice.between(0.1, pace_s), 3))]
        if index % _SLOW == _SLOW_REST:
            steps = [Sleep(round(dice.between(0.5, 1.5) * ttl_s, 3))]
        if index + 1 < seats and index % 3 == 0:
            to = dice.below(seats - index - 1) + index + 1
            if to % _SLOW != _SLOW_REST:
                steps += [Send(f"s{to:02d}", "please"), Sleep(0.2)]
        handle, placement = f"s{index:02d}", _placement(dice, index, nodes)
        members.append(Seat(handle, placement=placement, runner=ScriptRunner(tuple(steps)), tool_servers=_tools(index)))
    return Company("simulated", tuple(members), coalesce_window_s=dice.pick((0.0, 0.0, 2.0)))


def is_slow(seat: Seat) -> bool:
    """Whether a seat takes long over its mail, so that it should get little."""
    return seat.handle.startswith("s") and int(seat.handle[1:]) % _SLOW == _SLOW_REST


class Roll:
    """The company in force, and the seats that have left it.

    Attributes:
        company: the newest document.
        left: seats that were removed, by handle; their mail waits for them.
    """

    def __init__(self, company: Company, nodes: int) -> None:
        self.company = company
        self.left: dict[str, Seat] = {}
        self._nodes = nodes
        self._made = 0

    def change(self, dice: Dice) -> str:
        """Add, bring back, remove or move some seat; says what was done."""
        how = dice.below(4)
        if how == 0:
            return self._add(dice)
        if how == 1 and len(self.company.seats) > 1:
            return self._remove(dice)
        return self._move(dice)

    def settle(self, dice: Dice) -> None:
        """Bring back about half of those who left; the others stay away."""
        for handle in list(self.left):
            if dice.chance(0.5):
                self._put(self.left.pop(handle))

    def _add(self, dice: Dice) -> str:
        if self.left and dice.chance(0.6):
            seat = self.left.pop(dice.pick(sorted(self.left)))
        else:
            self._made += 1
            runner = ScriptRunner((Sleep(round(dice.between(0.1, 3.0), 3)),))
            seat = Seat(f"x{self._made:02d}", runner=runner, placement=_any_placement(dice, self._nodes))
        self._put(seat)
        return f"+{seat.handle}"

    def _remove(self, dice: Dice) -> str:
        seat = dice.pick(self.company.seats)
        self.left[seat.handle] = seat
        self._set(each for each in self.company.seats if each is not seat)
        return f"-{seat.handle}"

    def _move(self, dice: Dice) -> str:
        seat = dice.pick(self.company.seats)
        moved = replace(seat, placement=_any_placement(dice, self._nodes))
        self._set(moved if each is seat else each for each in self.company.seats)
        return f"{seat.handle} to {moved.placement}"

    def _put(self, seat: Seat) -> None:
        self._set((*self.company.seats, seat))

    def _set(self, seats: Iterable[Seat]) -> None:
        self.company = replace(self.company, seats=tuple(seats))


def _placement(dice: Dice, index: int, nodes: int) -> Placement:
    if index % 5 == 3 and nodes > 1:
        return Placement(labels=(("zone", dice.pick(("a", "b"))),))
    if index % 13 == 5:
        return Placement(node=f"n{dice.below(nodes)}")
    return Placement()


def _tools(index: int) -> tuple[ToolProgram, ...]:
    """One seat in three has tools, of a server with the seat's own name."""
    return (ToolProgram(f"s{index:02d}", ("tools",)),) if index % 3 == 2 else ()


def _any_placement(dice: Dice, nodes: int) -> Placement:
    how = dice.below(3)
    if how == 0:
        return Placement(node=f"n{dice.below(nodes)}")
    if how == 1 and nodes > 1:
        return Placement(labels=(("zone", dice.pick(("a", "b"))),))
    return Placement()
