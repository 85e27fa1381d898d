"""When the watchdog watches a node: from before its start until its stop begins, in whatever way that comes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Generator
from types import SimpleNamespace
from typing import Any

import pytest

from crewlet import wiring
from crewlet.company.model import Company
from crewlet.kit.latch import Latch
from crewlet.kit.refusal import ConfigRefused

TAKEN = ConfigRefused("another process has this node id")


class _Node:
    """A node that does nothing, and writes down what it is told to do."""

    def __init__(self, told: list[str], stopping: asyncio.Event, how: str) -> None:
        self._told = told
        self._stopping = stopping
        self._how = how
        self.contested = Latch[ConfigRefused]()

    async def open(self) -> None:
        self._told.append("open")

    async def start(self) -> None:
        self._told.append("start")
        if self._how == "told to while it starts":
            self._stopping.set()
            await asyncio.Event().wait()
        if self._how == "its start breaks":
            raise RuntimeError("a defect")
        if self._how == "its id is taken":
            self.contested.set(TAKEN)
        if self._how == "told to":
            asyncio.get_running_loop().call_soon(self._stopping.set)

    async def drain(self) -> None:
        self._told.append("drain")

    async def close(self) -> None:
        self._told.append("close")


@pytest.mark.proves("WD-06")
@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("told to", ["drain", "close"]),
        ("told to while it starts", ["drain", "close"]),
        ("its id is taken", ["close"]),
        ("its start breaks", ["close"]),
    ],
)
async def test_the_watchdog_is_disarmed_before_anything_is_given_back(
    monkeypatch: pytest.MonkeyPatch, how: str, ends: list[str]
) -> None:
    told: list[str] = []
    stopping = asyncio.Event()
    node = _Node(told, stopping, how)

    @contextlib.contextmanager
    def watched(*_: object, **__: object) -> Generator[None]:
        told.append("armed")
        try:
            yield
        finally:
            told.append("disarmed")

    @contextlib.asynccontextmanager
    async def opened(*_: object) -> AsyncGenerator[Any]:
        yield SimpleNamespace(leases_can_lapse=True)

    def same(*_: object) -> Any:
        return node

    stand_ins: dict[str, Any] = {
        "_stop_signals": lambda: stopping,
        "_history": opened,
        "_ports": opened,
        "_served": opened,
        "_node_config": same,
        "Node": same,
        "_watchdog": watched,
        "loop_watched": contextlib.nullcontext,
        "files_watched": contextlib.nullcontext,
        "calm_collector": same,
    }
    for name, stand_in in stand_ins.items():
        monkeypatch.setattr(wiring, name, stand_in)
    settings: Any = SimpleNamespace(node=SimpleNamespace(id="n1"))
    with contextlib.suppress(ConfigRefused, RuntimeError):
        await wiring._main(settings, Company("acme", ()))  # pyright: ignore[reportPrivateUsage]
    assert told == ["open", "armed", "start", "disarmed", *ends]
