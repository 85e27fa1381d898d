"""Seats that ask each other at random while nodes come, go, freeze out and are paused: each question ends once.

Whatever happened, when the storm is over every channel is closed and delivered, what an asker was told is what was
answered, and nothing that the ledger knows is worked again. Each planted bug shows that a storm would tell.
"""

import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from asking_storm import storm

import crewlet.mail.channel
import crewlet.mail.channels
import crewlet.turns.dispatch
from crewlet.mail.channel import Channel, ChannelClosed, digest_of
from crewlet.mail.channels import Channels, Opened, Swept
from crewlet.mail.work_key import channel_mail_id
from crewlet.ports.errors import Unavailable
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.questions import Questions

open_, answer_, sweep_ = Channels.open, Channels.answer, Channels.sweep
Patch = pytest.MonkeyPatch
Bug = Callable[[Patch], None]
PLANTS: list[Any] = []


def plant(says: str, *, is_late: bool = False) -> Callable[[Bug], None]:
    """Keep a bug, and what a storm says of it: at once, or hours later when it is over."""

    def keep(bug: Bug) -> None:
        marks = [pytest.mark.long] if is_late else []
        PLANTS.append(pytest.param(bug, says, marks=marks, id=bug.__name__.strip("_").replace("_", " ")))

    return keep


@plant("is answered, and the store has")
def _a_delivery_is_not_noted(patch: Patch) -> None:
    async def delivered(*_: Any, **__: Any) -> None: ...

    patch.setattr(Channels, "delivered", delivered)


@plant("a question that was given up has run a turn", is_late=True)
def _a_closed_question_runs_a_turn(patch: Patch) -> None:
    async def none_closed(*_: Any) -> dict[str, str]:
        return {}

    patch.setattr(crewlet.turns.dispatch, "closed_questions", none_closed)


@plant("has two answers|^Channel")  # either may be seen first
def _a_closed_channel_takes_another_answer(patch: Patch) -> None:
    async def answer(self: Any, channel_id: str, *, by: str, text: str, work: str, admit: Any = None) -> Channel:
        found = await self.find(channel_id)
        if found is None or found.channel.to != by:
            raise ChannelClosed("no")
        closed = _closed(found.channel, text, work)
        if not await self._replace(found, closed, admit):
            raise Unavailable("changed meanwhile")
        return closed

    patch.setattr(Channels, "answer", answer)


@plant("answer='mine'", is_late=True)
def _any_seat_may_answer(patch: Patch) -> None:
    async def answer(self: Any, channel_id: str, *, by: str, **how: Any) -> Channel:
        found = await self.find(channel_id)
        return await answer_(self, channel_id, by=by if found is None else found.channel.to, **how)

    patch.setattr(Channels, "answer", answer)


@plant("waits for an answer of")
def _any_turn_of_a_seat_may_answer(patch: Patch) -> None:
    class Any_(dict[str, str]):
        def __contains__(self, key: object) -> bool:
            return True

        def __missing__(self, key: str) -> str:
            return "another mail"

    made = Questions.__init__

    def init(self: Any, mail: Any) -> None:
        made(self, mail)
        self.asked = Any_(self.asked)

    patch.setattr(Questions, "__init__", init)


@plant("another wake for each time")
def _an_answer_that_is_sent_again_is_other_mail(patch: Patch) -> None:
    numbers = itertools.count()

    def id_of(channel_id: str, part: str) -> str:
        known = channel_mail_id(channel_id, part)
        return known if part == "request" else f"{known[:-6]}{next(numbers):06}"

    patch.setattr(crewlet.mail.channel, "channel_mail_id", id_of)


@plant("ask .*: refused")
def _an_opening_that_nobody_answered_counts_as_refused(patch: Patch) -> None:
    async def open(self: Any, channel_id: str, channel: Channel, **how: Any) -> Opened:
        try:
            return await open_(self, channel_id, channel, **how)
        except Unavailable as lost:
            raise ChannelClosed("refused") from lost

    patch.setattr(Channels, "open", open)


@plant("has asked .* and the store has None")
def _an_opening_that_nobody_answered_counts_as_done(patch: Patch) -> None:
    async def open(self: Any, channel_id: str, channel: Channel, **how: Any) -> Opened:
        try:
            return await open_(self, channel_id, channel, **how)
        except Unavailable:
            return Opened(channel)

    patch.setattr(Channels, "open", open)


@plant("answer .*: refused")
def _a_closing_that_nobody_answered_counts_as_refused(patch: Patch) -> None:
    async def answer(self: Any, channel_id: str, **how: Any) -> Channel:
        try:
            return await answer_(self, channel_id, **how)
        except Unavailable as lost:
            raise ChannelClosed("refused") from lost

    patch.setattr(Channels, "answer", answer)


@plant("is answered, and the store has .*state='open'")
def _a_closing_that_nobody_answered_counts_as_done(patch: Patch) -> None:
    async def answer(self: Any, channel_id: str, *, by: str, text: str, work: str, admit: Any = None) -> Channel:
        found = None
        try:
            found = await self.find(channel_id)
            return await answer_(self, channel_id, by=by, text=text, work=work, admit=admit)
        except Unavailable:
            if found is None:
                raise
            return _closed(found.channel, text, work)

    patch.setattr(Channels, "answer", answer)


@plant("what a dead node left", is_late=True)
def _what_a_dead_node_left_is_not_delivered(patch: Patch) -> None:
    async def sweep(self: Any, turned: Any) -> Swept:
        swept = await sweep_(self, turned)
        idle = tuple(found for found in swept.undelivered if found.channel.state == "idle")
        return Swept(idle, swept.removed)

    patch.setattr(Channels, "sweep", sweep)


@plant("a question that was given up has run a turn", is_late=True)
def _nothing_is_given_up(patch: Patch) -> None:
    patch.setattr(crewlet.mail.channels, "IDLE_S", 1e9)


def _closed(channel: Channel, text: str, work: str) -> Channel:
    return msgspec.structs.replace(channel, state="answered", answer=text, digest=digest_of(text), by_work=work)


@pytest.mark.parametrize("seed", [1])
def test_after_a_storm_every_question_has_ended_once(seed: int) -> None:
    in_virtual_time(storm)(seed)


@pytest.mark.alone
@pytest.mark.long
@pytest.mark.parametrize(("bug", "says"), PLANTS)
def test_a_storm_tells_of_a_planted_bug(bug: Bug, says: str, monkeypatch: Patch) -> None:
    bug(monkeypatch)
    with pytest.raises(AssertionError, match=says):
        in_virtual_time(storm)(1, seconds=200)
