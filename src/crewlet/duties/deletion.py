"""Deleting one mailbox within the time of its retirement, and knowing whether some of that may still be under way.

What nobody answered is no refusal: a delete that comes late takes whatever mailbox is there by then, with its mail.
"""

from collections.abc import Callable

from crewlet.kit.supervise import Tasks
from crewlet.mail import topics
from crewlet.ports.clock import Clock
from crewlet.ports.errors import Fenced, NotTaken, Unavailable
from crewlet.ports.mail import Mail, Subscription


class Deletion:
    """One try at the three subscriptions of a mailbox.

    Args:
        ends_at: by the clock; nothing is sent from then on, however long this process stood still.

    Attributes:
        may_land: a request has left, and it is not known to be over: it may take effect at any later time.
    """

    def __init__(self, mail: Mail, handle: str, ends_at: float, clock: Clock, tasks: Tasks) -> None:
        self._mail = mail
        self._handle = handle
        self._ends_at = ends_at
        self._clock = clock
        self._tasks = tasks
        self.may_land = False

    async def run(self, turned: Callable[[], None]) -> None:
        """Delete all three, asking for as long as there is time.

        Args:
            turned: called as it gets on.

        Raises:
            Unavailable, Fenced, TimeoutError: some may be left; `may_land` says whether they are left for certain.

        Cancellation: likewise.
        """
        left_s = self._ends_at - self._clock.elapsed()
        await self._tasks.within(
            self._all_three(turned), left_s, self._clock.sleep, f"deleting the mailbox of {self._handle}"
        )

    async def _all_three(self, turned: Callable[[], None]) -> None:
        for subscription in topics.mailbox(self._handle):
            await self._delete(subscription)
            turned()

    async def _delete(self, subscription: Subscription) -> None:
        left_s = self._ends_at - self._clock.elapsed()
        try:
            await self._mail.delete_subscription(subscription, admit=self._admit, patience_s=left_s)
        except NotTaken:
            self.may_land = False
            raise
        except Unavailable:
            self.may_land = True
            raise
        self.may_land = False

    def _admit(self) -> None:
        if self._clock.elapsed() >= self._ends_at:
            raise Fenced("its time is up")
        self.may_land = True
