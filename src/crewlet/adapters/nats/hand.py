"""What an attachment has in hand."""

from datetime import datetime

import msgspec

from crewlet.ports.mail import Delivery

Mark = tuple[int, datetime]
"""Sequence and instant of publishing: a store that lost its newest messages gives a sequence out again."""


class Held(msgspec.Struct, eq=False):
    """A delivery in hand.

    Attributes:
        reply: the newest delivery's reply subject.
        window_ends: the reading of `Clock.elapsed` before which the broker surely hands it to nobody else.
        is_prolonged: in the set that renewals extend; left for ever before the first ack or nak.
        is_given_back: a nak is on its way, so that the next delivery of the message is a new one, not this one again.
    """

    delivery: Delivery
    reply: str
    headers: dict[str, str]
    window_ends: float
    is_prolonged: bool = True
    is_given_back: bool = False

    @property
    def mark(self) -> Mark:
        return self.delivery.sequence, self.delivery.published_at
