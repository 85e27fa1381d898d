"""What a company is, once its document has been read and found valid."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from crewlet.company.budgets import UNLIMITED, Budget
from crewlet.company.instants import Schedule


class Placement(msgspec.Struct, frozen=True):
    """Which nodes may run a seat. Only narrows: with neither field any node may.

    Attributes:
        node: the id of the one node that may, or None.
        labels: pairs that a node must all carry, kept sorted, so that the same labels in another order are the same
            placement. An empty value asks for the key with an empty value.
    """

    node: str | None = None
    labels: tuple[tuple[str, str], ...] = ()

    def __post_init__(self) -> None:
        if len(self.labels) > 1:
            msgspec.structs.force_setattr(self, "labels", tuple(sorted(self.labels)))

    @property
    def is_anywhere(self) -> bool:
        return self.node is None and not self.labels

    def matches(self, node_id: str, labels: Mapping[str, str]) -> bool:
        """Whether a node of this id and these labels may run the seat."""
        if self.node is not None and self.node != node_id:
            return False
        return all(key in labels and labels[key] == value for key, value in self.labels)

    def __str__(self) -> str:
        parts = [f"node={self.node}"] if self.node is not None else []
        parts += [f"{key}={value}" for key, value in self.labels]
        return ",".join(parts) or "anywhere"


ANYWHERE = Placement()


@dataclass(frozen=True, slots=True)
class CommandRunner:
    """Any program, one process a turn, speaking protocol v1 on its standard streams.

    Attributes:
        command: the program and its arguments.
        env: variables the program gets beside the few it always gets; nothing else of the node's environment.
        cwd: its working folder, absolute; None is the folder of the company document.
        timeout_s: a turn that takes longer is ended and fails; None sets no limit.
    """

    kind: ClassVar[str] = "command"
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class PythonRunner:
    """A Python function, called in a process of the seat's own.

    Attributes:
        target: `module:function`.
        path: the folder that the module is looked for in first, and the working folder, absolute; None is the node's.
        env: variables the process gets beside the few it always gets; nothing else of the node's environment.
        timeout_s: a turn that takes longer is ended and fails; None sets no limit.
    """

    kind: ClassVar[str] = "python"

    target: str
    path: str | None = None
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """Send this text back to whoever wrote (to nobody when the sender has no inbox)."""

    text: str


@dataclass(frozen=True, slots=True)
class Send:
    """Send this text to a seat."""

    to: str
    text: str


@dataclass(frozen=True, slots=True)
class Sleep:
    """Wait."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Fail:
    """Break the turn with this reason."""

    reason: str


ScriptStep = Reply | Send | Sleep | Fail


@dataclass(frozen=True, slots=True)
class ScriptRunner:
    """A deterministic playbook, for demonstrations, tests and simulations. It shows as `script` wherever it appears."""

    kind: ClassVar[str] = "script"
    steps: tuple[ScriptStep, ...] = ()


Setting = float | int | bool | str


@dataclass(frozen=True, slots=True)
class LlmModel:
    """One model and how it is reached.

    Attributes:
        name: `provider:model`, as Pydantic AI names them.
        base_url: an address other than the provider's own; under `openai:` any server that speaks its chat API.
        api_key: the name of the node's variable that holds the key; None leaves it to the provider, which reads one of
            its own, and sends none to a `base_url`.
    """

    name: str
    base_url: str | None = None
    api_key: str | None = None


@dataclass(frozen=True, slots=True)
class LlmRunner:
    """A language model with tools.

    Attributes:
        model: the one to ask.
        fallback: those to ask, in this order, while it does not answer.
        instructions: what the seat is to do, and how.
        max_rounds: a turn without an outcome after so many rounds fails.
        timeout_s: a request without its whole answer in that time is given up, and made again.
        is_streamed: answers are taken as they come, so that a long one shows as progress.
        settings: passed to each request, by Pydantic AI's names; what a provider does not know, it is not sent.
    """

    kind: ClassVar[str] = "llm"
    model: LlmModel
    fallback: tuple[LlmModel, ...] = ()
    instructions: str = ""
    max_rounds: int = 24
    timeout_s: float = 600.0
    is_streamed: bool = True
    settings: Mapping[str, Setting] = field(default_factory=dict[str, Setting])

    @property
    def models(self) -> tuple[LlmModel, ...]:
        return (self.model, *self.fallback)


Runner = CommandRunner | PythonRunner | ScriptRunner | LlmRunner


@dataclass(frozen=True, slots=True)
class ToolProgram:
    """A tool server that is a program of the seat's own, spoken to on its standard streams.

    Attributes:
        name: unique in the seat; the prefix of its tools' names.
        command: the program and its arguments.
        env: variables it gets beside the few that every program gets. A value may refer to variables of the node.
        cwd: its working folder, absolute; None is the folder of the company document.
        call_timeout_s: a call without an answer for so long is given up.
        start_timeout_s: it must have named its tools within that time.
    """

    name: str
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    call_timeout_s: float = 60.0
    start_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class ToolSite:
    """A tool server that is reached over streamable HTTP.

    Attributes:
        name: unique in the seat; the prefix of its tools' names.
        url: `http://` or `https://`, with nothing secret in it.
        headers: sent with each request. A value may refer to variables of the node.
        call_timeout_s: a call without an answer for so long is given up.
        start_timeout_s: it must have named its tools within that time.
    """

    name: str
    url: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    call_timeout_s: float = 60.0
    start_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Seat:
    """A role that an agent fills.

    Attributes:
        handle: `[a-z0-9][a-z0-9-]{0,62}`, unique in the company.
        title: for people.
        unit: the name of its unit, or None.
        placement: which nodes may run it.
        runner: what runs its turns.
        tool_servers: what offers its agent tools, started and ended with each tenure.
        budget: the most that it may spend.
    """

    handle: str
    title: str = ""
    unit: str | None = None
    placement: Placement = ANYWHERE
    runner: Runner = ScriptRunner()
    tool_servers: tuple[ToolProgram | ToolSite, ...] = ()
    budget: Budget = UNLIMITED


@dataclass(frozen=True, slots=True)
class Company:
    """One valid revision of the company document.

    Attributes:
        name: part of every agent's identity; renaming the company makes its agents other agents.
        seats: the agents' roles in the document's order. Roles of people are not seats.
        people: handles of the roles that people fill.
        units: the names of the units, each with the one that it lies in, or None.
        coalesce_window_s: how long an inbox waits for more mail of a conversation, 0 to 60.
        coalesce_max_batch: how many messages one turn may take, 1 to 100.
        timezone: the zone in which its days, weeks and months begin.
        budget: the most that all of its seats together may spend.
        schedules: the mail that its seats are sent again and again.
    """

    name: str
    seats: tuple[Seat, ...] = ()
    people: tuple[str, ...] = ()
    units: Mapping[str, str | None] = field(default_factory=dict[str, str | None])
    coalesce_window_s: float = 0.0
    coalesce_max_batch: int = 20
    timezone: str = "UTC"
    budget: Budget = UNLIMITED
    schedules: tuple[Schedule, ...] = ()
    _by_handle: dict[str, Seat] = field(init=False, repr=False, compare=False, default_factory=dict[str, Seat])

    def __post_init__(self) -> None:
        self._by_handle.update((seat.handle, seat) for seat in reversed(self.seats))

    def seat(self, handle: str) -> Seat | None:
        """The seat of that handle, or None."""
        return self._by_handle.get(handle)

    def seats_of(self, unit: str) -> tuple[Seat, ...]:
        """The seats of a unit and of the units inside it."""
        return tuple(seat for seat in self.seats if unit in self._units_around(seat.unit))

    def _units_around(self, unit: str | None) -> list[str]:
        around: list[str] = []
        while unit is not None and unit not in around:
            around.append(unit)
            unit = self.units.get(unit)
        return around

    def agent_id(self, handle: str) -> UUID:
        """The identity of the agent that fills a seat: the same on every node, derived from names alone."""
        return uuid5(NAMESPACE_URL, f"crewlet:{self.name}:{handle}")
