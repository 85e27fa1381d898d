"""What the API needs of a node."""

from typing import Protocol

from crewlet.node.status import FleetSnapshot, HealthSnapshot, MailOutcome, SentMail


class NodeCommands(Protocol):
    """The verbs; `node.commands.Commands` has them, with the errors named there."""

    async def send_mail(
        self,
        handle: str,
        body: str,
        *,
        subject: str = "",
        message_id: str | None = None,
        source: str = "person",
        conversation: str = "",
    ) -> SentMail: ...

    async def mail_outcome(self, handle: str, message_id: str) -> MailOutcome: ...


class WebNode(Protocol):
    """A running node."""

    @property
    def commands(self) -> NodeCommands: ...

    def health(self) -> HealthSnapshot:
        """The node's own facts, from memory: never blocks, never fails."""
        ...

    async def fleet(self) -> FleetSnapshot:
        """The fleet, from the leases.

        Raises:
            Unavailable: they cannot be read.
        """
        ...
