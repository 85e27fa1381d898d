"""What seats' programs left behind: lines of evidence, and the runs they make up. Pure values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec


class _Wire(msgspec.Struct, frozen=True):
    seat: str
    trigger: str
    run: str
    owner: str
    epoch: int
    wall: float
    boottime: float
    phase: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line of evidence.

    Attributes:
        seat: whose program wrote it.
        triggers: ids of the mail the run works on.
        run: names the process.
        owner, epoch: the tenure the run was given.
        wall: seconds since 1970, on the machine's wall clock.
        boottime: seconds on the clock that all processes of the machine share and that never steps.
        phase: `begin`, `tick`, `sent` or `end`.
        sent_id: with `sent`, the id of the mail.
    """

    seat: str
    triggers: tuple[str, ...]
    run: str
    owner: str
    epoch: int
    wall: float
    boottime: float
    phase: str
    sent_id: str = ""


class BadLine(ValueError):
    """A line that no seat's program writes."""


def parse_line(text: bytes) -> Line:
    """Read one line.

    Raises:
        BadLine: it is none.
    """
    try:
        wire = msgspec.json.decode(text, type=_Wire)
    except msgspec.MsgspecError as error:
        raise BadLine(str(error)) from error
    phase, _, sent_id = wire.phase.partition(" ")
    if phase not in ("begin", "tick", "sent", "end") or bool(sent_id) != (phase == "sent"):
        raise BadLine(f"an unknown phase: {wire.phase}")
    triggers = tuple(wire.trigger.split())
    return Line(wire.seat, triggers, wire.run, wire.owner, wire.epoch, wire.wall, wire.boottime, phase, sent_id)


@dataclass(frozen=True, slots=True)
class Run:
    """One process's work for a seat: from its `begin` to its `end`, or else to its last line."""

    seat: str
    name: str
    triggers: tuple[str, ...]
    owner: str
    epoch: int
    began_wall: float
    began_at: float
    last_at: float
    is_ended: bool
    sent: tuple[str, ...]

    @property
    def node(self) -> str:
        """The node of the owner."""
        return self.owner.rpartition(":")[0]


def runs_of(lines: Iterable[Line]) -> Sequence[Run]:
    """The runs that lines of one or more seats make up, by their beginning."""
    by_run: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        by_run.setdefault((line.seat, line.run), []).append(line)
    return sorted((_run(written) for written in by_run.values()), key=lambda run: (run.began_at, run.name))


def _run(lines: Sequence[Line]) -> Run:
    first = lines[0]
    ends = [line.boottime for line in lines if line.phase == "end"]
    return Run(
        seat=first.seat,
        name=first.run,
        triggers=first.triggers,
        owner=first.owner,
        epoch=first.epoch,
        began_wall=first.wall,
        began_at=first.boottime,
        last_at=max(line.boottime for line in lines),  # an `end` that is not the last line ends nothing
        is_ended=bool(ends),
        sent=tuple(line.sent_id for line in lines if line.phase == "sent"),
    )
