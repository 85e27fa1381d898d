"""Command seats with real programs: what they are given, what they may say, and that nothing of them stays."""

import asyncio
import json
import math
import sys
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from process_kit import ENV, children, is_running, python, until

from crewlet.adapters.process import LocalPrograms
from crewlet.adapters.system.clock import SystemClock
from crewlet.company.model import CommandRunner, Seat
from crewlet.mail.envelope import Envelope
from crewlet.ports.errors import Fenced, Unavailable
from crewlet.ports.mail import MessageTooLarge, NoMailbox
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.seats.fence import SeatFence
from crewlet.turns.guards import GuardBreached
from crewlet.turns.runners import CommandTurns, ProgramBroke, conversation, minimal_env
from crewlet.turns.runners.conversation import MOST_ROUNDS
from crewlet.turns.turn import AgentNotReady, OutgoingMail, RoundUsage, Turn, TurnResult

pytestmark = [pytest.mark.process, pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")]

PROGRESS_EVERY_S = conversation._PROGRESS_EVERY_S  # pyright: ignore[reportPrivateUsage]


class _Bench:
    """A command seat, its turns and what came of them."""

    def __init__(self) -> None:
        self.clock = SystemClock()
        self.programs = LocalPrograms()
        self.fence = SeatFence(Term("seat:alice", "node-a:1", 7), self.clock, math.inf)
        self.sent: list[OutgoingMail] = []
        self.shown: list[str] = []
        self.reached: list[str] = []
        self.answered: list[str] = []
        self.refuse_with: Exception | None = None
        self.refuse_rounds_with: Exception | None = None
        self.spent: list[RoundUsage] = []
        self.called: list[str] = []
        self.tools: _Bench | None = self

    @property
    def infos(self) -> list[ToolInfo]:
        return []

    async def call(self, name: str, arguments: Mapping[str, Any]) -> ToolAnswer:
        self.called.append(name)
        return ToolAnswer(str(sum(arguments.values())))

    async def _begin_round(self, number: int) -> None:
        del number
        if self.refuse_rounds_with is not None:
            raise self.refuse_rounds_with

    async def _spend(self, usage: RoundUsage) -> None:
        self.spent.append(usage)

    async def _send(self, mail: OutgoingMail) -> str:
        if self.refuse_with is not None:
            raise self.refuse_with
        self.sent.append(mail)
        return f"m{len(self.sent)}"

    def turn(self, command: CommandRunner, *, body: str = "hi") -> Turn:
        mail = Envelope(
            id="e1",
            type="external_notification",
            timestamp="2030-01-01T00:00:00Z",
            source="seat:bob",
            to="alice",
            body=body,
            conversation="c1",
            payload={"n": 1},
        )
        note = Envelope(id="e2", type="observed", timestamp="2030-01-01T00:00:01Z", source="program")
        seat = Seat("alice", runner=command)
        told = (self.shown.append, self.reached.append, self.answered.append)
        return Turn(
            "t1",
            "w1",
            seat,
            [mail, note],
            self.fence,
            self._send,
            *told,
            tools=self.tools,
            begin_round=self._begin_round,
            usage=self._spend,
        )

    async def run(
        self,
        *steps: str,
        command: tuple[str, ...] | None = None,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        linger_s: float = 10.0,
        body: str = "hi",
    ) -> TurnResult:
        spec = CommandRunner(command or python("answer.py", *steps), env or {}, cwd, timeout_s)
        return await self.runner(spec, linger_s=linger_s).run(self.turn(spec, body=body))

    def runner(self, spec: CommandRunner, *, linger_s: float = 10.0) -> CommandTurns:
        variable = {"TOKEN": "s3cret"}.get
        seat = Seat("alice", runner=spec)
        return CommandTurns(
            seat, self.programs, clock=self.clock, base_env=ENV, default_cwd="/", variable=variable, linger_s=linger_s
        )


@pytest.fixture
async def bench(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[_Bench]:
    """Everything that its programs say is shown, also what comes on the heels of something else."""
    monkeypatch.setattr(conversation, "_PROGRESS_EVERY_S", 0.0)
    before = children()
    made = _Bench()
    yield made
    assert made.programs.running == frozenset()
    assert children() <= before


async def test_a_program_reads_its_mail_sends_a_reply_and_ends_with_an_outcome(bench: _Bench) -> None:
    assert await bench.run() == TurnResult("delivered", "sent m1")
    assert bench.sent == [OutgoingMail("bob", "done", conversation="c1")]
    assert bench.shown == ["working on 2 messages"]


async def test_a_program_is_given_its_mail_its_term_and_a_small_environment(bench: _Bench, tmp_path: Path) -> None:
    env = {"MODEL": "small", "CREWLET_SEAT": "mallory"}
    await bench.run("echo", "outcome:no_action", env=env, cwd=str(tmp_path))
    given: dict[str, Any] = json.loads(bench.shown[0])
    assert given["start"] == {
        "v": 1,
        "seat": "alice",
        "turn_id": "t1",
        "work_key": "w1",
        "triggers": ["e1"],
        "mail": [
            {
                "id": "e1",
                "type": "external_notification",
                "source": "seat:bob",
                "to": "alice",
                "subject": "",
                "body": "hi",
                "conversation": "c1",
                "chat_message": "",
                "timestamp": "2030-01-01T00:00:00Z",
                "payload": {"n": 1},
            },
            {
                "id": "e2",
                "type": "observed",
                "source": "program",
                "to": "",
                "subject": "",
                "body": "",
                "conversation": "",
                "chat_message": "",
                "timestamp": "2030-01-01T00:00:01Z",
                "payload": {},
            },
        ],
        "tools": [],
        "term": {"resource": "seat:alice", "owner": "node-a:1", "epoch": 7, "good_until": None},
    }
    expected = {
        **ENV,
        "MODEL": "small",
        "CREWLET_SEAT": "alice",
        "CREWLET_TURN_ID": "t1",
        "CREWLET_TERM_RESOURCE": "seat:alice",
        "CREWLET_TERM_OWNER": "node-a:1",
        "CREWLET_TERM_EPOCH": "7",
    }
    given["env"].pop("LC_CTYPE", None)  # the interpreter's own doing in the C locale
    assert given["env"] == expected
    assert given["cwd"] == str(tmp_path)


async def test_a_program_that_accounts_for_rounds_without_end_breaches_a_guard(bench: _Bench) -> None:
    lines = "\\n".join(['{"usage": {"model": "m", "input_tokens": 1, "output_tokens": 1}}'] * (MOST_ROUNDS + 5))
    with pytest.raises(GuardBreached, match=f"no outcome after {MOST_ROUNDS} rounds"):
        await bench.run(command=("/bin/sh", "-c", f"printf '{lines}\\n'; sleep 60"))
    assert len(bench.spent) == MOST_ROUNDS + 1


async def test_what_a_variable_of_a_seat_refers_to_is_filled_in_as_its_program_starts(bench: _Bench) -> None:
    env = {"KEY": "Bearer ${TOKEN}", "COST": "$${TOKEN}"}
    await bench.run("echo", "outcome:no_action", env=env)
    given: dict[str, str] = json.loads(bench.shown[0])["env"]
    assert (given["KEY"], given["COST"]) == ("Bearer s3cret", "${TOKEN}")
    assert "TOKEN" not in given


async def test_a_reference_to_a_variable_that_is_not_set_tries_nothing_and_is_named(bench: _Bench) -> None:
    with pytest.raises(AgentNotReady, match="needs the variable NOPE, which is not set on this node"):
        await bench.run("outcome:no_action", env={"KEY": "${NOPE}"})


def test_of_the_nodes_environment_only_three_variables_are_passed_on() -> None:
    node = {"PATH": "/bin", "HOME": "/root", "LANG": "C", "NATS_TOKEN": "secret", "CREWLET_PAGE_FD": "3"}
    assert minimal_env(node) == {"PATH": "/bin", "HOME": "/root", "LANG": "C"}
    assert minimal_env({"PATH": "/bin"}) == {"PATH": "/bin"}


async def test_mail_larger_than_a_pipe_reaches_the_program(bench: _Bench) -> None:
    assert await bench.run("outcome:no_action", body="x" * 1_000_000) == TurnResult("no_action", "as asked")


@pytest.mark.parametrize(
    ("steps", "kind", "says"),
    [
        (["say:Loading model..."], "program_bad_line", "not JSON: 'Loading model...'"),
        (["say:[1]"], "program_bad_line", "not a JSON object"),
        (['say:{"hello": 1}'], "program_bad_line", "not exactly one of"),
        (['say:{"progress": "a", "outcome": "failed"}'], "program_bad_line", "not exactly one of"),
        (['say:{"outcome": "stopped"}'], "program_bad_line", "stopped"),
        (['say:{"send": {"to": "bob"}}'], "program_bad_line", "body"),
        (["flood"], "program_flooded", "a line of more than"),
        (["exit:0"], "program_without_outcome", "exited without an outcome"),
        (["stray", "exit:4"], "program_failed", "exited with code 4; it said: Traceback-ish words on stderr"),
        (["kill:6"], "program_failed", "ended by signal 6"),
    ],
)
async def test_a_program_that_breaks_is_named_and_its_mail_may_come_back(
    bench: _Bench, steps: list[str], kind: str, says: str
) -> None:
    with pytest.raises(ProgramBroke) as broke:
        await bench.run(*steps)
    assert broke.value.kind == kind
    assert says in str(broke.value)


@pytest.mark.parametrize(
    ("command", "cwd", "says"),
    [(("no-such-program",), None, "was not found"), (("true",), "/no/such/folder", "/no/such/folder is missing")],
)
async def test_a_program_that_cannot_start_tries_nothing_and_is_not_ready(
    bench: _Bench, command: tuple[str, ...], cwd: str | None, says: str
) -> None:
    with pytest.raises(AgentNotReady, match=says):
        await bench.run(command=command, cwd=cwd)
    turns = bench.runner(CommandRunner(command, {}, cwd))
    turns.start(bench.fence, lambda: None)
    await until(lambda: turns.trouble is not None)
    assert not turns.is_ready and says in str(turns.trouble)
    await turns.end()


async def test_a_program_that_appears_is_found_and_one_that_goes_is_missed_at_its_next_start(
    bench: _Bench, tmp_path: Path
) -> None:
    program = tmp_path / "agent"
    spec = CommandRunner(("./agent",), {}, str(tmp_path))
    turns, heard = bench.runner(spec), list[bool]()
    turns.start(bench.fence, lambda: heard.append(turns.is_ready))
    await until(lambda: turns.trouble is not None)
    assert heard == [False] and not turns.is_ready
    script = """#!/bin/sh\nread -r start\necho '{"outcome": "no_action"}'\n"""
    program.write_text(script)
    await until(lambda: turns.trouble == "./agent is not executable")
    program.chmod(0o755)
    await until(lambda: turns.is_ready)
    assert turns.trouble is None and await turns.run(bench.turn(spec)) == TurnResult("no_action")
    program.write_text(script.replace("/bin/sh", "/no/such/sh"))
    with pytest.raises(AgentNotReady):
        await turns.run(bench.turn(spec))
    assert not turns.is_ready and turns.trouble is not None
    await until(lambda: turns.trouble == "./agent is a script for /no/such/sh, which is missing or not executable")
    program.write_text(script)
    await until(lambda: turns.is_ready)
    await turns.end()
    assert not turns.is_ready


async def test_a_program_that_takes_too_long_is_ended_and_named(bench: _Bench) -> None:
    with pytest.raises(ProgramBroke, match=r"no outcome within 0\.3 s") as broke:
        await bench.run("sleep:60", timeout_s=0.3)
    assert broke.value.kind == "program_timed_out"


async def test_a_program_that_only_closes_its_output_is_ended_and_named(bench: _Bench) -> None:
    with pytest.raises(ProgramBroke, match="went on running") as broke:
        await bench.run("close", "sleep:60", linger_s=0.1)
    assert broke.value.kind == "program_without_outcome"


@pytest.mark.parametrize("refusal", [NoMailbox("no mailbox"), MessageTooLarge("too large")])
async def test_a_refused_send_is_answered_with_its_reason_and_the_program_goes_on(
    bench: _Bench, refusal: Exception
) -> None:
    bench.refuse_with = refusal
    assert await bench.run("send:bob", "outcome:blocked") == TurnResult("blocked", "as asked")
    assert json.loads(bench.shown[0]) == {"refused": {"reason": str(refusal)}}


@pytest.mark.parametrize("last", ["exit:5", "sleep:60"])
async def test_an_outcome_stands_however_the_program_ends_after_it(bench: _Bench, last: str) -> None:
    assert await bench.run("outcome:delivered", last, linger_s=0.2) == TurnResult("delivered", "as asked")


async def test_what_a_program_left_running_ends_with_the_turn_and_holds_nothing_up(bench: _Bench) -> None:
    with pytest.raises(ProgramBroke) as broke:
        await bench.run("leave", "exit:0")
    assert broke.value.kind == "program_without_outcome"
    assert not is_running(int(bench.shown[0]))


async def test_a_cancelled_turn_has_seen_all_its_processes_end(bench: _Bench) -> None:
    turn = asyncio.create_task(bench.run("leave", "sleep:60"))
    await until(lambda: bool(bench.shown))
    turn.cancel()
    turn.cancel()
    with pytest.raises(asyncio.CancelledError):
        await turn
    assert bench.programs.running == frozenset()
    assert not is_running(int(bench.shown[0]))


async def test_the_fence_is_checked_before_a_program_starts(bench: _Bench, tmp_path: Path) -> None:
    bench.fence.close("lease_lost")
    with pytest.raises(Fenced):
        await bench.run(f"mark:{tmp_path / 'started'}", "outcome:delivered")
    assert not (tmp_path / "started").exists()


async def test_the_fence_is_checked_before_each_send(bench: _Bench, tmp_path: Path) -> None:
    go = tmp_path / "go"
    turn = asyncio.create_task(bench.run("echo", f"until:{go}", "send:bob", "outcome:delivered"))
    await until(lambda: bool(bench.shown))
    bench.fence.close("lease_lost")
    go.touch()
    with pytest.raises(Fenced):
        await turn
    assert bench.sent == []
    assert bench.programs.running == frozenset()


async def test_a_program_calls_tools_and_asks_whether_its_term_is_good(bench: _Bench) -> None:
    call = 'ask:{"call": {"tool": "add", "arguments": {"a": 1, "b": 2}}}'
    assert await bench.run(call, 'ask:{"check": {}}', "outcome:delivered") == TurnResult("delivered", "as asked")
    answers = [json.loads(shown) for shown in bench.shown]
    assert answers[0] == {"result": {"text": "3", "is_error": False}}
    term = {"resource": "seat:alice", "owner": "node-a:1", "epoch": 7, "good_until": None}
    assert answers[1] == {"term": term}


async def test_a_call_of_a_seat_without_tools_is_answered_with_an_error(bench: _Bench) -> None:
    bench.tools = None
    await bench.run('ask:{"call": {"tool": "add"}}', "outcome:failed")
    (answer,) = [json.loads(shown) for shown in bench.shown]
    assert answer["result"]["is_error"]
    assert "'add'" in answer["result"]["text"]


@pytest.mark.parametrize("request_", ['{"call": {"tool": "add"}}', '{"check": {}}'])
async def test_a_program_that_asks_after_the_seat_is_lost_is_ended_without_an_answer(
    bench: _Bench, tmp_path: Path, request_: str
) -> None:
    go = tmp_path / "go"
    turn = asyncio.create_task(bench.run("echo", f"until:{go}", f"ask:{request_}", "outcome:delivered"))
    await until(lambda: bool(bench.shown))
    bench.fence.close("lease_lost")
    go.touch()
    with pytest.raises(Fenced):
        await turn
    assert bench.called == []
    assert bench.programs.running == frozenset()


async def test_what_a_programs_models_cost_is_counted_round_by_round(bench: _Bench) -> None:
    usage = 'say:{"usage": {"model": "m", "input_tokens": 10, "output_tokens": 3}}'
    await bench.run(usage, usage, "outcome:delivered")
    assert bench.spent == [RoundUsage(1, "m", 10, 3), RoundUsage(2, "m", 10, 3)]


async def test_what_a_round_cost_is_counted_also_when_the_turn_may_not_go_on(bench: _Bench) -> None:
    bench.refuse_rounds_with = Unavailable("no counter")
    with pytest.raises(Unavailable):
        await bench.run('say:{"usage": {"model": "m"}}', "outcome:delivered")
    assert bench.spent == [RoundUsage(1, "m", 0, 0)]
    assert bench.programs.running == frozenset()


async def test_a_program_may_name_the_version_it_speaks_and_another_one_is_refused(bench: _Bench) -> None:
    assert (await bench.run('say:{"v": 1}', "outcome:no_action")).outcome == "no_action"
    with pytest.raises(ProgramBroke, match="speaks version 2 of the protocol, this node version 1") as broke:
        await bench.run('say:{"v": 2}', "outcome:no_action")
    assert broke.value.kind == "program_unknown_version"


async def test_what_a_program_says_it_answered_in_its_thread_is_passed_on(bench: _Bench) -> None:
    assert (await bench.run('say:{"answered": "slack:C1:1.0"}', "outcome:delivered")).outcome == "delivered"
    assert bench.answered == ["slack:C1:1.0"]
    with pytest.raises(ProgramBroke, match="program_bad_line"):
        await bench.run('say:{"answered": ""}')


async def test_a_flood_of_progress_is_thinned_out_for_people(bench: _Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversation, "_PROGRESS_EVERY_S", PROGRESS_EVERY_S)
    flood = """read start; i=0; while [ $i -lt 500 ]; do echo '{"progress":"p"}'; i=$((i+1)); done"""
    script = flood + """; echo '{"outcome":"no_action"}'"""
    assert await bench.run(command=("sh", "-c", script)) == TurnResult("no_action")
    assert 1 <= len(bench.shown) < 250


@pytest.mark.parametrize(
    ("language", "interpreter", "ends"),
    [
        ("sh", "sh", TurnResult("no_action", "nothing for me")),
        ("python", sys.executable, TurnResult("delivered")),
    ],
)
async def test_the_examples_of_the_documentation_run_as_they_are(
    bench: _Bench, tmp_path: Path, language: str, interpreter: str, ends: TurnResult
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "command-protocol.md").read_text()
    program = tmp_path / "program"
    program.write_text(page.split(f"```{language}\n", 1)[1].split("```", 1)[0])
    assert await bench.run(command=(interpreter, str(program))) == ends
    assert [mail.body for mail in bench.sent] == (["got 2 characters"] if language == "python" else [])
