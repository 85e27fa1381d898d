"""One seat asks another and goes on with the answer: whole nodes over twins, in virtual time."""

from dataclasses import dataclass, field

import msgspec
import pytest
from node_rig import Fleet

from crewlet.company.model import Seat
from crewlet.mail.channel import Channel
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.node.assembly import Node
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Runner, Turn, TurnResult


@dataclass
class Talkers:
    """alice asks bob about each mail; bob answers; alice notes what came."""

    heard: list[str] = field(default_factory=list[str])
    kind: str = "talkers"

    async def run(self, turn: Turn) -> TurnResult:
        assert turn.tools is not None
        for mail in turn.mail:
            match mail.type:
                case "a2a_request":
                    await turn.tools.call("answer", {"text": f"{mail.body} 42"})
                case "a2a_message":
                    self.heard.append(mail.body)
                case _:
                    await turn.tools.call("ask", {"to": "bob", "question": "how many?"})
        return TurnResult("delivered")


class Talking(Fleet):
    """A fleet of talkers."""

    talkers: Talkers

    def runner(self, seat: Seat, node: str) -> Runner:
        return self.talkers


def _fleet(roles: frozenset[str] = frozenset({"seats"})) -> Talking:
    fleet = Talking(["alice", "bob"], roles=roles)
    fleet.talkers = Talkers()
    return fleet


@in_virtual_time
async def test_an_answer_wakes_the_asker_once_and_a_copy_of_it_wakes_nobody() -> None:
    fleet = _fleet()
    talkers = fleet.talkers
    node = await fleet.node("n1")
    await fleet.until(lambda: fleet.holder("alice") and fleet.holder("bob"), "both are held")
    await fleet.send("alice", "m1")
    await fleet.until(lambda: talkers.heard, "the answer is there")
    assert talkers.heard == ["how many? 42"]
    channels = Channels(await fleet.store.open(CHANNELS_BUCKET))
    (entry,) = await (await fleet.store.open(CHANNELS_BUCKET)).list()
    found = await channels.find(entry.key.partition(".")[2])
    assert found is not None and found.channel.is_delivered and not found.channel.answer
    await fleet.clock.sleep(600)  # past the broker's memory of ids
    copy = msgspec.structs.replace(found.channel, answer="how many? 42")
    await node.commands.outbox.post(copy.message(found.id, node.commands.outbox.timestamp()))
    await fleet.clock.sleep(60)
    assert talkers.heard == ["how many? 42"], "the ledger knows the answer's wake"
    await fleet.close()


@pytest.mark.parametrize("asker", ["alice", "gone"])
def test_the_maintenance_duty_delivers_what_a_dead_node_left_behind(asker: str) -> None:
    @in_virtual_time
    async def case() -> None:
        fleet = _fleet(frozenset({"seats", "workers"}))
        talkers = fleet.talkers
        node: Node = await fleet.node("n1")
        channels = Channels(await fleet.store.open(CHANNELS_BUCKET))
        await channels.open("0a", Channel(asker, "bob", "how many?"))
        await channels.answer("0a", by="bob", text="42", work="w")
        await fleet.clock.sleep(120)
        assert (await node.commands.duties.run("maintenance")).outcome == "done"
        found = await channels.find("0a")
        assert found is not None and found.channel.is_delivered == (asker == "alice")
        await fleet.clock.sleep(60)
        assert talkers.heard == (["42"] if asker == "alice" else [])
        assert Seat("alice").handle == "alice"
        await fleet.close()

    case()
