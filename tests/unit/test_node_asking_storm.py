"""Seats that ask each other at random while nodes come, go, freeze out and are paused: each question ends once.

Whatever happened, when the storm is over every channel is closed and delivered, what an asker was told is what was
answered, and nothing that the ledger knows is worked again.
"""

import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from node_rig import TTL_S, Fleet

from crewlet.company.model import Seat
from crewlet.mail.channels import CHANNELS_BUCKET, MAX_ANSWER_CHARS, UNANSWERED, Channel, Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.ports.cells import BucketSpec, Cells, CellStore, Entry, Unknown, WriteResult
from crewlet.ports.errors import Unavailable
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Runner, Turn, TurnBroke, TurnResult

SEATS = ("alice", "bob", "carol", "dora")
STORM_S = 900.0
NEVER_SENT, LEFT_BEHIND = "0a", "0b"


@dataclass
class Talk:
    """Plays every seat. What it says follows from the mail alone, so that a re-run says the same.

    Attributes:
        answered: the text of each answer that was taken, by channel.
        told: what came to each asker, by channel.
    """

    ledger: Ledger
    clock: Any
    kind: str = "talk"
    asked: set[str] = field(default_factory=set[str])
    answered: dict[str, str] = field(default_factory=dict[str, str])
    told: dict[str, str] = field(default_factory=dict[str, str])
    wrong: list[str] = field(default_factory=list[str])

    async def run(self, turn: Turn) -> TurnResult:
        (mail,) = turn.mail
        me, dice = turn.seat.handle, random.Random(f"{turn.seat.handle} {mail.id}")
        if await self.ledger.completion(me, mail.id) is not None:
            self.wrong.append(f"{mail.id} of {me} is worked again")
        if mail.type == "a2a_message":
            self._hear(mail)  # at once, since a person may stop the turn for good
        await self._work(turn, dice.random() * 5)
        match mail.type:
            case "a2a_request":
                if dice.random() < 0.5 or not await self._ask(turn, dice):
                    await self._answer(turn, mail)
            case "a2a_message":
                if mail.payload.get("upon"):
                    await self._answer(turn, mail)
            case _:
                await self._ask(turn, dice)
        await self._work(turn, dice.random() * 5)
        if random.Random(turn.turn_id).random() < 0.1:
            raise TurnBroke("coughed")
        return TurnResult("delivered")

    async def _work(self, turn: Turn, seconds: float) -> None:
        while seconds > 0:
            turn.fence.check()
            await self.clock.sleep(min(1.0, seconds))
            seconds -= 1.0
        turn.fence.check()

    async def _ask(self, turn: Turn, dice: random.Random) -> bool:
        assert turn.tools is not None
        to = dice.choice([handle for handle in SEATS if handle != turn.seat.handle])
        answer = await turn.tools.call("ask", {"to": to, "question": f"what of {turn.mail[0].id}?"})
        if not answer.is_error:
            self.asked.add(answer.text.rpartition(" ")[2])
        return not answer.is_error

    async def _answer(self, turn: Turn, mail: Envelope) -> None:
        assert turn.tools is not None
        for channel in mail.payload.get("upon") or [mail.payload["channel"]]:
            text = f"{turn.turn_id} says of {channel}"
            answer = await turn.tools.call("answer", {"text": text, "channel": channel})
            if not answer.is_error and self.answered.setdefault(channel, text) != text:
                self.wrong.append(f"{channel} has two answers")

    def _hear(self, mail: Envelope) -> None:
        channel = mail.payload["channel"]
        if self.told.setdefault(channel, mail.body) != mail.body:
            self.wrong.append(f"{channel} was answered twice: {self.told[channel]} and {mail.body}")


class Lossy:
    """A bucket that leaves one write in five unanswered, landed or not, and of channels one read in ten."""

    def __init__(self, cells: Cells, dice: random.Random) -> None:
        self._cells = cells
        self._dice = dice

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def read(self, key: str) -> Entry | None:
        if self._cells.name == CHANNELS_BUCKET.name and self._dice.random() < 0.1:
            raise Unavailable("lost")
        return await self._cells.read(key)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        return await self._lose(lambda: self._cells.create(key, value, **how))

    async def replace(self, key: str, value: bytes, **how: Any) -> WriteResult:
        return await self._lose(lambda: self._cells.replace(key, value, **how))

    async def remove(self, key: str, **how: Any) -> WriteResult:
        return await self._lose(lambda: self._cells.remove(key, **how))

    async def _lose(self, write: Callable[[], Awaitable[WriteResult]]) -> WriteResult:
        lot = self._dice.random()
        if lot < 0.1:
            return Unknown("lost on the way")
        result = await write()
        return Unknown("the answer is lost") if lot < 0.2 else result


class LossyStore:
    def __init__(self, store: CellStore, dice: random.Random) -> None:
        self._store = store
        self._dice = dice

    async def open(self, spec: BucketSpec) -> Cells:
        cells = await self._store.open(spec)
        is_lossy = spec.name in (CHANNELS_BUCKET.name, LEDGER_BUCKET.name)
        return cast("Cells", Lossy(cells, self._dice)) if is_lossy else cells


class Stormy(Fleet):
    """A fleet whose seats talk."""

    talk: Talk

    def runner(self, seat: Seat, node: str) -> Runner:
        return self.talk


async def _storm(fleet: Stormy, dice: random.Random) -> None:
    people = Pauses(await fleet.store.open(PAUSES_BUCKET))
    names, paused = iter(f"n{number}" for number in range(2, 1_000)), dict[str, str]()
    ends_at, mails = fleet.clock.elapsed() + STORM_S, 0
    while fleet.clock.elapsed() < ends_at:
        for _ in range(dice.randrange(3)):
            mails += 1
            with suppress(Unavailable):
                await fleet.send(dice.choice(SEATS), f"m{mails}")
        await fleet.clock.sleep(dice.random() * 20)
        steady = [name for name in fleet.nodes if name not in fleet.cut]
        fleet.allow()
        match dice.randrange(8):
            case 0 if len(fleet.nodes) < 4:
                await fleet.node(next(names))
            case 1 if len(steady) > 1:
                await fleet.stop(dice.choice(steady))
            case 2 if len(steady) > 1:
                await fleet.nodes.pop(dice.choice(steady)).close()
            case 3 if len(steady) > 1:
                fleet.cut.add(dice.choice(steady))
            case 4:
                fleet.cut.clear()
            case 5:
                fleet.refuse("publish")
            case 6:
                handle, name = dice.choice(SEATS), f"p{mails}"
                if handle not in paused:
                    await people.pause([handle], Wish(name, stop_running=dice.random() < 0.5))
                    paused[handle] = name
            case _:
                await people.resume(paused)
                paused.clear()
    fleet.allow()
    fleet.cut.clear()
    await people.resume(paused)


@pytest.mark.parametrize("seed", [1])
def test_after_a_storm_every_question_has_ended_once(seed: int) -> None:
    @in_virtual_time
    async def case() -> None:
        dice = random.Random(seed)
        fleet = Stormy(SEATS, roles=frozenset({"seats", "workers"}))
        fleet.store_of = lambda name: LossyStore(fleet.store, dice)
        fleet.talk = Talk(Ledger(await fleet.store.open(LEDGER_BUCKET)), fleet.clock)
        await fleet.node("n1")
        await fleet.until(lambda: all(fleet.holder(handle) for handle in SEATS), "all are held")
        channels = Channels(await fleet.store.open(CHANNELS_BUCKET))
        await channels.open(NEVER_SENT, Channel("alice", "bob", "?"))
        await channels.open(LEFT_BEHIND, Channel("bob", "alice", "?"))
        await channels.answer(LEFT_BEHIND, by="alice", text="as a dead node left it", work="w")
        await _storm(fleet, dice)
        await fleet.clock.sleep(3 * TTL_S)
        while len(fleet.nodes) > 1:  # one is enough for the rest, and the day is short
            await fleet.stop(next(iter(fleet.nodes)))
        await fleet.clock.sleep(3600 + 3 * 900)
        talk = fleet.talk
        assert talk.wrong == []
        assert talk.told[NEVER_SENT] == UNANSWERED and talk.told[LEFT_BEHIND] == "as a dead node left it"
        assert len(talk.asked) > 10 and len(talk.answered) > 5, "nothing was asked: the storm is none"
        for entry in await (await fleet.store.open(CHANNELS_BUCKET)).list():
            found = await channels.find(entry.key.partition(".")[2])
            assert found is not None and found.channel.state != "open" and found.channel.is_delivered, found
            assert found.id in talk.told, f"the asker of {found.id} was never told: {found}"
            expected = (
                talk.answered.get(found.id, talk.told[found.id]) if found.channel.state == "answered" else UNANSWERED
            )
            assert talk.told[found.id] == expected and len(expected) < MAX_ANSWER_CHARS
        await fleet.close()

    case()
