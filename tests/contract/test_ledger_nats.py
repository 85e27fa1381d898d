"""The ledger on a real broker: whatever mail calls itself, its record is written and found."""

import pytest
from cells_worlds import NatsWorld

from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.ports.cells import BucketSpec

pytestmark = pytest.mark.real


@pytest.mark.parametrize(
    "name",
    ["", "=", ".", "*", ">", "a b", "a\r\nPUB x 0", "\x00", "chat.alice", "é" * 200, "😀" * 200, "x" * 100_000],
    ids=lambda name: ascii(name)[:12],
)
async def test_a_trigger_and_a_chat_message_of_any_name_are_recorded_and_found(world: NatsWorld, name: str) -> None:
    cells = await (await world.store()).open(BucketSpec(world.name(LEDGER_BUCKET.name), LEDGER_BUCKET.max_age_s))
    ledger, other = Ledger(cells), f"{name}!"
    assert await ledger.record("alice", [name], outcome="delivered", answered=[name])
    finished = await ledger.finished("alice", [name, other, "woken"], {"woken": name, other: other})
    assert finished.keys() == ({name, "woken"} if name else {name})  # "" is no chat message
    assert all(completion.is_by_thread == (trigger == "woken") for trigger, completion in finished.items())
    assert await ledger.finished("chat", ["alice", name, f"alice.{name}"]) == {}
