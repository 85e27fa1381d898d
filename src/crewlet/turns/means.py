"""What a turn may use beside its fence and its books: mail, tools, and the questions that it may answer.

Most turns use little of it. So each part is made when it is first asked for, and then kept for the rest of the turn.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from crewlet.mail.channels import Channels
from crewlet.mail.envelope import Envelope
from crewlet.mail.outbox import Outbox
from crewlet.ports.clock import Clock
from crewlet.ports.tools import ToolAnswer, ToolInfo, ToolServer
from crewlet.turns.account import Account
from crewlet.turns.owntools import OwnTools
from crewlet.turns.questions import Questions
from crewlet.turns.sending import TurnMail
from crewlet.turns.toolbox import Tool, Toolbox, served
from crewlet.turns.turn import Fence, OutgoingMail


@dataclass(frozen=True, slots=True)
class SeatMeans:
    """What the turns of one seat share.

    Attributes:
        handle: the seat.
        outbox, clock: what they send mail with.
        servers: the tool servers of the seat's present tenure.
        channels: by which seats ask each other; None where they cannot.
    """

    handle: str
    outbox: Outbox
    clock: Clock
    servers: Callable[[], Sequence[ToolServer]]
    channels: Channels | None


class TurnMeans:
    """The means of one turn. It keeps the promises of `turn.Tools` as well."""

    def __init__(self, seat: SeatMeans, mail: Sequence[Envelope], account: Account, fence: Fence) -> None:
        self._seat = seat
        self._mail = mail
        self._account = account
        self._fence = fence

    async def send(self, mail: OutgoingMail) -> str:
        """See `TurnMail.send`."""
        return await self._sender.send(mail)

    def questions_left(self) -> Sequence[str]:
        """See `Questions.left`."""
        return self._questions.left()

    @property
    def infos(self) -> Sequence[ToolInfo]:
        """See `Toolbox.infos`."""
        return self._toolbox.infos

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        """See `Toolbox.call`."""
        return await self._toolbox.call(name, arguments)

    @cached_property
    def _sender(self) -> TurnMail:
        seat, work = self._seat, self._account.work
        return TurnMail(
            handle=seat.handle,
            work=work.name,
            turn_id=work.turn_id,
            cause=self._mail,
            fence=self._fence,
            outbox=seat.outbox,
            clock=seat.clock,
            record=self._account.record,
        )

    @cached_property
    def _questions(self) -> Questions:
        return Questions(self._mail if self._seat.channels is not None else ())

    @cached_property
    def _toolbox(self) -> Toolbox:
        work = self._account.work
        return Toolbox(
            handle=self._seat.handle, work=work.name, fence=self._fence, tools=self._tools, journal=self._account
        )

    def _tools(self) -> Sequence[Tool]:
        seat = self._seat
        own = OwnTools(
            handle=seat.handle,
            turn_id=self._account.work.turn_id,
            mail=self._mail,
            questions=self._questions,
            sender=self._sender,
            notes=self._account,
            channels=seat.channels,
        )
        return [*(tool for server in seat.servers() for tool in served(server, self._fence.term)), *own.tools()]
