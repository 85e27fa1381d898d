"""How long a message is repeated under its id."""

from typing import Any, cast

import pytest

from crewlet.adapters.nats.connection import Connection
from crewlet.adapters.nats.publishing import publish_raw
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.testing.virtual import VirtualClock, in_virtual_time


class _Deaf:
    """A connection on which nobody answers; the process stands still in its first pause."""

    def __init__(self, still_s: float) -> None:
        self.asked: list[str] = []
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
