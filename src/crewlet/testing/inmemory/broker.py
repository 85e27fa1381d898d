"""The broker of a company in memory, which tells the records also of mail that it knew already."""

from crewlet.ports.mail import Published
from crewlet.testing.inmemory.records import Records
from crewlet.testing.sim.loop import SimLoop
from crewlet.testing.sim.mail import SimMailBroker
from crewlet.testing.sim.wire import Broker

_PULL_EXPIRY_S = 15.0


class CompanyMailBroker(SimMailBroker):
    """The broker."""

    def __init__(self, loop: SimLoop, broker: Broker, records: Records, *, ack_window_s: float) -> None:
        super().__init__(loop, broker, records, ack_window_s=ack_window_s, pull_expiry_s=_PULL_EXPIRY_S)
        self._records = records

    def publish(
        self, topic: str, data: bytes, *, message_id: str, headers: dict[str, str], once: str | None = None
    ) -> Published:
        published = super().publish(topic, data, message_id=message_id, headers=headers, once=once)
        self._records.sent(data)
        return published
