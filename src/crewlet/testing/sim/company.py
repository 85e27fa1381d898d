"""The company of a simulation and its changes: script seats that sleep and write to one another, some placed.

One seed in eight has schedules.
"""

from collections.abc import Iterable
from dataclasses import replace

from crewlet.company.instants import Schedule
from crewlet.company.model import Company, Placement, ScriptRunner, ScriptStep, Seat, Send, Sleep, ToolProgram
from crewlet.testing.sim.dice import Dice

_SLOW, _SLOW_REST = 11, 7
"""One seat in eleven takes long over a mail."""
_SCHEDULED, _SCHEDULED_REST = 8, 7
_NAMES = ("r0", "r1", "r2")


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
    company = Company("simulated", tuple(members), coalesce_window_s=dice.pick((0.0, 0.0, 2.0)))
    return replace(company, schedules=_schedules(seed, company)) if seed % _SCHEDULED == _SCHEDULED_REST else company


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
        self._is_scheduled = bool(company.schedules)

    def change(self, dice: Dice) -> str:
        """Add, bring back, remove or move some seat; says what was done."""
        if self._is_scheduled and dice.chance(0.3):
            return self._reschedule(dice)
        how = dice.below(4)
        if how == 0:
            return self._add(dice)
        if how == 1 and len(self.company.seats) > 1:
            return f"-{self.remove(dice)}"
        return self._move(dice)

    def remove(self, dice: Dice) -> str:
        """Take some seat out; returns its handle."""
        seat = dice.pick(self.company.seats)
        self.left[seat.handle] = seat
        self._set(each for each in self.company.seats if each is not seat)
        return seat.handle

    def bring_back(self, handle: str) -> bool:
        """Have a seat that has left in the company again. False: it is there already."""
        seat = self.left.pop(handle, None)
        if seat is not None:
            self._put(seat)
        return seat is not None

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

    def _move(self, dice: Dice) -> str:
        seat = dice.pick(self.company.seats)
        moved = replace(seat, placement=_any_placement(dice, self._nodes))
        self._set(moved if each is seat else each for each in self.company.seats)
        return f"{seat.handle} to {moved.placement}"

    def _reschedule(self, dice: Dice) -> str:
        """Add or remove a schedule, or change when it is due or whom it is for."""
        name = dice.pick(_NAMES)
        schedules = {each.name: each for each in self.company.schedules}
        if schedules.pop(name, None) is None or dice.chance(0.7):
            schedules[name] = _schedule(dice, name, self.company)
        self.company = replace(self.company, schedules=tuple(schedules.values()))
        return f"{name}: {schedules[name].rule if name in schedules else 'none'}"

    def _put(self, seat: Seat) -> None:
        self._set((*self.company.seats, seat))

    def _set(self, seats: Iterable[Seat]) -> None:
        members = tuple(seats)
        handles = {seat.handle for seat in members}
        schedules = tuple(each for each in self.company.schedules if each.seat in handles)
        self.company = replace(self.company, seats=members, schedules=schedules)


def _schedules(seed: int, company: Company) -> tuple[Schedule, ...]:
    dice = Dice(seed, "schedules")
    return tuple(_schedule(dice, name, company) for name in _NAMES[: 1 + dice.below(len(_NAMES))])


def _schedule(dice: Dice, name: str, company: Company) -> Schedule:
    seat = dice.pick([seat.handle for seat in company.seats if not is_slow(seat)])
    if dice.chance(0.2):
        return Schedule(name, seat, "now", cron="* * * * *")
    return Schedule(name, seat, "now", every_s=dice.pick((10, 30, 45, 300)))


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
