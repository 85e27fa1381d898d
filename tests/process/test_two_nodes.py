"""Seats that move between real nodes on a real broker: each trigger runs where its seat is, and once."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from fleet_kit import NodeProcess, publish, runs

from crewlet.testing.brokers import Server, one_server
from crewlet.testing.faulty_link import FaultyLink, Frame

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

TTL_S = 6.0
LONG_TTL_S = 20.0
"""Long enough to send mail between a renewal that failed and the lapse, also from a busy machine."""
# A group of its own for each seat: whoever has it keeps it when the other node joins.
SEATS = {"idle": {"idle": ""}, "busy": {"busy": ""}}

Start = Callable[..., NodeProcess]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[Server]:
    with one_server(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def start(server: Server, tmp_path: Path) -> Generator[Start]:
    """Starts nodes, which are ended after the test."""
    nodes: list[NodeProcess] = []

    def started(
        node_id: str, seats: dict[str, dict[str, str]], labels: dict[str, str], url: str = "", ttl_s: float = TTL_S
    ) -> NodeProcess:
        node = NodeProcess(tmp_path, node_id, url or server.url, seats=seats, labels=labels, ttl_s=ttl_s)
        nodes.append(node)
        return node

    yield started
    for node in nodes:
        node.end()


def renewals_are_lost(frame: Frame) -> bytes | None:
    """Whatever a node writes to the leases does not arrive; all else passes."""
    return None if frame.head.startswith(b"HPUB $KV.crewlet_leases.") else frame.raw


@pytest.mark.proves("EE-01", "EE-02")
async def test_a_node_cut_off_from_renewals_runs_nothing_new_and_its_turn_stops_before_the_peer_runs_both(
    server: Server, start: Start, tmp_path: Path
) -> None:
    hold = tmp_path / "busy.hold"
    hold.touch()
    async with FaultyLink(server.url) as link:
        cut_off = start("cut-off", SEATS, {"idle": "", "busy": ""}, link.url, LONG_TTL_S)
        await cut_off.until(lambda: cut_off.holds("idle", "busy"), "the first node holds both seats")
        peer = start("peer", SEATS, {"idle": "", "busy": ""}, ttl_s=LONG_TTL_S)
        await cut_off.send("busy", "long")
        await cut_off.until(lambda: bool(runs(tmp_path, "busy")), "the long turn runs")
        await peer.until(lambda: _counts_two(peer), "the peer has joined")

        link.on_request = renewals_are_lost
        await cut_off.until(lambda: _failed(cut_off, "idle"), "it stopped admitting")
        await peer.send("idle", "late")
        assert await cut_off.holds("idle", "busy"), "the mail came too late for this test"

        await peer.until(lambda: any(run.is_ended for run in runs(tmp_path, "idle")), "the peer runs the late mail")
        await peer.until(lambda: len(runs(tmp_path, "busy")) == 2, "the peer runs the long turn")
        hold.unlink()
        await peer.until(lambda: _is_delivered(peer, "busy", "long"), "the long turn is finished")

        link.heal()
        await cut_off.until(lambda: _stands_by(cut_off), "it is back, without a seat")
        await peer.send("idle", "later")
        await peer.until(lambda: _is_delivered(peer, "idle", "later"), "the peer goes on")
        assert await peer.outcome("idle", "late") == "delivered"
        assert await peer.drain() == 0 and await cut_off.drain() == 0

    late, later = runs(tmp_path, "idle")
    assert [(run.node, run.triggers) for run in (late, later)] == [("peer", ("late",)), ("peer", ("later",))]
    first, second = runs(tmp_path, "busy")
    assert (first.node, first.triggers, first.is_ended) == ("cut-off", ("long",), False)
    assert (second.node, second.triggers, second.is_ended) == ("peer", ("long",), True)
    # The broker too keeps the mail from the peer while it is in the first one's hand: the lease alone is the measure.
    (taken,) = [event for event in peer.events("seat_claimed") if event["seat"] == "busy"]
    assert first.last_at < taken["at"] < second.first_at and first.epoch < second.epoch
    # By its own clock, before the store could tell it anything.
    (fenced,) = cut_off.events("turn_fenced")
    assert fenced["seat"] == "busy" and fenced["reason"] in ("lease_lapsing", "lease_lapsed")


@pytest.mark.proves("EE-04")
async def test_mail_sent_while_the_whole_fleet_is_down_is_run_in_order_and_once_under_new_node_ids(
    server: Server, start: Start, tmp_path: Path
) -> None:
    seats = {"left": {"side": "left"}, "right": {"side": "right"}}
    fleet = [start(f"old-{side}", seats, {"side": side}) for side in seats]
    for node, handle in zip(fleet, seats, strict=True):
        await node.until(lambda node=node, handle=handle: node.holds(handle), "the old fleet has its seats")
        await node.send(handle, f"{handle}-0")
        await node.until(lambda node=node, handle=handle: _is_delivered(node, handle, f"{handle}-0"), "it works")
    assert await fleet[0].drain() == 0
    fleet[1].end()

    ids = {handle: [f"{handle}-{number}" for number in range(4)] for handle in seats}
    await publish(server.url, fleet[0].company, [(handle, mail) for handle in seats for mail in ids[handle][1:]])

    fleet = [start(f"new-{side}", seats, {"side": side}) for side in seats]
    for node, handle in zip(fleet, seats, strict=True):
        last = ids[handle][-1]
        await node.until(lambda node=node, handle=handle, last=last: _is_delivered(node, handle, last), "all ran")
        # One more, so that whatever else lies in the inbox has had its turn.
        await node.send(handle, f"{handle}-after")
        await node.until(lambda node=node, handle=handle: _is_delivered(node, handle, f"{handle}-after"), "it goes on")
        assert await node.drain() == 0
    for handle, mails in ids.items():
        made = runs(tmp_path, handle)
        assert [trigger for run in made for trigger in run.triggers] == [*mails, f"{handle}-after"]
        assert all(run.is_ended for run in made)
        assert [run.node for run in made] == [f"old-{handle}"] + [f"new-{handle}"] * (len(made) - 1)


async def _counts_two(node: NodeProcess) -> bool:
    return (await node.health()).get("nodes") == 2


def _failed(node: NodeProcess, handle: str) -> bool:
    return any(event["seat"] == handle for event in node.events("seat_renewal_failed"))


async def _is_delivered(node: NodeProcess, handle: str, mail_id: str) -> bool:
    return await node.outcome(handle, mail_id) == "delivered"


async def _stands_by(node: NodeProcess) -> bool:
    health = await node.health()
    return health["has_presence"] and not health["seats"] and not health["in_flight"]
