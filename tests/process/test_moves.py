"""`python` seats and seats with tool servers that move between real nodes, judged by what their processes leave behind.

Two seats of each kind are a group of their own, which two nodes share.
"""

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from fleet_kit import BOUND_S, NodeProcess, whole_lines
from process_kit import is_running, until

from crewlet.testing.brokers import one_server
from crewlet.testing.modelserver import Answer, Asked, Call, Say, model_server

pytestmark = [
    pytest.mark.real,
    pytest.mark.timeout(420),
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

TTL_S = 10.0
HERE = Path(__file__).parent / "seats"
KINDS = {"sync": "mover:sync", "async": "mover:asynchronous", "llm": ""}
SEATS = [f"{kind}-{number}" for kind in KINDS for number in (1, 2)]


class Moves:
    """A fleet under `crewlet up` on one broker, and what its seats' processes left behind."""

    def __init__(
        self, folder: Path, broker_url: str, model_url: str, *, seats: Sequence[str] = SEATS, ttl_s: float = TTL_S
    ) -> None:
        self.folder = folder
        self.seats = seats
        self.nodes: dict[str, NodeProcess] = {}
        self._broker_url = broker_url
        self._company = {"name": "Desk", "roles": [_role(seat, folder, model_url) for seat in seats]}
        self._ttl_s = ttl_s
        self._sent: list[str] = []

    def start(self, node_id: str, broker_url: str = "") -> NodeProcess:
        labels = dict.fromkeys(KINDS, "")
        node = self.nodes[node_id] = NodeProcess(
            self.folder,
            node_id,
            broker_url or self._broker_url,
            company=self._company,
            labels=labels,
            ttl_s=self._ttl_s,
            has_parent=True,
        )
        return node

    def seen(self, seat: str) -> list[dict[str, Any]]:
        file = self.folder / f"{seat}.jsonl"
        lines = whole_lines(file.read_text()) if file.exists() else []
        return [json.loads(line) for line in lines]

    def runs(self, seat: str, order: str) -> list[dict[str, Any]]:
        return [line for line in self.seen(seat) if line.get("order") == order and line["phase"] == "begin"]

    def hold(self, *seats: str) -> None:
        for seat in seats or self.seats:
            (self.folder / f"{seat}.hold").touch()

    def let_go(self, *seats: str) -> None:
        for seat in seats or self.seats:
            (self.folder / f"{seat}.hold").unlink(missing_ok=True)

    async def order(self, by: NodeProcess, order: str, *, times: int = 1) -> None:
        """Mail it to each seat, and wait until each is at it."""
        self._sent.append(order)
        for seat in self.seats:
            await by.send(seat, f"{seat}-{order}")
        await self.at_it(by, order, times)

    async def at_it(self, by: NodeProcess, order: str, times: int, seats: Sequence[str] = ()) -> None:
        for seat in seats or self.seats:
            await by.until(
                _reached(self, seat, f"{seat}-{order}", times), f"{seat} is at {order} for the {times}. time"
            )

    async def delivered(self, by: NodeProcess) -> None:
        for order in self._sent:
            for seat in self.seats:
                await by.until(_delivered(by, seat, f"{seat}-{order}"), f"{seat} is done with {order}")

    def began(self, order: str) -> dict[str, int]:
        return {seat: len(self.runs(seat, f"{seat}-{order}")) for seat in self.seats}


def _role(seat: str, folder: Path, model_url: str) -> dict[str, Any]:
    kind = seat.partition("-")[0]
    role: dict[str, Any] = {"handle": seat, "placement": {"labels": {kind: ""}}}
    if kind != "llm":
        env = {"EVIDENCE": str(folder)}
        return role | {"runner": {"type": "python", "target": KINDS[kind], "path": str(HERE), "env": env}}
    server = {"command": [sys.executable, str(HERE / "movertool.py"), str(folder), seat], "call_timeout_s": 600}
    runner = {"type": "llm", "model": "openai:scripted", "base_url": model_url}
    return role | {"runner": runner, "tools": {"servers": {"desk": server}}}


def _answer(asked: Asked) -> Answer:
    """Books the order of its mail, and submits."""
    (order,) = re.findall(r'"id": "([^"]+)"', asked.messages[1]["content"])
    if any(message["role"] == "assistant" for message in asked.messages):
        done = {"outcome": "delivered", "summary": "It is booked.", "evidence": [order]}
        return Say(calls=[Call("submit_work", done)])
    return Say(calls=[Call("desk__book", {"order": order})])


def _reached(moves: Moves, seat: str, order: str, times: int) -> Callable[[], bool]:
    return lambda: len(moves.runs(seat, order)) >= times


def _delivered(node: NodeProcess, seat: str, mail_id: str) -> Callable[[], Any]:
    async def is_so() -> bool:
        return await node.outcome(seat, mail_id) == "delivered"

    return is_so


@asynccontextmanager
async def fleet(
    folder: Path, broker_url: str, *, seats: Sequence[str] = SEATS, ttl_s: float = TTL_S
) -> AsyncGenerator[Moves]:
    """Ends every node that was started in it. Without `broker_url` the first node has a broker beside it."""
    async with model_server(_answer) as models:
        made = Moves(folder, broker_url, models.url, seats=seats, ttl_s=ttl_s)
        try:
            yield made
        finally:
            made.let_go()
            for node in made.nodes.values():
                if node.process.poll() is None:
                    with suppress(OSError):
                        os.kill(node.node_pid, signal.SIGCONT)
                node.end()


@pytest.fixture
async def moves(tmp_path: Path) -> AsyncGenerator[Moves]:
    with one_server(tmp_path / "broker") as server:
        async with fleet(tmp_path, server.url) as made:
            yield made


def judge(moves: Moves) -> None:
    """What holds for each seat, whatever happened to its nodes."""
    for seat in moves.seats:
        lines = moves.seen(seat)
        ups = [line for line in lines if line["phase"] == "up"]
        assert [line["still_running"] for line in ups] == [[]] * len(ups), (seat, ups)
        # Once its successor was there, no process said a word.
        newest = None
        for line in lines:
            newest = line["pid"] if line["phase"] == "up" else newest
            assert line["pid"] == newest, (seat, line, newest)
        epochs = [line["epoch"] for line in lines if "epoch" in line]
        assert epochs == sorted(epochs), (seat, epochs)
        tenures = {(line["epoch"], line["owner"]) for line in lines if "owner" in line}
        assert len(tenures) == len({epoch for epoch, _ in tenures}), (seat, tenures)
        orders = [line["order"] for line in lines if line["phase"] == "end"]
        assert len(orders) == len(set(orders)), (seat, orders)
        assert not any(is_running(line["pid"]) for line in ups), seat
        keys = {(line["order"], line["key"]) for line in lines if "key" in line}
        assert len(keys) == len({order for order, _ in keys}), (seat, keys)


async def test_python_seats_are_taken_over_from_a_killed_node_in_the_middle_of_a_turn_and_handed_over_between_two(
    tmp_path: Path,
) -> None:
    seats = ["sync-1", "async-1"]
    # A parent gives back what its node had only where the broker is its own.
    async with fleet(tmp_path, "", seats=seats, ttl_s=30.0) as moves:
        first = moves.start("n1")
        await first.until(lambda: first.holds(*seats), "the first node holds both")
        second = moves.start("n2", first.broker_url)
        await second.until(second.holds, "the second node is up")
        moves.hold()
        await moves.order(first, "killed")
        held = set((await first.health())["seats"])
        assert held
        os.kill(first.node_pid, signal.SIGKILL)
        await moves.at_it(second, "killed", 2, sorted(held))
        moves.let_go()
        await moves.delivered(second)
        assert moves.began("killed") == {seat: 2 if seat in held else 1 for seat in seats}

        await first.until(first.holds, "the killed node is back")
        moves.hold()
        await moves.order(second, "handed-over")
        second.process.terminate()
        await second.until(lambda: bool(second.events("engine_draining")), "it drains")
        moves.let_go()
        assert await asyncio.to_thread(second.process.wait, BOUND_S) == 0
        await first.until(lambda: first.holds(*seats), "the first node holds both again")
        await moves.delivered(first)
        assert set(moves.began("handed-over").values()) == {1}
        assert await first.drain() == 0
        judge(moves)


@pytest.mark.long
async def test_seats_with_processes_of_their_own_move_one_owner_at_a_time_and_each_mail_is_done_once(
    moves: Moves,
) -> None:
    first = moves.start("n1")
    await first.until(lambda: first.holds(*SEATS), "the first node holds every seat")

    # Hand-over: a turn ends where it began, and then half of each kind goes to the node that came.
    moves.hold()
    await moves.order(first, "handed-over")
    second = moves.start("n2")
    await second.until(second.holds, "the second node is up")
    moves.let_go()
    await second.until(lambda: _half(first, second), "the nodes share each kind")
    await moves.delivered(second)
    assert set(moves.began("handed-over").values()) == {1}

    # SIGKILL in the middle of a turn: its processes go with their node, and the turn runs again.
    moves.hold()
    await moves.order(second, "killed")
    held = set((await first.health())["seats"])
    os.kill(first.node_pid, signal.SIGKILL)
    await moves.at_it(second, "killed", 2, sorted(held))
    moves.let_go()
    await moves.delivered(second)
    assert moves.began("killed") == {seat: 2 if seat in held else 1 for seat in SEATS}
    await second.until(lambda: _half(first, second), "the killed node is back")

    # Frozen past its leases: its parent ends it, and whoever has the seats then runs the turns again.
    moves.hold()
    await moves.order(first, "frozen")
    held = set((await second.health())["seats"])
    frozen = second.node_pid
    os.kill(frozen, signal.SIGSTOP)
    await moves.at_it(first, "frozen", 2, sorted(held))
    assert not is_running(frozen)
    moves.let_go()
    await moves.delivered(first)
    assert moves.began("frozen") == {seat: 2 if seat in held else 1 for seat in SEATS}
    if second.process.poll() is not None:
        second.restart()
    await first.until(lambda: _half(first, second), "the frozen node is back")

    # A drain lets each turn end where it began.
    moves.hold()
    await moves.order(second, "drained")
    second_has = set((await second.health())["seats"])
    first.process.terminate()
    await first.until(lambda: bool(first.events("engine_draining")), "it drains")
    moves.let_go()
    # Not `drain`: a second signal would end everything at once.
    assert await asyncio.to_thread(first.process.wait, BOUND_S) == 0
    await second.until(lambda: second.holds(*SEATS), "the other node holds every seat")
    assert second_has and set(moves.began("drained").values()) == {1}
    await moves.order(second, "after")
    await moves.delivered(second)
    assert await second.drain() == 0
    judge(moves)


async def _half(first: NodeProcess, second: NodeProcess) -> bool:
    one, two = [set((await node.health())["seats"]) for node in (first, second)]
    return len(one) == len(two) == 3 and one | two == set(SEATS)


@pytest.mark.long
async def test_a_worker_that_was_frozen_past_what_it_knew_of_its_lease_is_told_of_its_fence_and_its_mail_runs_again(
    moves: Moves,
) -> None:
    node = moves.start("n1")
    await node.until(lambda: node.holds(*SEATS), "it holds every seat")
    seats = ["sync-1", "async-1"]
    moves.hold(*seats)
    for seat in seats:
        (moves.folder / f"{seat}.hot").touch()
        await node.send(seat, seat)
        await node.until(_reached(moves, seat, seat, 1), "it is at work")

    def fenced(seat: str) -> list[dict[str, Any]]:
        return [line for line in moves.seen(seat) if line["phase"] == "fenced"]

    # Whenever it is stopped it waits for an answer: nearly always, so that a second time or third may be needed.
    for _ in range(5):
        left = {seat: moves.runs(seat, seat)[-1]["pid"] for seat in seats if not fenced(seat)}
        for pid in left.values():
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(TTL_S + 1)
        for pid in left.values():
            os.kill(pid, signal.SIGCONT)
        with suppress(TimeoutError):
            await until(lambda: all(map(fenced, seats)), within_s=5.0)
            break
    for seat in seats:
        (moves.folder / f"{seat}.hot").unlink()
        assert [line["says"] for line in fenced(seat)] == [f"seat:{seat} was not renewed in time at epoch 1"]
    moves.let_go()
    for seat in seats:
        await node.until(_delivered(node, seat, seat), "it is done")
        assert [line["epoch"] for line in moves.runs(seat, seat)] == [1, 1]
    assert await node.drain() == 0
    judge(moves)
