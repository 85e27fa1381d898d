"""How long a seat is dark when it changes hands on purpose: one given back, and a whole node that drains.

Dark is from the order to let go until the first turn at the successor on mail that was sent in the same moment, on
real brokers, with the nodes' own hooks: proof of the detach, release, news, claim, attach, pull.
"""

import asyncio
import statistics
import time
from typing import Any

from benchmarks.fleets import Fleet, company_of, until
from benchmarks.worlds import World

ROUNDS = 20
BETWEEN_S = 1.5
"""Apart enough that the claims of freed seats never reach what an interval allows."""

DRAINS = 2
SHARE = 12


async def measure_in(world: World) -> dict[str, Any]:
    """`handoff_dark_ms`: median of one seat given back between two passes, its worst beside it.
    `drain_dark_max_s`: the darkest seat of one of three nodes with 12 seats each that drains just after a pass."""
    handoffs_ms = await _handoffs(world)
    return {
        "handoff_dark_ms": round(statistics.median(handoffs_ms), 2),
        "handoff_dark_worst_ms": round(max(handoffs_ms), 2),
        "drain_dark_max_s": round(max([await _drain(world, number) for number in range(DRAINS)]), 3),
    }


async def _handoffs(world: World) -> list[float]:
    fleet = Fleet(world, company_of(3))
    await asyncio.gather(fleet.join("a"), fleet.join("b"))
    await until(lambda: len(fleet.held("a")) + len(fleet.held("b")) == 3)
    dark_ms: list[float] = []
    for number in range(ROUNDS):
        await asyncio.sleep(BETWEEN_S)
        giver, taker = ("a", "b") if len(fleet.held("a")) == 2 else ("b", "a")
        seat = fleet.held(giver)[number % 2]
        begun = time.perf_counter()
        giving = asyncio.ensure_future(fleet.members[giver].node.host.give_back(seat, "unprepared"))
        await fleet.members[taker].node.commands.send_mail(seat, "x", message_id=f"handoff-{number}")
        dark_ms.append(1000 * (await fleet.begin_of(f"handoff-{number}") - begun))
        await giving
        await until(lambda taker=taker, seat=seat: seat in fleet.held(taker))
    await fleet.close()
    return dark_ms


async def _drain(world: World, number: int) -> float:
    """Seconds until the last of the leaving node's seats was served again."""
    fleet = Fleet(world, company_of(3 * SHARE))
    names = ("a", "b", "c")
    await asyncio.gather(*(fleet.join(name) for name in names))
    await until(lambda: [len(fleet.held(name)) for name in names] == [SHARE] * 3)
    await _next_pass(fleet, "a")
    seats = fleet.held("c")
    leaving = fleet.members.pop("c")
    begun = time.perf_counter()
    going = asyncio.ensure_future(leaving.leave())
    commands = fleet.members["a"].node.commands
    ids = [f"drain-{number}-{seat}" for seat in seats]
    await asyncio.gather(*(commands.send_mail(seat, "x", message_id=id_) for seat, id_ in zip(seats, ids, strict=True)))
    ends = [await fleet.begin_of(id_) for id_ in ids]
    await going
    await fleet.close()
    return max(ends) - begun


async def _next_pass(fleet: Fleet, name: str) -> None:
    """Wait for the beginning of a pass: what drains right after it waits longest for the next."""
    host = fleet.members[name].node.host
    last = host.last_sweep
    await until(lambda: host.last_sweep is not None and (last is None or host.last_sweep.at > last.at))
