"""A dead letter goes back into its inbox once, whatever becomes of the answers."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail import topics
from crewlet.mail.deadletters import letter_of
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.replays import REPEAT_S, REPLAYS_BUCKET, Replays, ReplayUnsure
from crewlet.ports.cells import Cells
from crewlet.ports.deadletters import DeadLetter
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Ack, Delivery, NoMailbox
from crewlet.testing.twins.mail import PlainWire, TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

INBOX = topics.inbox("writer")
T = TypeVar("T")


class Wire(PlainWire):
    """`lose` are requests whose answers get lost, `stop` those that never leave; each once. `stall_s` delays all."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.lose: list[str] = []
        self.stop: list[str] = []
        self.stall_s = 0.0

    async def ask(
        self,
        name: str,
        effect: Callable[[], T],
        *,
        admit: Callable[[], None] | None = None,
        final_within_s: float | None = None,
    ) -> T:
        if name in self.stop:
            self.stop.remove(name)
            raise Unavailable("it did not leave")
        if self.stall_s and name == "publish":
            stall_s, self.stall_s = self.stall_s, 0.0
            await self.clock.sleep(stall_s)
        answer = await super().ask(name, effect, admit=admit, final_within_s=final_within_s)
        if name in self.lose:
            self.lose.remove(name)
            raise Unavailable("the answer was lost")
        return answer


@dataclass
class World:
    clock: VirtualClock = field(default_factory=VirtualClock)

    async def __aenter__(self) -> "World":
        self.broker = TwinBroker(self.clock, ack_window_s=30.0)
        self.store = LocalCells(self.clock)
        self.wire = Wire(self.clock)
        self.mail = TwinMail(self.broker, wire=self.wire)
        await self.mail.start()
        self.ledger = Ledger(await self.store.open(LEDGER_BUCKET))
        await self.mail.ensure_subscription(INBOX)
        headers = {"Kind": "test"}
        await self.mail.publish(INBOX.topic, b"text", message_id="m1", headers=headers)
        pull = self.broker.open_pull(INBOX, 1, 0.0)
        (message, _), *_ = pull.got
        delivery = Delivery("m1", message.data, message.sequence, 25, 0, message.published_at)
        letter = letter_of(INBOX, delivery, headers, "it broke", ())
        self.broker.bury(letter.subject, b"text", letter.headers)
        self.broker.ack(INBOX, message.sequence)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.mail.stop()

    def replays(self, name: str = "n1:a") -> Replays:
        return Replays(self.mail, self.ledger, self._open, name, self.clock)

    async def _open(self) -> Cells:
        return await self.store.open(REPLAYS_BUCKET)

    async def letter(self) -> DeadLetter:
        return (await self.mail.dead_letters.page(">")).letters[0]

    async def state(self) -> str | None:
        found = await self.replays().state(await self.letter())
        return None if found is None else found.mail

    def lose(self) -> None:
        """The mail that waits is gone, and nobody worked it."""
        self.broker.ack(INBOX, self.broker.open_pull(INBOX, 1, 0.0).got[0][0].sequence)

    @property
    def sent(self) -> list[str]:
        return [message.id for message in self.broker.retained(INBOX.topic)]


def checked(check: Callable[[World], Awaitable[None]]) -> Any:
    @in_virtual_time
    async def run() -> None:
        async with World() as world:
            await check(world)

    run.__name__ = check.__name__
    run.__doc__ = check.__doc__
    return run


@checked
async def test_a_replay_is_new_mail_with_the_same_id_and_its_letter_stays(world: World) -> None:
    letter = await world.letter()
    replay = await world.replays().replay(letter)
    assert not replay.is_repeat and world.sent == ["m1"]
    deliveries: list[Delivery] = []

    async def note(batch: Any) -> Ack:
        deliveries.extend(batch)
        return Ack()

    await world.mail.attach(INBOX, note, good_until=float("inf"))
    await until(lambda: deliveries != [])
    assert (deliveries[0].data, deliveries[0].deliveries) == (b"text", 1)
    assert await world.letter() == letter


@checked
async def test_a_replay_that_is_repeated_at_any_time_sends_nothing_more(world: World) -> None:
    letter = await world.letter()
    first = await world.replays().replay(letter)
    await world.ledger.record("writer", ["m1"], outcome="delivered")
    world.lose()
    for pause_s in (0.0, REPEAT_S, 3600.0, 30 * 24 * 3600.0):
        await world.clock.sleep(pause_s)
        again = await world.replays("n2:b").replay(letter, again=True)
        assert again.is_repeat and abs((again.at - first.at).total_seconds()) < 1.0
    assert world.sent == []


@checked
async def test_two_nodes_that_replay_one_letter_at_once_send_one_mail(world: World) -> None:
    letter = await world.letter()
    replays = await asyncio.gather(*(world.replays(name).replay(letter) for name in ("n1:a", "n2:b", "n3:c")))
    assert world.sent == ["m1"]
    assert sorted(replay.is_repeat for replay in replays) == [False, True, True]


@pytest.mark.parametrize("pause_s", [0.0, REPEAT_S - 1, REPEAT_S + 1, 3600.0])
@in_virtual_time
async def test_a_replay_whose_answer_was_lost_is_sent_once(pause_s: float) -> None:
    async with World() as world:
        letter = await world.letter()
        world.wire.lose.append("publish")
        with pytest.raises(Unavailable):
            await world.replays().replay(letter)
        assert world.sent == ["m1"]
        assert await world.state() == "open"
        await world.clock.sleep(pause_s)
        replay = await world.replays("n2:b").replay(letter)
        assert replay.is_repeat and world.sent == ["m1"]
        assert await world.state() == "open"


@checked
async def test_a_lost_answer_is_settled_by_the_ledger_when_the_mail_is_finished(world: World) -> None:
    letter = await world.letter()
    world.wire.lose.append("publish")
    with pytest.raises(Unavailable):
        await world.replays().replay(letter)
    world.lose()
    await world.ledger.record("writer", ["m1"], outcome="delivered")
    await world.clock.sleep(600.0)
    assert (await world.replays().replay(letter)).is_repeat and world.sent == []


@checked
async def test_a_replay_that_never_left_is_sent_by_its_repeat(world: World) -> None:
    letter = await world.letter()
    world.wire.stop.append("publish")
    with pytest.raises(Unavailable):
        await world.replays().replay(letter)
    assert world.sent == []
    assert not (await world.replays("n2:b").replay(letter)).is_repeat
    assert world.sent == ["m1"]


@checked
async def test_a_replay_without_a_trace_long_ago_waits_for_a_person_to_decide(world: World) -> None:
    letter = await world.letter()
    world.wire.stop.append("publish")
    with pytest.raises(Unavailable):
        await world.replays().replay(letter)
    await world.clock.sleep(REPEAT_S + 1)
    for _ in range(2):
        with pytest.raises(ReplayUnsure):
            await world.replays().replay(letter)
    assert world.sent == []
    assert not (await world.replays().replay(letter, again=True)).is_repeat
    assert world.sent == ["m1"]
    assert (await world.replays().replay(letter, again=True)).is_repeat and world.sent == ["m1"]


@checked
async def test_a_sender_that_stood_still_sends_nothing_after_its_window(world: World) -> None:
    letter = await world.letter()
    world.wire.stall_s = 300.0
    frozen = asyncio.create_task(world.replays().replay(letter))
    await world.clock.sleep(REPEAT_S - 1)
    assert not (await world.replays("n2:b").replay(letter)).is_repeat
    world.lose()
    with pytest.raises(Unavailable):
        await frozen
    assert world.sent == []


@checked
async def test_a_replay_without_a_mailbox_is_refused_and_can_be_made_later(world: World) -> None:
    letter = await world.letter()
    await world.mail.delete_subscription(INBOX)
    with pytest.raises(NoMailbox):
        await world.replays().replay(letter)
    assert await world.state() is None
    await world.clock.sleep(3600.0)
    await world.mail.ensure_subscription(INBOX)
    assert not (await world.replays().replay(letter)).is_repeat
    assert world.sent == ["m1"]


@checked
async def test_a_letter_is_done_only_once_its_mail_was_worked_to_an_end(world: World) -> None:
    letter = await world.letter()
    assert await world.state() is None
    assert (await world.replays().replay(letter)).mail == "open"
    assert await world.state() == "open"
    await world.ledger.record("writer", ["m1"], outcome="delivered")
    world.lose()
    assert await world.state() == "done"
    assert (await world.replays("n2:b").replay(letter)).mail == "done"


@checked
async def test_a_letter_whose_mail_went_with_its_mailbox_is_not_done_and_can_be_replayed(world: World) -> None:
    """The seat left the company before the mail was worked, its mailbox was retired, and the seat came back."""
    letter = await world.letter()
    first = await world.replays().replay(letter)
    await world.mail.delete_subscription(INBOX)
    assert await world.state() == "unknown"
    await world.mail.ensure_subscription(INBOX)
    assert world.sent == [] and await world.state() == "unknown"
    with pytest.raises(ReplayUnsure, match="--again"):
        await world.replays().replay(letter)
    again = await world.replays().replay(letter, again=True)
    assert not again.is_repeat and again.at >= first.at and world.sent == ["m1"]
    assert await world.state() == "open"


@checked
async def test_a_letter_that_was_done_stays_done_when_the_ledger_has_forgotten(world: World) -> None:
    letter = await world.letter()
    first = await world.replays().replay(letter)
    await world.ledger.record("writer", ["m1"], outcome="delivered")
    world.lose()
    assert await world.state() == "done"
    await world.clock.sleep(8 * 24 * 3600.0)
    assert await world.ledger.completion("writer", "m1") is None
    state = await world.replays().state(letter)
    assert state is not None and (state.mail, state.at) == ("done", first.at)


@checked
async def test_a_letter_whose_mail_used_up_its_deliveries_again_says_so(world: World) -> None:
    letter = await world.letter()
    await world.replays().replay(letter)
    message = world.broker.open_pull(INBOX, 1, 0.0).got[0][0]
    delivery = Delivery("m1", message.data, message.sequence, 25, 0, message.published_at)
    second = letter_of(INBOX, delivery, {}, "it broke again", ())
    world.broker.bury(second.subject, b"text", second.headers)
    world.broker.ack(INBOX, message.sequence)
    assert await world.state() == "dead_lettered"
    assert (await world.replays().replay(letter)).mail == "dead_lettered" and world.sent == []


@checked
async def test_a_repeated_replay_that_finds_no_mailbox_leaves_the_record_of_the_one_before(world: World) -> None:
    letter = await world.letter()
    first = await world.replays().replay(letter)
    await world.mail.delete_subscription(INBOX)
    with pytest.raises(NoMailbox):
        await world.replays().replay(letter, again=True)
    state = await world.replays().state(letter)
    assert state is not None and (state.mail, state.at) == ("unknown", first.at)
    await world.mail.ensure_subscription(INBOX)
    await world.clock.sleep(1.0)
    assert not (await world.replays().replay(letter, again=True)).is_repeat and world.sent == ["m1"]
