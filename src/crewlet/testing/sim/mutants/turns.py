"""Bugs of turns: of what they send, and of how their mail is settled and recorded."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

import asyncio
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

import msgspec

from crewlet.mail.ledger import Ledger
from crewlet.ports.mail import Ack, Defer
from crewlet.testing.sim.mutants.planting import plant, put
from crewlet.turns import sending
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.endings import Endings


@plant("ack before ledger")
def _ack_before_ledger(stack: ExitStack) -> None:
    kept: list[asyncio.Task[None]] = []

    async def complete(self: Endings, *args: Any, **kwargs: Any) -> None:
        async def later() -> None:
            await self._clock.sleep(0.05)
            await original(self, *args, **kwargs)

        kept.append(asyncio.get_running_loop().create_task(later()))

    original = put(stack, Endings, "_complete", complete)


@plant("republish on fence")
def _republish(stack: ExitStack) -> None:
    async def turn(self: SeatDispatch, run: Any, mail: Any) -> Any:
        outcome = await original(self, run, mail)
        if isinstance(outcome, Defer):
            for event in mail.events:
                await self._means.outbox.post(msgspec.structs.replace(event, id=self._entropy.uuid()))
        return outcome

    original = put(stack, SeatDispatch, "_turn", turn)


@plant("ledger not read")
def _ledger_not_read(stack: ExitStack) -> None:
    async def finished(self: Ledger, *args: Any, **kwargs: Any) -> Mapping[str, Any]:
        return {}

    put(stack, Ledger, "finished", finished)


@plant("ledger not written")
def _ledger_not_written(stack: ExitStack) -> None:
    async def complete(self: Endings, *args: Any, **kwargs: Any) -> None:
        return

    put(stack, Endings, "_complete", complete)


@plant("broken turn acked")
def _broken_acked(stack: ExitStack) -> None:
    async def broke(self: Endings, run: Any, work: Any, reason: str) -> Any:
        await original(self, run, work, reason)
        return Ack()

    original = put(stack, Endings, "_broke", broke)


@plant("mail under a fresh id")
def _fresh_id(stack: ExitStack) -> None:
    count = iter(range(1_000_000))

    def fresh(handle: str, work: str, recipient: str, ordinal: int) -> str:
        return f"{original(handle, work, recipient, ordinal)}-{next(count)}"

    original = put(stack, sending, "outgoing_id", fresh)


@plant("fence not checked before sending")
def _send_unfenced(stack: ExitStack) -> None:
    class Open:
        def __init__(self, fence: Any) -> None:
            self.term = fence.term

        def check(self) -> None:
            return

    def init(self: Any, *, fence: Any, **kwargs: Any) -> None:
        original(self, fence=Open(fence), **kwargs)

    original = put(stack, sending.TurnMail, "__init__", init)
