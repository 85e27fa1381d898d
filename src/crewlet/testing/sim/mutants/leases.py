"""Bugs of leases: of claims, renewals, lapses and the protocol gate."""

# The replacements reach into private parts on purpose: that is where the bugs they stand for would be.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false

import asyncio
import sys
from collections.abc import Awaitable
from contextlib import ExitStack
from datetime import datetime
from typing import Any
from unittest.mock import patch

import msgspec

from crewlet.ports.cells import Entry
from crewlet.seats import claim, gate, records
from crewlet.seats.claim import Claims
from crewlet.seats.handoff import Handoff
from crewlet.seats.heartbeat import Heartbeat
from crewlet.seats.holds import Hold
from crewlet.seats.leases import LeaseStore
from crewlet.seats.records import EpochRecord, Found, LeaseRecord
from crewlet.testing.sim.mutants.planting import plant, put


@plant("no give-back on cancel")
def _no_give_back(stack: ExitStack) -> None:
    async def nothing() -> None:
        return

    def give_back(self: Claims, attempt: Any) -> Awaitable[None]:
        if isinstance(sys.exc_info()[1], asyncio.CancelledError):
            return nothing()
        return original(self, attempt)

    original = put(stack, Claims, "_give_back", give_back)


@plant("no give-back at all")
def _no_give_back_at_all(stack: ExitStack) -> None:
    async def give_back(self: Claims, attempt: Any) -> None:
        return

    put(stack, Claims, "_give_back", give_back)


@plant("renew counted from the reply")
def _renew_from_reply(stack: ExitStack) -> None:
    def renewed(self: Heartbeat, tenure: Any, sent_at: float) -> None:
        original(self, tenure, self._context.clock.elapsed())

    original = put(stack, Heartbeat, "_renewed", renewed)


@plant("epochs forgotten")
def _epochs_forgotten(stack: ExitStack) -> None:
    def decode(entry: Entry | None) -> EpochRecord:
        return EpochRecord()

    put(stack, claim, "decode_epoch", decode)


@plant("lapse judged early")
def _lapse_judged_early(stack: ExitStack) -> None:
    def judge(entry: Entry, store_now: datetime, age_s: float) -> Found:
        return original(entry, store_now, age_s * 0.7)

    original = records.judge
    for module in ("crewlet.seats.table.judge", "crewlet.seats.records.judge"):
        stack.enter_context(patch(module, judge))


@plant("gate blind to presence")
def _gate_blind(stack: ExitStack) -> None:
    put(stack, gate, "_COUNTED", (records.prefix_of("seat"),))


@plant("late renewal given back at once")
def _late_given_back(stack: ExitStack) -> None:
    async def landed(self: LeaseStore, hold: Hold, record: LeaseRecord, revision: int, *times: float) -> bool:
        is_counted = await original(self, hold, record, revision, *times)
        if not is_counted:
            await self._table.replace(hold.key, msgspec.structs.replace(record, released=True), expect=revision)
        return is_counted

    original = put(stack, LeaseStore, "_landed", landed)


@plant("own lapsed tenure taken up again")
def _taken_up_again(stack: ExitStack) -> None:
    def is_over(self: LeaseStore, key: str, owner: str, epoch: int) -> bool:
        return False

    def rest(self: Handoff, handle: str) -> None:
        return

    async def settle_give_backs(self: Handoff) -> None:
        return

    put(stack, LeaseStore, "_is_over", is_over)
    # What else would keep it from being claimed while a late renewal has it alive.
    put(stack, Handoff, "_rest", rest)
    put(stack, Handoff, "settle_give_backs", settle_give_backs)
