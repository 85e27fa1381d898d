"""What the attachments of one mail instance share."""

import asyncio
from collections.abc import Awaitable
from typing import Any, Protocol

from crewlet.ports.clock import Clock
from crewlet.ports.errors import NotLive
from crewlet.ports.mail import MailTally


class Switched(Protocol):
    """An attachment, as far as the switchboard needs one."""

    def look_again(self) -> None:
        """Something that gates fetching changed."""
        ...

    async def let_go(self) -> bool:
        """Detach, whether or not the mail instance still lives."""
        ...


class Switchboard:
    """Whether the mail instance lives, whether it is paused, what is attached, who is handling, and counts."""

    def __init__(self, clock: Clock) -> None:
        self.is_live = False
        self.is_paused = False
        self.attachments: dict[int, Switched] = {}
        self.tally = MailTally()
        self._clock = clock
        self._handlers = 0
        self._idle = asyncio.Event()
        self._idle.set()

    def require_live(self) -> None:
        if not self.is_live:
            raise NotLive("this mail instance is not started, or was stopped")

    def set_paused(self, is_paused: bool) -> None:
        self.is_paused = is_paused
        for attachment in list(self.attachments.values()):
            attachment.look_again()

    def burial_ended(self, *, is_buried: bool) -> None:
        """A delivery was dead-lettered, or could not be."""
        before = self.tally
        self.tally = MailTally(before.dead_letters + is_buried, before.failed_burials + (not is_buried))

    def handler_began(self) -> None:
        self._handlers += 1
        self._idle.clear()

    def handler_ended(self) -> None:
        self._handlers -= 1
        if self._handlers == 0:
            self._idle.set()

    async def wait_for_handlers(self, timeout_s: float | None) -> int:
        if timeout_s is None:
            await self._idle.wait()
        else:
            await either(self._idle.wait(), self._clock.sleep(timeout_s))
        return self._handlers


class NodeWide:
    """The verbs of a mail instance that concern all that is attached to it; see `crewlet.ports.mail.Mail`."""

    def __init__(self, clock: Clock) -> None:
        self._switchboard = Switchboard(clock)

    @property
    def tally(self) -> MailTally:
        return self._switchboard.tally

    def pause(self) -> None:
        self._switchboard.require_live()
        self._switchboard.set_paused(True)

    def resume(self) -> None:
        self._switchboard.require_live()
        self._switchboard.set_paused(False)

    async def wait_for_handlers(self, timeout_s: float | None) -> int:
        self._switchboard.require_live()
        return await self._switchboard.wait_for_handlers(timeout_s)


async def either(first: Awaitable[Any], second: Awaitable[Any]) -> None:
    """Wait until one of two waits ends; the other is cancelled and seen to end."""
    tasks = [asyncio.ensure_future(first), asyncio.ensure_future(second)]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
