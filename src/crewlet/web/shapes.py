"""What goes in and out of the API beside the node's own snapshots."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from crewlet.node.status import SeatSnapshot

MESSAGE_ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._:=@+-]{0,199}$"

OneLine = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\r\n\x00]*$")]


class ErrorBody(BaseModel):
    """Every answer that is not a success."""

    error: str = Field(description="a word for programs")
    detail: str = Field(description="one sentence for people")


class MailIn(BaseModel):
    """A mail to a seat."""

    model_config = ConfigDict(extra="forbid")

    body: Annotated[str, StringConstraints(min_length=1)] = Field(description="the text")
    subject: OneLine = Field(default="", description="one line for people")
    conversation: OneLine = Field(default="", description="names the thread; mail of one thread is read together")


class ReplayIn(BaseModel):
    """How to replay a dead letter."""

    model_config = ConfigDict(extra="forbid")

    again: bool = Field(default=False, description="also where an earlier, unconfirmed replay may have arrived")


class Live(BaseModel):
    """The process answers."""

    alive: bool = True


class Ready(BaseModel):
    """Whether work may be sent here, and if not, why."""

    ready: bool
    node: str
    draining: bool
    reason: str | None = None


class SeatDetail(BaseModel):
    """One seat: who holds it, and whether any live node may run it."""

    seat: SeatSnapshot
    is_placeable: bool
