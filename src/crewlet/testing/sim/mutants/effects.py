"""Bugs of effects: of the programs that work for a seat, and of the calls that its turns make."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

from collections import Counter
from contextlib import ExitStack
from typing import Any

from crewlet.node.toolservers import SeatTools
from crewlet.ports.mail import Nak
from crewlet.testing.sim.mutants.planting import plant, put
from crewlet.turns.effects import CallNames
from crewlet.turns.endings import Endings


@plant("tools left behind at a release")
def _left_behind(stack: ExitStack) -> None:
    async def end(self: SeatTools, term: Any, *, grace_s: float = 0.0) -> None:
        if not grace_s:
            await original(self, term)

    original = put(stack, SeatTools, "end", end)


@plant("tools not killed")
def _not_killed(stack: ExitStack) -> None:
    async def end(self: SeatTools, term: Any, *, grace_s: float = 0.0) -> None:
        if grace_s:
            await original(self, term, grace_s=grace_s)

    original = put(stack, SeatTools, "end", end)


@plant("calls named by the run")
def _named_by_run(stack: ExitStack) -> None:
    runs = Counter[str]()

    def init(self: CallNames, handle: str, work: str) -> None:
        runs[work] += 1
        original(self, handle, f"{work} {runs[work]}")

    original = put(stack, CallNames, "__init__", init)


@plant("equal calls under one name")
def _one_name(stack: ExitStack) -> None:
    def next_name(self: CallNames, tool: str, arguments: Any) -> str:
        self._seen.clear()
        return original(self, tool, arguments)

    original = put(stack, CallNames, "next", next_name)


@plant("broken turn runs again after an effect")
def _runs_again(stack: ExitStack) -> None:
    async def broke(self: Endings, run: Any, account: Any, reason: str) -> Any:
        account.end("broke", reason)
        return Nak(reason)

    put(stack, Endings, "_broke", broke)
