"""The company in memory as a test holds it: `AsyncInMemoryCompany`. Its plain twin is in `plain`."""

import asyncio
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

from crewlet.company.document import load_company, parse_company
from crewlet.company.model import LlmRunner
from crewlet.mail import topics
from crewlet.mail.pauses import Wish
from crewlet.mail.screening import BUDGET_WINDOW, SEAT_PAUSED
from crewlet.node.assembly import Node
from crewlet.ports.errors import Misuse
from crewlet.testing.inmemory.asserting import Posted
from crewlet.testing.inmemory.logs import no_logs, quiet_logs
from crewlet.testing.inmemory.loop import CompanyLoop
from crewlet.testing.inmemory.plans import Plan
from crewlet.testing.inmemory.records import Run
from crewlet.testing.inmemory.seen import Seen
from crewlet.testing.inmemory.tools import Tool
from crewlet.testing.inmemory.world import LEASE_TTL_S, Equipment, Life, Machine, World, ready
from crewlet.turns.budget import Caps
from crewlet.turns.runners import minimal_env

T = TypeVar("T")

FIRST_NODE = "n1"
_STEP_S = 0.02
_LOOK_S = 5.0
_HEARD_S = 0.5
"""In which every node has heard what people did."""

_HOLDS_OF_PEOPLE = frozenset({SEAT_PAUSED, BUDGET_WINDOW})


class NotIdle(AssertionError):
    """Mail was still being worked, or waited for something, when the time was up. Says what for."""


class AsyncInMemoryCompany(Seen):
    """A company of the user's seats, in this process and in virtual time.

    Its node `n1` starts with the first thing that takes time. What has to be in place before that is put there by
    `script`, `tool_server`, `replace` and `variables`.

    Args:
        document: the path of a company document, or its text.
        env: variables for the programs of seats, by handle, before those of the document.
        variables: the nodes' own, to which the document may refer.
        lease_ttl_s: of the company's leases.

    Raises:
        ConfigRefused: the document is not valid.
    """

    def __init__(
        self,
        document: str | Path,
        *,
        env: Mapping[str, Mapping[str, str]] | None = None,
        variables: Mapping[str, str] | None = None,
        lease_ttl_s: float = LEASE_TTL_S,
    ) -> None:
        company, folder = _read(document)
        self._loop = CompanyLoop()
        self._equipment = Equipment(minimal_env(os.environ), folder, dict(variables or {}))
        super().__init__(World(self._loop, ready(company, env or {}), self._equipment, lease_ttl_s=lease_ttl_s))
        self._unquiet = quiet_logs()
        self._has_begun = self._is_closed = False

    # Before it begins

    def script(self, seat: str, answers: Any) -> None:
        """Say how the model of an `llm` seat answers: see docs/how-to/testing-your-seats.md.

        Args:
            answers: a list of `Say`, `Refuse` or texts, one a round of a turn, the last of them for ever; a function
                from the messages so far to one of these; or a model of Pydantic AI.
        """
        self._check_seat(seat)
        self._equipment.scripts[seat] = answers

    def tool_server(self, name: str, *tools: Callable[..., Any] | Tool) -> None:
        """Let functions stand in for the tool server of that name, in every seat that has it."""
        self._check_not_begun()
        self._equipment.stand_ins.tools[name] = [tool if isinstance(tool, Tool) else Tool(tool) for tool in tools]

    def replace(self, target: str, value: Any) -> None:
        """Put something in the place of a name in the modules of `python` seats, whenever they are loaded.

        Args:
            target: `module.name`.
        """
        self._check_not_begun()
        module, _, name = target.rpartition(".")
        if not module:
            raise Misuse(f"{target!r} names nothing in a module: write `module.name`")
        self._equipment.patches.setdefault(module, {})[name] = value

    # Mail and time

    async def send(
        self,
        seat: str,
        body: str,
        *,
        subject: str = "",
        source: str = "person",
        conversation: str = "",
        id: str | None = None,
    ) -> Posted:
        """Put a mail into a seat's inbox.

        Raises:
            UnknownSeat, MailRefused: it is not taken.
        """
        node = await self._serving()
        sent = await node.commands.send_mail(
            seat, body, subject=subject, source=source, conversation=conversation, message_id=id
        )
        return Posted(sent.id, seat, self._world.records)

    async def run_until_idle(self, *, within_s: float = 3600.0) -> None:
        """Let time pass until no mail is worked or waits for anything but people: a pause, or a budget's next window.

        Args:
            within_s: virtual seconds.

        Raises:
            NotIdle: it did not come to that.
            Misuse: a seat with mail lacks the script of its model, or what stands in for a tool server.
        """
        await self._serving()
        await self._wait_for(self._is_idle, within_s)

    async def run_until(self, condition: Callable[[], object], *, within_s: float = 3600.0) -> None:
        """Let time pass until something is so.

        Raises:
            NotIdle: it did not come true in so many virtual seconds.
        """
        await self._serving()
        await self._wait_for(condition, within_s)

    async def advance(self, seconds: float) -> None:
        """Let so much virtual time pass, and everything happen that it brings."""
        await self._serving()
        await asyncio.sleep(seconds)

    @property
    def now_s(self) -> float:
        """Virtual seconds since the company began."""
        return self._loop.time()

    # Faults

    def lose_lease_at(
        self,
        seat: str,
        *,
        round: int | None = None,
        call: int | None = None,
        send: int | None = None,
    ) -> None:
        """Have the node of a seat stand still at a step of its turn, until another has taken the seat over.

        It thaws in the step in which it froze, so that what it does next is the first that it does without the lease.

        Args:
            round: while a model answers in that round, from 1; of seats without one, once they have reported usage.
            call: before that tool call of a turn.
            send: before that mail of a turn.
        """

        async def strike(life: Life) -> None:
            self._world.loop.freeze(life.process)
            self._world.at_once(self._taken_over(seat, life))
            await asyncio.sleep(0)  # where it stands until the thaw

        self._plan(seat, strike, "the lease is lost", round=round, call=call, send=send)

    def crash_at(
        self,
        seat: str,
        *,
        round: int | None = None,
        call: int | None = None,
        send: int | None = None,
        restarts: bool = True,
    ) -> None:
        """Have the node of a seat die at a step of its turn; see `lose_lease_at`.

        Args:
            restarts: whether it comes back, as its parent process would bring it back.
        """
        text = "as it was planned"
        self._plan(seat, self._dying(text, restarts=restarts), text, round=round, call=call, send=send)

    def crash_before_ack(self, seat: str, *, is_recorded: bool = False, restarts: bool = True) -> None:
        """Have the node of a seat die once, when its function has returned and its mail is not acked.

        Args:
            is_recorded: whether it dies after the ledger has the work, which is then not done again; before that, the
                mail comes back, and the whole turn runs once more.
            restarts: as `crash_at`.
        """
        self._check_seat(seat)
        if not is_recorded:
            text = "the turn had ended, and nothing of that was recorded"
            self._world.plans.add(Plan(seat, "end", 1, self._dying(text, restarts=restarts), text))
            return
        text = "the turn was recorded, and its mail not acked"
        plan = Plan(seat, "end", 0, self._dying(text, restarts=restarts), text)
        self._world.plans.add(plan)

        def recorded(run: Run) -> None:
            if run.seat == seat and not plan.is_over:
                plan.is_over = True
                machine = self._world.machines[run.node]
                crash = self._crasher(machine, text, restarts=restarts)
                self._loop.call_soon(crash, context=self._world.context)

        self._world.records.on_recorded = recorded

    async def crash(self, node: str = FIRST_NODE, *, restarts: bool = True) -> None:
        """Have a node die now, from one step to the next; see `crash_at`."""
        await self._serving()
        self._machine(node).crash("the test said so", restarts=restarts)

    async def restart(self, node: str = FIRST_NODE) -> None:
        """Have a node hand everything back, its running turns finished first, and start anew."""
        await self._serving()
        machine = self._machine(node)
        await machine.stop()
        machine.boot()
        await self._serving()

    async def add_node(self, node: str) -> None:
        """Start another node, which takes its share of the seats and takes over those of one that dies."""
        await self._serving()
        life = self._world.machine(node).life
        while life is not None and not life.is_serving:
            await asyncio.sleep(_STEP_S)

    async def stop_node(self, node: str) -> None:
        """Have a node hand everything back, and end."""
        await self._machine(node).stop()

    # What people do

    async def pause(self, seat: str, *, stop_running: bool = False, reason: str = "") -> None:
        """Pause a seat, as `crewlet seat pause` does.

        Raises:
            UnknownSeat, PauseLost: see there.
        """
        node = await self._serving()
        await node.commands.pausing.pause(seat, Wish("", "test", reason, stop_running=stop_running))
        await asyncio.sleep(_HEARD_S)

    async def resume(self, seat: str) -> None:
        """End the pause of a seat."""
        node = await self._serving()
        await node.commands.pausing.resume(seat)
        await asyncio.sleep(_HEARD_S)

    async def set_budget(
        self, seat: str | None, *, day: int | None = None, week: int | None = None, month: int | None = None
    ) -> None:
        """Cap what a seat may spend, in tokens, as `crewlet budget set` does; None is the company."""
        node = await self._serving()
        await node.commands.budgets.set(seat, Caps(day, week, month))
        await asyncio.sleep(_HEARD_S)

    async def spent(self, seat: str | None) -> int:
        """The tokens that a seat has spent this month; None is the company."""
        node = await self._serving()
        return (await node.commands.budgets.show(seat)).windows["month"].spent

    # Running it

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the company's own loop, in virtual time."""
        if self._is_closed:
            main.close()
            raise Misuse("this company is closed")
        return self._loop.run_until_complete(main)

    def close(self) -> None:
        """End it: what still runs is thrown away."""
        if self._is_closed:
            return
        self._is_closed = True
        with no_logs():  # what is thrown away complains
            self._world.unwind()
            self._loop.abandon()
            self._loop.close()
        self._unquiet()

    async def _serving(self) -> Node:
        """A node that answers, the company begun."""
        if asyncio.get_running_loop() is not self._loop:
            raise Misuse("a company in memory has a loop of its own: use the fixture `async_company`, or its `run`")
        if not self._has_begun:
            self._has_begun = True
            self._world.machine(FIRST_NODE)
        while not (living := self._world.living()):
            if not any(machine.life for machine in self._world.machines.values()) and not self._world.coming:
                raise Misuse("no node is left: start one with `add_node`, or let crashed ones restart")
            await asyncio.sleep(_STEP_S)
        return living[0].node

    async def _wait_for(self, condition: Callable[[], object], within_s: float) -> None:
        """Look whenever something has happened, a moment after it, and now and then."""
        stirred, give_up_at = self._world.records.stirred, self._loop.time() + within_s
        while not condition():
            self._check_equipped()
            if self._loop.time() >= give_up_at:
                raise NotIdle(self._what_waits(within_s))
            stirred.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(_LOOK_S, give_up_at - self._loop.time())):
                    await stirred.wait()
            await asyncio.sleep(_STEP_S)

    def _is_idle(self) -> bool:
        world = self._world
        if world.coming or any(life.node.seats.in_flight for life in world.living()):
            return False
        return all(self._is_held_by_people(seat) for seat in self._waiting())

    def _is_held_by_people(self, seat: str) -> bool:
        """A pause or a budget keeps its mail, and nothing else does."""
        life = self._world.holder(seat)
        holds = set(life.node.seats.holds(seat)) if life is not None else set[str]()
        return bool(holds) and holds <= _HOLDS_OF_PEOPLE

    def _waiting(self) -> Mapping[str, int]:
        """How much mail each seat has that is not settled."""
        unsettled = self._world.mail.unsettled()
        counts = {seat: unsettled.get(topics.inbox(seat), 0) for seat in self.seats}
        return {seat: count for seat, count in counts.items() if count}

    def _what_waits(self, within_s: float) -> str:
        lines = [f"the company is not idle after {within_s:g} s:"]
        for seat, count in self._waiting().items():
            life = self._world.holder(seat)
            errors = {**(life.node.health().last_error or {})} if life is not None else self._errors()
            why = "; ".join(filter(None, (self.held_back(seat), errors.get(seat, ""))))
            where = f"held by {life.machine.name}" if life is not None else "held by no node"
            lines.append(f"  {seat}: {count} mails unsettled, {where}" + (f", {why}" if why else ""))
        histories = [self.history(seat) for seat in self._waiting()]
        return "\n\n".join(["\n".join(lines), *histories])

    def _errors(self) -> Mapping[str, str]:
        return {
            seat: text for life in self._world.living() for seat, text in (life.node.health().last_error or {}).items()
        }

    def _check_equipped(self) -> None:
        for handle in self._waiting():
            seat = self._check_seat(handle)
            if isinstance(seat.runner, LlmRunner) and handle not in self._equipment.scripts:
                raise Misuse(f"{handle} is an llm seat without a script: call `script({handle!r}, [...])` first")
            for server in seat.tool_servers:
                if server.name not in self._equipment.stand_ins.tools:
                    raise Misuse(
                        f"nothing stands in for the tool server {server.name!r} of {handle}: call "
                        f"`tool_server({server.name!r}, ...)` first"
                    )

    def _check_not_begun(self) -> None:
        if self._has_begun:
            raise Misuse("the company has begun: put this in place before the first mail")

    def _machine(self, node: str) -> Machine:
        machine = self._world.machines.get(node)
        if machine is None or machine.life is None:
            up = ", ".join(name for name, each in self._world.machines.items() if each.life is not None)
            raise Misuse(f"there is no node {node!r}; up are: {up or 'none'}")
        return machine

    def _plan(
        self,
        seat: str,
        strike: Callable[[Life], Awaitable[None]],
        text: str,
        **steps: int | None,
    ) -> None:
        self._check_seat(seat)
        named = [(step, number) for step, number in steps.items() if number is not None]
        if len(named) != 1 or named[0][1] < 1:
            raise Misuse("say at which round, call or send of a turn, counted from 1")
        step: Any = named[0][0]
        self._world.plans.add(Plan(seat, step, named[0][1], strike, text))

    def _dying(self, text: str, *, restarts: bool) -> Callable[[Life], Awaitable[None]]:
        async def strike(life: Life) -> None:
            life.machine.crash(text, restarts=restarts)
            await self._loop.create_future()  # nothing of this process goes on

        return strike

    def _crasher(self, machine: Machine, text: str, *, restarts: bool) -> Callable[[], None]:
        def crash() -> None:
            machine.crash(text, restarts=restarts)

        return crash

    async def _taken_over(self, seat: str, frozen: Life) -> None:
        world = self._world
        world.records.note(seat, frozen.machine.name, "the node stands still")
        if not any(life is not frozen for life in world.living()):
            spare = next(name for name in (f"n{number}" for number in range(2, 99)) if name not in world.machines)
            world.machine(spare)
        while world.records.holders.get(seat, (frozen.owner, 0))[0] == frozen.owner:
            await asyncio.sleep(_STEP_S)
        world.records.note(seat, frozen.machine.name, "the node goes on where it stood")
        world.loop.thaw(frozen.process, timers_first=False)


def _read(document: str | Path) -> tuple[Any, str | None]:
    if isinstance(document, str) and "\n" in document:
        folder = Path.cwd()
        return parse_company(document, "the company of this test", folder=folder), str(folder)
    path = Path(document)
    return load_company(path), str(path.resolve().parent)
