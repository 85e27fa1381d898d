"""What goes in and out of the API beside the node's own snapshots."""

from typing import Annotated, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StrictBool, StringConstraints, model_validator

from crewlet.mail.pauses import Wish
from crewlet.node.limits import LINE_PATTERN, MAX_LINE_CHARS, MAX_PAUSE_S
from crewlet.node.status import SeatPause, SeatSnapshot
from crewlet.node.turnstatus import BudgetSnapshot
from crewlet.turns.budget import Caps

OneLine = Annotated[str, StringConstraints(max_length=MAX_LINE_CHARS, pattern=LINE_PATTERN)]


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
    chat_message: OneLine = Field(default="", description="the message's identity on the chat it came from, if any")


class ReplayIn(BaseModel):
    """How to replay a dead letter."""

    model_config = ConfigDict(extra="forbid")

    again: StrictBool = Field(
        default=False, description="also where the mail of an earlier replay is found nowhere; it may have arrived"
    )


class PauseIn(BaseModel):
    """A wish to pause."""

    model_config = ConfigDict(extra="forbid")

    reason: OneLine = Field(default="", description="why, one line for people")
    by: OneLine = Field(default="", description="who pauses it")
    until: AwareDatetime | None = Field(default=None, description="the instant at which it ends by itself")
    for_s: Annotated[float, Field(gt=0, le=MAX_PAUSE_S, strict=True)] | None = Field(
        default=None, description="or how many seconds from now"
    )
    stop_running: StrictBool = Field(
        default=False, description="end the running turn as well; its mail is finished with"
    )

    @model_validator(mode="after")
    def _has_one_end(self) -> Self:
        if self.until is not None and self.for_s is not None:
            raise ValueError("give until or for_s, not both")
        return self

    def wish(self, id: str | None) -> Wish:
        return Wish(id or "", self.by, self.reason, self.until, self.for_s, self.stop_running)


class SeatPauseIn(PauseIn):
    """A wish to pause one seat."""

    instead_of: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="the id of the pause to replace; without it a paused seat stays as it is"
    )


class UnitResumeIn(BaseModel):
    """A wish to resume."""

    model_config = ConfigDict(extra="forbid")

    by: OneLine = Field(default="", description="who resumes it")


class SeatResumeIn(UnitResumeIn):
    """A wish to resume one seat."""

    pause: Annotated[str, StringConstraints(max_length=200)] | None = Field(
        default=None, description="end only the pause of this id"
    )


Tokens = Annotated[int, Field(ge=0, lt=10**15, strict=True)]


class BudgetIn(BaseModel):
    """A wish for caps: all of them at once, one that is left out sets no limit."""

    model_config = ConfigDict(extra="forbid")

    day: Tokens | None = Field(default=None, description="tokens a day")
    week: Tokens | None = Field(default=None, description="tokens a week")
    month: Tokens | None = Field(default=None, description="tokens a month")
    unlimited: StrictBool = Field(default=False, description="set no limit at all")
    as_documented: StrictBool = Field(default=False, description="go back to what the company document says")

    @model_validator(mode="after")
    def _is_one_wish(self) -> Self:
        has_caps = (self.day, self.week, self.month) != (None, None, None)
        if has_caps + self.unlimited + self.as_documented != 1:
            raise ValueError("give caps, or unlimited, or as_documented, and only one of these")
        return self

    def caps(self) -> Caps | None:
        return None if self.as_documented else Caps(self.day, self.week, self.month)


class BudgetList(BaseModel):
    """The budgets."""

    budgets: tuple[BudgetSnapshot, ...]


class UnitPauses(BaseModel):
    """What became of a unit's seats."""

    seats: tuple[SeatPause, ...]


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
