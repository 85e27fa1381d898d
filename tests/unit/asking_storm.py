"""Seats that ask each other at random while nodes come, go, freeze out and are paused, and who judges it."""

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from node_rig import TTL_S, Fleet

from crewlet.company.model import Seat
from crewlet.mail.channel import MAX_ANSWER_CHARS, UNANSWERED, Channel, ChannelClosed
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.mail.work_key import channel_mail_id
from crewlet.node.assembly import Node
from crewlet.ports.cells import BucketSpec, Cells, CellStore
from crewlet.ports.errors import Unavailable
from crewlet.ports.tools import ToolAnswer
from crewlet.testing.faults import Faults, FaultyCells
from crewlet.testing.sim.dice import Dice, SimEntropy
from crewlet.turns.questions import answering
from crewlet.turns.turn import Runner, Turn, TurnBroke, TurnResult

SEATS = ("alice", "bob", "carol", "dora")
STORM_S = 900.0
NEVER_SENT, LEFT_BEHIND, TOO_LATE, ANOTHERS = "0a", "0b", "0c", "0d"
TOO_DEEP = "this work was passed on"
EARLIER_RUN = "an earlier run of this work has answered already"
GIVEN_UP = "the question is closed: it waited too long, and was given up"
NOT_MINE = "no mail of this turn asks in"


@dataclass
class Talk:
    """Plays every seat. What it says follows from the mail alone, so that a re-run says the same but for its answers.

    Attributes:
        asked: who asked whom, by channel.
        answered: the text of each answer that was taken, by channel.
        told: what came to each asker, by channel.
        worked: the ids of the mail of each turn.
        wrong: what must not have been.
    """

    ledger: Ledger
    channels: Channels
    clock: Any
    kind: str = "talk"
    asked: dict[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    answered: dict[str, str] = field(default_factory=dict[str, str])
    told: dict[str, str] = field(default_factory=dict[str, str])
    worked: list[str] = field(default_factory=list[str])
    wrong: list[str] = field(default_factory=list[str])

    async def run(self, turn: Turn) -> TurnResult:
        (mail,) = turn.mail
        me, dice = turn.seat.handle, random.Random(f"{turn.seat.handle} {mail.id}")
        self.worked.append(mail.id)
        if await self.ledger.completion(me, mail.id) is not None:
            self.wrong.append(f"{mail.id} of {me} is worked again")
        if mail.type == "a2a_message":
            self._hear(me, mail)  # at once, since a person may stop the turn for good
        await self._work(turn, dice.random() * 5)
        match mail.type:
            case "a2a_request":
                await self._meddle(turn, mail)
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

    async def _call(self, turn: Turn, tool: str, *may_say: str, **arguments: str) -> ToolAnswer:
        """Call a tool that can be refused for these reasons alone."""
        assert turn.tools is not None
        answer = await turn.tools.call(tool, arguments)
        if answer.is_error and not answer.text.startswith(may_say):
            self.wrong.append(f"{tool} {arguments} of {turn.seat.handle}: {answer.text}")
        return answer

    async def _ask(self, turn: Turn, dice: random.Random) -> bool:
        me = turn.seat.handle
        to = dice.choice([handle for handle in SEATS if handle != me])
        answer = await self._call(turn, "ask", TOO_DEEP, to=to, question=f"what of {turn.mail[0].id}?")
        if answer.is_error:
            return False
        channel = answer.text.rpartition(" ")[2]
        self.asked[channel] = me, to
        found = await self.channels.find(channel)
        if found is None or (found.channel.asker, found.channel.to) != (me, to):
            self.wrong.append(f"{me} has asked {to} in {channel}, and the store has {found}")
        return True

    async def _answer(self, turn: Turn, mail: Envelope) -> None:
        for channel in mail.payload.get("upon") or [mail.payload["channel"]]:
            text = f"{turn.turn_id} says of {channel}"
            answer = await self._call(turn, "answer", EARLIER_RUN, GIVEN_UP, text=text, channel=channel)
            found = await self.channels.find(channel)
            if answer.text == GIVEN_UP:
                if found is None or found.channel.state != "idle":
                    self.wrong.append(f"{channel} was not given up: {found}")
            elif found is None or found.channel.state == "open" or not found.channel.is_delivered:
                self.wrong.append(f"{channel} is answered, and the store has {found}")
            if not answer.is_error and self.answered.setdefault(channel, text) != text:
                self.wrong.append(f"{channel} has two answers")

    async def _meddle(self, turn: Turn, mail: Envelope) -> None:
        """Try to answer what others were asked."""
        others = [channel for channel, (_, to) in self.asked.items() if to != turn.seat.handle]
        for channel in others[-1:]:
            answer = await self._call(turn, "answer", NOT_MINE, text="I know better", channel=channel)
            if not answer.is_error:
                self.wrong.append(f"{turn.seat.handle} has answered {channel}, which is not its own")

    def _hear(self, me: str, mail: Envelope) -> None:
        channel = mail.payload["channel"]
        if self.told.setdefault(channel, mail.body) != mail.body:
            self.wrong.append(f"{channel} was answered twice: {self.told[channel]} and {mail.body}")
        if mail.id != channel_mail_id(channel, "message"):
            self.wrong.append(f"{mail.id} tells of {channel}: another wake for each time that it is sent")
        asker, to = self.asked.get(channel, (me, ""))
        if asker != me or (to and mail.source not in (f"seat:{to}", "program")):
            self.wrong.append(f"{asker} asked {to} in {channel}, and {me} heard of it from {mail.source}")


class LossyStore(CellStore):
    """Channels and ledger leave one write in five unanswered, landed or not, and channels one read in ten."""

    def __init__(self, store: CellStore, dice: random.Random, opened: list[FaultyCells]) -> None:
        self._store = store
        self._dice = dice
        self._opened = opened

    async def open(self, spec: BucketSpec) -> Cells:
        cells = await self._store.open(spec)
        if spec.name not in (CHANNELS_BUCKET.name, LEDGER_BUCKET.name):
            return cells
        unavailable = 0.1 if spec.name == CHANNELS_BUCKET.name else 0.0
        faults = Faults(lost=0.1, unanswered=0.1, unavailable=unavailable)
        self._opened.append(FaultyCells(cells, random=self._dice, faults=faults))
        return self._opened[-1]


class Stormy(Fleet):
    """A fleet whose seats talk."""

    talk: Talk
    channels: Channels
    people: Pauses

    def runner(self, seat: Seat, node: str) -> Runner:
        return self.talk


async def storm(seed: int, *, seconds: float = STORM_S) -> None:
    """One storm, and what must be so when it is over.

    Raises:
        AssertionError: it is not.
    """
    dice = random.Random(seed)
    fleet = Stormy(SEATS, roles=frozenset({"seats", "workers"}), entropy=SimEntropy(Dice(seed, "storm")))
    lossy: list[FaultyCells] = []
    fleet.store_of = lambda name: LossyStore(fleet.store, dice, lossy)
    fleet.channels = Channels(await fleet.store.open(CHANNELS_BUCKET))
    fleet.people = Pauses(await fleet.store.open(PAUSES_BUCKET))
    fleet.talk = Talk(Ledger(await fleet.store.open(LEDGER_BUCKET)), fleet.channels, fleet.clock)
    await fleet.node("n1")
    await fleet.until(lambda: all(fleet.holder(handle) for handle in SEATS), "all are held")
    await fleet.channels.open(NEVER_SENT, Channel("alice", "bob", "?"))
    await fleet.channels.open(LEFT_BEHIND, Channel("bob", "alice", "?"))
    await fleet.channels.answer(LEFT_BEHIND, by="alice", text="as a dead node left it", work="w")
    await _blow(fleet, dice, seconds)
    await fleet.clock.sleep(3 * TTL_S)
    while len(fleet.nodes) > 1:  # one is enough for the rest, and the day is short
        await fleet.stop(next(iter(fleet.nodes)))
    for cells in lossy:
        cells.heal()
    await _calm(fleet)
    await fleet.close()


async def _blow(fleet: Stormy, dice: random.Random, seconds: float) -> None:
    names, paused = iter(f"n{number}" for number in range(2, 1_000)), dict[str, str]()
    ends_at, mails = fleet.clock.elapsed() + seconds, 0
    while fleet.clock.elapsed() < ends_at:
        assert not fleet.talk.wrong, fleet.talk.wrong
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
                    await fleet.people.pause([handle], Wish(name, stop_running=dice.random() < 0.5))
                    paused[handle] = name
            case _:
                await fleet.people.resume(paused)
                paused.clear()
    fleet.allow()
    fleet.cut.clear()
    await fleet.people.resume(paused)


async def _calm(fleet: Stormy) -> None:
    """Nothing is lost any more: what was asked is answered, and what is closed stays so."""
    talk, channels = fleet.talk, fleet.channels
    (node,) = fleet.nodes.values()
    outbox = node.commands.outbox
    await fleet.clock.sleep(600)  # what waits is worked off
    await _everybody_answers(fleet)
    await fleet.people.pause(["bob"], Wish("away"))
    opened = (await channels.open(TOO_LATE, Channel("alice", "bob", "?"))).channel
    request = opened.request(TOO_LATE, "?", outbox.timestamp(), "")
    await outbox.post(request)
    await fleet.clock.sleep(3600 + 3 * 900)
    await fleet.people.resume({"bob": "away"})
    await fleet.clock.sleep(60)
    assert not talk.wrong, talk.wrong
    assert request.id not in talk.worked, "a question that was given up has run a turn"
    for by in ("bob", "carol"):
        with suppress(ChannelClosed):
            work = answering(by, request.id)
            raise AssertionError(await channels.answer(TOO_LATE, by=by, text="so", work=work))
    await _one_seat_answers(channels)
    assert talk.told[NEVER_SENT] == talk.told[TOO_LATE] == UNANSWERED
    assert talk.told.get(LEFT_BEHIND) == "as a dead node left it", "what a dead node left is nowhere"
    assert len(talk.asked) > 10 and len(talk.answered) > 5, "nothing was asked: the storm is none"
    await _nobody_is_woken_again(fleet, node)
    for entry in await (await fleet.store.open(CHANNELS_BUCKET)).list():
        found = await channels.find(entry.key.partition(".")[2])
        assert found is not None and found.channel.state != "open" and found.channel.is_delivered, found
        if found.id == ANOTHERS:
            continue
        assert found.id in talk.told, f"the asker of {found.id} was never told: {found}"
        expected = talk.answered.get(found.id, talk.told[found.id]) if found.channel.state == "answered" else UNANSWERED
        assert talk.told[found.id] == expected and len(expected) < MAX_ANSWER_CHARS


async def _everybody_answers(fleet: Stormy) -> None:
    known = set(fleet.talk.asked)
    for seat in SEATS:
        await fleet.send(seat, f"calm-{seat}")
    await fleet.clock.sleep(600)
    asked = fleet.talk.asked.keys() - known
    found = [await fleet.channels.find(channel) for channel in asked]
    assert len(found) >= len(SEATS) and all(each and each.channel.state == "answered" for each in found), found


async def _one_seat_answers(channels: Channels) -> None:
    await channels.open(ANOTHERS, Channel("alice", "bob", "?"))
    with suppress(ChannelClosed):
        raise AssertionError(await channels.answer(ANOTHERS, by="carol", text="mine", work="w"))
    assert (await channels.answer(ANOTHERS, by="bob", text="so", work="w")).answer == "so"
    await channels.delivered(ANOTHERS)


async def _nobody_is_woken_again(fleet: Stormy, node: Node) -> None:
    """A copy of an answer, sent after the broker has forgotten its id, runs no turn."""
    known = [channel for channel in fleet.talk.answered if channel in fleet.talk.told]
    found = await fleet.channels.find(known[-1])
    assert found is not None
    worked = list(fleet.talk.worked)
    await node.commands.outbox.post(found.channel.message(found.id, node.commands.outbox.timestamp()))
    await fleet.clock.sleep(60)
    assert fleet.talk.worked == worked, "an answer has woken its asker twice"
