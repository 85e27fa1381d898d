"""What a connection asks of the way to its server."""

from contextlib import AbstractAsyncContextManager
from typing import Protocol

from mcp.client._transport import TransportStreams


class Link(Protocol):
    """One way to one server, used once.

    Attributes:
        last_words_s: how long after it broke it may take until `gone` and `remark` say how.
    """

    last_words_s: float

    def streams(self) -> AbstractAsyncContextManager[TransportStreams]:
        """Reach the server.

        Raises:
            ProgramNotStarted: the server's program could not be started.
        """
        ...

    async def gone(self) -> str:
        """Wait until the server has gone, while `streams` are open. Says how."""
        ...

    def remark(self) -> str:
        """What else there is to say of it, or ""; may hold secrets at any place. For people."""
        ...

    async def end(self, grace_s: float) -> None:
        """End the server where it is ours, and see it end.

        Raises:
            ProgramUnproven: something is left; call again.
        """
        ...
