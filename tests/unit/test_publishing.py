"""How long a message is repeated under its id, and what counts as an answer."""

from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any, cast

import pytest

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.lookup import read_message
from crewlet.adapters.nats.publishing import publish_raw
from crewlet.adapters.nats.settle import message_in
from crewlet.adapters.nats.streams import AGENT, ensure_stream, stream_names
from crewlet.adapters.nats.subscriptions import Consumers
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _Deaf:
    """A connection on which nobody answers; the process stands still in its first pause."""

    def __init__(self, still_s: float) -> None:
        self.asked: list[str] = []
        self.breaks = 0
        self.clock = self
        self._time = VirtualClock()
        self._still_s = still_s

    def elapsed(self) -> float:
        return self._time.elapsed()

    async def sleep(self, seconds: float) -> None:
        await self._time.sleep(seconds + self._still_s)
        self._still_s = 0.0

    async def request(self, topic: str, *_: Any, **__: Any) -> None:
        self.asked.append(topic)
        raise Unavailable("nobody answered")


class _Changed(_Deaf):
    """Nobody answers the first try, which may have landed; the second is refused."""

    async def request(self, topic: str, *_: Any, **__: Any) -> None:
        self.asked.append(topic)
        if len(self.asked) == 1:
            raise Unavailable("nobody answered")
        raise Misuse("too large by now")


@in_virtual_time
async def test_a_refusal_says_nothing_of_an_earlier_try_that_nobody_answered() -> None:
    connection = _Changed(0.0)
    with pytest.raises(Unavailable, match="too large by now"):
        await publish_raw(cast("Connection", connection), "crewlet.agent.a.inbox", b"x", {}, message_id="m")


@pytest.mark.parametrize(("still_s", "tries"), [(150.0, 1), (1.0, 34)])
def test_an_id_is_not_repeated_after_the_process_stood_still_past_its_patience(still_s: float, tries: int) -> None:
    @in_virtual_time
    async def case() -> None:
        connection = _Deaf(still_s)
        with pytest.raises(Unavailable, match="did not confirm the message: nobody answered"):
            await publish_raw(cast("Connection", connection), "crewlet.agent.a.inbox", b"x", {}, message_id="m")
        assert connection.asked.count("crewlet.agent.a.inbox") == tries

    case()


class _Odd(_Deaf):
    """Every answer is the same."""

    def __init__(self, answer: bytes) -> None:
        super().__init__(0.0)
        self._answer = answer

    async def request(self, topic: str, *_: Any, **__: Any) -> Any:
        self.asked.append(topic)
        return SimpleNamespace(data=self._answer)


ODD = [
    b"",
    b"5",
    b"{}",
    b"[]",
    b'{"seq":1}',
    b'{"stream":"","seq":1}',
    b'{"stream":"ANOTHER","seq":1}',
    b'{"stream":"CREWLET_AGENT"}',
    b'{"stream":"CREWLET_AGENT","seq":0}',
    b'{"stream":"CREWLET_AGENT","seq":"7"}',
    b'{"error":5}',
    b'{"error":{"code":"x"}}',
    b'{"x":' + b"[" * 100_000,
]


@pytest.mark.parametrize("answer", ODD, ids=lambda answer: answer[:40].decode())
def test_an_answer_that_is_no_acknowledgement_is_unknown(answer: bytes) -> None:
    @in_virtual_time
    async def case() -> None:
        connection = _Odd(answer)
        with pytest.raises(Unavailable, match="did not confirm"):
            await publish_raw(cast("Connection", connection), "crewlet.agent.a.inbox", b"x", {}, message_id="m")
        assert connection.asked.count("crewlet.agent.a.inbox") > 1

    case()


@pytest.mark.parametrize("answer", [*ODD, b'{"message":5}', b'{"streams":[],"total":null}'])
def test_an_answer_that_is_none_says_of_nothing_that_it_is_not_there(answer: bytes) -> None:
    @in_virtual_time
    async def case() -> None:
        connection = cast("Connection", _Odd(answer))
        inbox = topics.inbox("writer")
        consumers = Consumers(connection, SystemEntropy(), 30.0)
        asked: list[Coroutine[Any, Any, object]] = [
            read_message(connection, "CREWLET_DLQ", {"seq": 1}),
            stream_names(connection),
            consumers.info(inbox),
            consumers.ensure(inbox),
            consumers.backlog(inbox),
            consumers.is_covered("crewlet.agent.a.x"),
            consumers.left("CREWLET_AGENT"),
            consumers.delete(inbox, admit=None, patience_s=1.0),
            ensure_stream(connection, AGENT, replicas=1, budget_s=1.0),
        ]
        for asking in asked:
            with pytest.raises(Unavailable):
                await asking
        if len(answer) < 1000:
            with pytest.raises(Unavailable):
                message_in(answer, "KV_x")

    case()
