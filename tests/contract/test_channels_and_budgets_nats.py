"""Channels and budgets on a real broker: one answer of many that race, every token counted, a cap raised elsewhere."""

import asyncio
from collections.abc import Callable
from datetime import UTC

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.system.clock import SystemClock
from crewlet.mail.channel import MAX_ANSWER_CHARS, Channel, ChannelClosed
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.ports.cells import BucketSpec
from crewlet.turns.budget import Caps
from crewlet.turns.budgetgate import BudgetGate
from crewlet.turns.budgets import BUDGETS_BUCKET, COMPANY, Budgets

pytestmark = pytest.mark.real

BOUND_S = 30.0


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(BOUND_S):
        while not is_so():
            await asyncio.sleep(0.02)


async def test_of_many_works_that_answer_at_once_one_closes_the_channel(world: NatsWorld) -> None:
    spec = BucketSpec(world.name(CHANNELS_BUCKET.name))
    nodes = [Channels(await (await world.store()).open(spec)) for _ in range(3)]
    first = await nodes[0].open("0a", Channel("bob", "alice", "how?"))
    second = await nodes[1].open("0a", Channel("bob", "alice", "how?"))
    assert second.channel == first.channel and (first.revision > 0, second.revision) == (True, 0)

    async def answer(number: int) -> str | None:
        try:
            return (await nodes[number % 3].answer("0a", by="alice", text=f"a{number}", work=f"w{number}")).answer
        except ChannelClosed:
            return None

    answers = [text for text in await asyncio.gather(*(answer(number) for number in range(9))) if text is not None]
    found = await nodes[2].find("0a")
    assert found is not None and answers == [found.channel.answer]
    winner = found.channel.by_work
    again = await nodes[1].answer("0a", by="alice", text="other words", work=winner)
    assert again.answer == found.channel.answer


async def test_the_longest_answer_of_the_worst_characters_is_kept_and_a_refused_question_taken_back(
    world: NatsWorld,
) -> None:
    cells = await (await world.store()).open(BucketSpec(world.name(CHANNELS_BUCKET.name)))
    channels, worst = Channels(cells), "\x01" * MAX_ANSWER_CHARS
    await channels.open("0a", Channel("bob", "alice", worst))
    assert (await channels.answer("0a", by="alice", text=worst, work="w")).answer == worst
    found = await channels.find("0a")
    assert found is not None and found.channel.answer == worst
    for _ in range(2):
        opened = await channels.open("0b", Channel("bob", "alice", "how?"))
        assert opened.revision > 0
        await channels.withdraw("0b", opened)
        assert await channels.find("0b") is None


async def test_tokens_of_nodes_that_charge_at_once_are_all_counted_and_a_raised_cap_frees_a_seat_elsewhere(
    world: NatsWorld,
) -> None:
    spec = BucketSpec(world.name(BUDGETS_BUCKET.name))
    buckets = [await (await world.store()).open(spec) for _ in range(3)]
    nodes = [
        Budgets(cells, lambda spender: Caps(month=300) if spender == "alice" else Caps(), lambda: UTC)
        for cells in buckets
    ]
    await asyncio.gather(*(node.charge("alice", 10) for node in nodes for _ in range(10)))
    assert (await nodes[0].standing(COMPANY)).spent["month"] == 300
    told: list[str] = []
    gate = BudgetGate(nodes[0], buckets[0], SystemClock(), told.append)
    gate.start()
    assert await gate.screen("alice") is not None
    await nodes[2].set_caps("alice", Caps(month=1000))
    await _until(lambda: gate.over("alice") is None)
    await gate.admit("alice")
    await nodes[1].set_caps("alice", None)
    assert await gate.screen("alice") is not None
    await nodes[1].reset("alice")
    await _until(lambda: gate.over("alice") is None)
    assert told == ["alice"] * 4
    await gate.stop()
    for node in nodes:
        await node.stop()
