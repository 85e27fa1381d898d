"""The simulated signals keep the contract, and say nothing to whoever is gone or cut off."""

import asyncio
from collections.abc import Coroutine
from contextvars import copy_context
from typing import Any

import pytest

from crewlet.ports.signals import Signals
from crewlet.testing.contracts.signals import SignalsContract
from crewlet.testing.sim.dice import Dice
from crewlet.testing.sim.history import History
from crewlet.testing.sim.loop import Process, SimLoop
from crewlet.testing.sim.signals import SignalHub, SimSignals
from crewlet.testing.sim.wire import Broker, Line, Wire


class _World:
    """One hub, and a line and a process of its own for each client."""

    def __init__(self, loses: float) -> None:
        self.broker = Broker(History())
        self.hub = SignalHub(Dice(1, "hub"), loses=loses)
        self.clients: list[tuple[Process, Line, Wire]] = []

    async def signals(self) -> Signals:
        name = f"client {len(self.clients)}"
        process, line = Process(name), Line()
        wire = Wire(process, line, self.broker, Dice(1, name), copy_context())
        self.clients.append((process, line, wire))
        return SimSignals(self.hub, wire, wire.own)


def _run(main: Coroutine[Any, Any, None]) -> None:
    loop = SimLoop()
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(main)
    finally:
        loop.abandon()
        asyncio.set_event_loop(None)
        loop.close()


@pytest.mark.parametrize("loses", [0.0, 0.3], ids=["good hub", "lossy hub"])
@pytest.mark.parametrize("name", [name for name in dir(SignalsContract) if name.startswith("test_")])
def test_the_simulated_signals_keep_the_contract(name: str, loses: float) -> None:
    if loses and name == "test_a_question_is_answered_by_as_many_as_are_enough":
        pytest.skip("its last question is asked once")
    _run(getattr(SignalsContract(), name)(_World(loses)))


def test_a_frozen_listener_hears_at_its_thaw_and_one_that_is_cut_off_or_gone_never() -> None:
    async def main() -> None:
        world, heard = _World(0.0), dict[str, list[float]]()
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimLoop)
        speaker = await world.signals()
        for who in ("well", "frozen", "cut off", "gone"):
            heard[who] = []
            listening = await world.signals()
            await listening.listen("news", lambda data, who=who: heard[who].append(loop.time()))
        _, _, (frozen, _, _), (_, line, _), (_, _, gone) = world.clients
        loop.freeze(frozen)
        line.cut_back = True
        world.hub.forget(gone)
        speaker.broadcast("news", b"x")
        await asyncio.sleep(10.0)
        loop.thaw(frozen, timers_first=True)
        line.heal()
        await asyncio.sleep(10.0)
        assert [len(times) for times in heard.values()] == [1, 1, 0, 0]
        assert heard["well"][0] < 1.0 <= 10.0 <= heard["frozen"][0]

    _run(main())


def test_an_outage_swallows_a_signal_and_a_stall_delays_it() -> None:
    async def main() -> None:
        world, heard = _World(0.0), list[bytes]()
        a, b = await world.signals(), await world.signals()
        await b.listen("news", heard.append)
        world.broker.is_down = True
        a.broadcast("news", b"swallowed")
        await asyncio.sleep(1.0)
        world.broker.heal()
        world.broker.stall()
        a.broadcast("news", b"late")
        await asyncio.sleep(1.0)
        assert heard == []
        world.broker.resume()
        await asyncio.sleep(1.0)
        assert heard == [b"late"]

    _run(main())
