"""What the maintenance duty does about questions between seats: gives up idle ones, and delivers answers that a node
left behind when it died between closing a channel and sending its answer."""

import structlog

from crewlet.duties.asking import Asking
from crewlet.duties.frame import Turned
from crewlet.mail.channel import Found
from crewlet.mail.channels import Channels
from crewlet.mail.outbox import Outbox, UnknownSeat
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import MailRefused

_log = structlog.get_logger()


class ChannelSweep:
    """One sweep after the other."""

    def __init__(self, channels: Channels, outbox: Outbox, ask: Asking) -> None:
        self._channels = channels
        self._outbox = outbox
        self._ask = ask

    async def sweep(self, turned: Turned) -> str:
        """Close, deliver and forget what is due, and say so in a line; "" when nothing was.

        Raises:
            Unavailable: some of it could not be done.
        """
        self._ask.turned = turned
        swept = await self._channels.sweep(turned)
        failed = list(swept.unreadable)
        delivered = 0
        for found in swept.undelivered:
            try:
                delivered += await self._deliver(found)
            except Unavailable as error:
                failed.append(f"the answer of channel {found.id}: {error}")
        if failed:
            raise Unavailable("; ".join(failed))
        done = [f"{delivered} answers delivered"] if delivered else []
        return ", ".join([*done, *([f"{swept.removed} channels forgotten"] if swept.removed else [])])

    async def _deliver(self, found: Found) -> bool:
        mail = found.channel.message(found.id, self._outbox.timestamp())
        try:
            await self._ask(self._outbox.post(mail), f"sending the answer of channel {found.id}")
        except (UnknownSeat, MailRefused) as refused:
            # Perhaps this node's document is the older one: it is tried until the channel is forgotten.
            _log.warning("channel_answer_refused", channel=found.id, asker=found.channel.asker, error=str(refused))
            return False
        await self._ask(self._channels.delivered(found.id), f"noting the answer of channel {found.id}")
        return True
