"""One bucket's requests on their way at once."""

import asyncio
import contextlib
from contextlib import AsyncExitStack

import pytest
from cells_worlds import NatsWorld

from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.ports.cells import BucketSpec
from crewlet.ports.errors import NotTaken
from crewlet.seats.lease import Granted
from crewlet.seats.leases import LeaseStore
from crewlet.testing.brokers import Server
from crewlet.testing.faulty_link import FaultyLink, Frame

LIMIT_S = 30.0


@pytest.mark.real
async def test_a_renewal_without_an_answer_delays_no_other(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        link = await stack.enter_async_context(FaultyLink(server.url))
        cells = NatsCells(await world.connect(link.url), entropy=SystemEntropy())
        leases = await cells.open(BucketSpec(world.name("slow_leases"), max_age_s=60.0))
        epochs = await cells.open(BucketSpec(world.name("slow_epochs")))
        store = LeaseStore(leases, epochs, clock=SystemClock(), entropy=SystemEntropy())
        resources = [f"seat:s{number}" for number in range(50)]
        granted = [await store.claim(resource, "n:1") for resource in resources]
        lost: list[Frame] = []

        def lose_the_first(frame: Frame) -> bytes | None:
            if frame.is_write_answer and not lost:
                lost.append(frame)
                return None
            return frame.raw

        link.on_answer = lose_the_first
        renewals = [
            asyncio.ensure_future(store.renew(result.lease.resource, "n:1", result.lease.epoch))
            for result in granted
            if isinstance(result, Granted)
        ]
        ended: list[int] = []
        for number, renewal in enumerate(renewals):
            renewal.add_done_callback(lambda _, number=number: ended.append(number))
        async with asyncio.timeout(LIMIT_S):
            assert all(await asyncio.gather(*renewals))
        assert lost and ended[-1] == 0 and len(ended) == len(resources), "the first one waited, and nobody for it"
        await store.stop()


@pytest.mark.real
async def test_a_turn_comes_in_order_ends_with_its_time_and_is_passed_on_when_it_is_given_up(server: Server) -> None:
    async with AsyncExitStack() as stack:
        world = NatsWorld(server.urls, stack=stack)
        connection = await world.connect(server.url)
        lane = Lane(connection, at_once=1)
        silent = await connection.client.hear("silent", _no_answer)

        def ask(subject: str, *, timeout_s: float = LIMIT_S, wait_s: float = LIMIT_S) -> asyncio.Task[bytes]:
            return asyncio.ensure_future(lane.request(subject, b"", timeout_s=timeout_s, wait_s=wait_s))

        first = ask("silent")
        await asyncio.sleep(0)
        given_up = ask("$JS.API.INFO")
        late = ask("$JS.API.INFO", wait_s=0.01)
        second = ask("$JS.API.INFO")
        with pytest.raises(NotTaken):
            await late
        given_up.cancel()
        assert not second.done()
        first.cancel()
        for cancelled in (first, given_up):
            with contextlib.suppress(asyncio.CancelledError):
                await cancelled
        async with asyncio.timeout(LIMIT_S):
            await second
            await ask("$JS.API.INFO")
        await silent.unsubscribe()


async def _no_answer(message: object) -> None:
    """Somebody listens, and says nothing."""
