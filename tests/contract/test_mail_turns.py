"""Turns over real mail: what fails again and again, and what a broker's death leaves of finished work."""

import asyncio
import functools
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest
from mail_worlds import NatsWorld, TwinWorld, nats_world, twin_world
from turn_worlds import Scripted, seat_at_work

from crewlet.adapters.process import LocalPrograms
from crewlet.company.model import CommandRunner, Seat
from crewlet.mail import topics
from crewlet.mail.work_key import work_key
from crewlet.testing import virtual
from crewlet.testing.brokers import Server, one_server
from crewlet.testing.contracts.mailworld import until, until_backlog
from crewlet.turns.runners import CommandTurns, minimal_env
from crewlet.turns.turn import Turn, TurnBroke, TurnResult

Make = Callable[..., AbstractAsyncContextManager[TwinWorld | NatsWorld]]
Check = Callable[[Make], Awaitable[None]]


@pytest.fixture
def server(tmp_path: Path) -> Generator[Server]:
    with one_server(tmp_path) as running:
        yield running


@pytest.fixture(params=["twin", pytest.param("nats", marks=pytest.mark.real)])
def run(request: pytest.FixtureRequest) -> Callable[[Check], None]:
    async def checked(check: Check, make: Make) -> None:
        await check(make)

    if request.param == "twin":
        return lambda check: virtual.run(checked(check, twin_world))
    running: Server = request.getfixturevalue("server")
    return lambda check: asyncio.run(checked(check, functools.partial(nats_world, running.urls)))


async def _done(_: Turn) -> TurnResult:
    return TurnResult("delivered")


@pytest.mark.proves("LG-06")
def test_mail_worked_alone_is_recorded_under_its_own_key_and_the_rest_keeps_its_order(
    run: Callable[[Check], None],
) -> None:
    async def check(make: Make) -> None:
        async def break_twice(turn: Turn) -> TurnResult:
            if len(turn.mail) > 1 and turn.mail[0].id == "head":
                raise TurnBroke("not together")
            return TurnResult("delivered")

        async with make(delivery_budget=3) as world:
            runner = Scripted(break_twice)
            desk = await seat_at_work(world, runner)
            desk.attachment.hold("until all is there")
            await desk.send("head", "second", "third", conversation="c")
            desk.attachment.unhold("until all is there")
            inbox = topics.inbox(desk.handle)
            await until(world, lambda: ["third"] in runner.ran or ["second", "third"] in runner.ran)
            await until_backlog(world, desk.mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
            assert runner.ran[0] == ["head", "second", "third"]
            worked = [trigger for ran in runner.ran[1:] for trigger in ran]
            assert worked == ["head", "second", "third"]
            for ran in runner.ran[1:]:
                for trigger in ran:
                    completion = await desk.ledger.completion(desk.handle, trigger)
                    assert completion is not None
                    assert completion.work_key == work_key(desk.handle, ran)
            assert await world.dead_letters(inbox.topic) == []

    run(check)


@pytest.mark.real
async def test_a_broker_killed_between_record_and_ack_repeats_no_turn(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nats_world(server.urls, ack_window_s=2.0) as world:
        runner = Scripted(_done)
        desk = await seat_at_work(world, runner)
        connection = world.connections[-1]
        post = connection.post
        killing: list[asyncio.Task[None]] = []

        async def kill() -> None:
            await asyncio.to_thread(server.kill)
            await asyncio.to_thread(server.restart)

        def lose_acks(subject: str, payload: bytes = b"", **more: Any) -> asyncio.Future[bytes]:
            if payload != b"+ACK":
                return post(subject, payload, **more)
            if not killing:
                killing.append(asyncio.create_task(kill()))
            unsent: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            unsent.set_exception(TimeoutError("the node dies with its ack unsent"))
            return unsent

        monkeypatch.setattr(connection, "post", lose_acks)
        await desk.send("e1")
        await until(world, lambda: killing != [])
        await killing[0]
        await connection.close()
        heir = Scripted(_done)
        successor = await seat_at_work(world, heir, epoch=2)
        inbox = topics.inbox(desk.handle)
        await until_backlog(world, successor.mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert (runner.ran, heir.ran) == ([["e1"]], [])
        await successor.send("e2")
        await until(world, lambda: heir.ran == [["e2"]])


@pytest.mark.real
@pytest.mark.process
@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
async def test_mail_that_kills_its_program_each_time_ends_as_a_dead_letter_and_holds_nobody_up(
    server: Server, tmp_path: Path
) -> None:
    program = tmp_path / "program"
    program.write_text(
        "#!/bin/sh\n"
        "read -r start\n"
        'case "$start" in *poison*) echo x >> "$1"; kill -9 $$;; esac\n'
        """echo '{"outcome": "delivered"}'\n"""
    )
    program.chmod(0o755)
    deaths = tmp_path / "deaths"
    seat = Seat("alice", runner=CommandRunner(command=(str(program), str(deaths))))
    programs = LocalPrograms()
    async with nats_world(server.urls, delivery_budget=3) as world:
        runner = CommandTurns(seat, programs, clock=world.clock, base_env=minimal_env(os.environ))
        desk = await seat_at_work(world, runner, seat=seat)
        inbox = topics.inbox("alice")
        await desk.send("bad", body="poison", conversation="c")
        await desk.send("good", body="hello", conversation="c")
        await desk.send("other", body="hello")
        await until_backlog(world, desk.mail, inbox, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
        assert deaths.read_text() == "x\n" * 3
        letters = await world.dead_letters(inbox.topic)
        assert [letter.id for letter in letters] == ["bad"]
        assert letters[0].headers["Crewlet-Deliveries"] == "3"
        for trigger in ("good", "other"):
            completion = await desk.ledger.completion("alice", trigger)
            assert completion is not None and completion.outcome == "delivered"
        assert await desk.ledger.completion("alice", "bad") is None
        assert programs.running == frozenset()
