"""The company in memory for tests that are plain functions: each call that takes time returns when that has passed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from crewlet.mail.envelope import Envelope
from crewlet.testing.inmemory.asserting import Posted
from crewlet.testing.inmemory.company import FIRST_NODE, AsyncInMemoryCompany
from crewlet.testing.inmemory.records import Run, ToolCall
from crewlet.testing.inmemory.tools import Tool
from crewlet.testing.inmemory.world import LEASE_TTL_S


class InMemoryCompany:
    """`AsyncInMemoryCompany` without `await`; each method is described there. A context manager that closes it."""

    def __init__(
        self,
        document: str | Path,
        *,
        env: Mapping[str, Mapping[str, str]] | None = None,
        variables: Mapping[str, str] | None = None,
        lease_ttl_s: float = LEASE_TTL_S,
    ) -> None:
        self._all = AsyncInMemoryCompany(document, env=env, variables=variables, lease_ttl_s=lease_ttl_s)

    def __enter__(self) -> "InMemoryCompany":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def script(self, seat: str, answers: Any) -> None:
        self._all.script(seat, answers)

    def tool_server(self, name: str, *tools: Callable[..., Any] | Tool) -> None:
        self._all.tool_server(name, *tools)

    def replace(self, target: str, value: Any) -> None:
        self._all.replace(target, value)

    def send(
        self,
        seat: str,
        body: str,
        *,
        subject: str = "",
        source: str = "person",
        conversation: str = "",
        id: str | None = None,
    ) -> Posted:
        sending = self._all.send(seat, body, subject=subject, source=source, conversation=conversation, id=id)
        return self._all.run(sending)

    def run_until_idle(self, *, within_s: float = 3600.0) -> None:
        self._all.run(self._all.run_until_idle(within_s=within_s))

    def run_until(self, condition: Callable[[], object], *, within_s: float = 3600.0) -> None:
        self._all.run(self._all.run_until(condition, within_s=within_s))

    def advance(self, seconds: float) -> None:
        self._all.run(self._all.advance(seconds))

    @property
    def now_s(self) -> float:
        return self._all.now_s

    def lose_lease_at(
        self, seat: str, *, round: int | None = None, call: int | None = None, send: int | None = None
    ) -> None:
        self._all.lose_lease_at(seat, round=round, call=call, send=send)

    def crash_at(
        self,
        seat: str,
        *,
        round: int | None = None,
        call: int | None = None,
        send: int | None = None,
        restarts: bool = True,
    ) -> None:
        self._all.crash_at(seat, round=round, call=call, send=send, restarts=restarts)

    def crash_before_ack(self, seat: str, *, is_recorded: bool = False, restarts: bool = True) -> None:
        self._all.crash_before_ack(seat, is_recorded=is_recorded, restarts=restarts)

    def crash(self, node: str = FIRST_NODE, *, restarts: bool = True) -> None:
        self._all.run(self._all.crash(node, restarts=restarts))

    def restart(self, node: str = FIRST_NODE) -> None:
        self._all.run(self._all.restart(node))

    def add_node(self, node: str) -> None:
        self._all.run(self._all.add_node(node))

    def stop_node(self, node: str) -> None:
        self._all.run(self._all.stop_node(node))

    def pause(self, seat: str, *, stop_running: bool = False, reason: str = "") -> None:
        self._all.run(self._all.pause(seat, stop_running=stop_running, reason=reason))

    def resume(self, seat: str) -> None:
        self._all.run(self._all.resume(seat))

    def set_budget(
        self, seat: str | None, *, day: int | None = None, week: int | None = None, month: int | None = None
    ) -> None:
        self._all.run(self._all.set_budget(seat, day=day, week=week, month=month))

    def spent(self, seat: str | None) -> int:
        return self._all.run(self._all.spent(seat))

    def mail_to(self, seat: str) -> Sequence[Envelope]:
        return self._all.mail_to(seat)

    def mail_from(self, seat: str) -> Sequence[Envelope]:
        return self._all.mail_from(seat)

    def posted(self, mail: Envelope) -> Posted:
        return self._all.posted(mail)

    def runs(self, seat: str) -> Sequence[Run]:
        return self._all.runs(seat)

    def calls(self, seat: str) -> Sequence[ToolCall]:
        return self._all.calls(seat)

    def holder(self, seat: str) -> str | None:
        return self._all.holder(seat)

    def held_back(self, seat: str) -> str:
        return self._all.held_back(seat)

    def history(self, seat: str) -> str:
        return self._all.history(seat)

    @property
    def seats(self) -> Sequence[str]:
        return self._all.seats

    def assert_ran_once(self, mail: Posted, *, effects: Iterable[Any] | None = None) -> None:
        __tracebackhide__ = True
        self._all.assert_ran_once(mail, effects=effects)

    def assert_outcome(self, mail: Posted, outcome: str) -> None:
        __tracebackhide__ = True
        self._all.assert_outcome(mail, outcome)

    def close(self) -> None:
        self._all.close()
