"""What a turn of an `llm` seat costs beside its model, and whether many at once disturb a node's heartbeats."""

import asyncio
import json
import math
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from pydantic_ai.messages import ModelRequest
from pydantic_ai.models import ModelRequestParameters

from benchmarks.worlds import World
from crewlet.company.model import Company, LlmModel, LlmRunner, Seat
from crewlet.mail.envelope import Envelope
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.outbox import Outbox
from crewlet.ports.mail import Ack, Delivery
from crewlet.ports.term import Term
from crewlet.seats.fence import SeatFence
from crewlet.testing.brokers import one_server
from crewlet.turns.dispatch import SeatDispatch
from crewlet.turns.runners.llm import LlmTurns
from crewlet.turns.runners.llm.models import candidate
from crewlet.turns.slots import Slots

TURNS = 100
SEATS = 200
_TTL_S = 15
_THINKS_S = 4.0
_ROUNDS = 3
"""So long that more than two heartbeats fall into the turns of all seats together."""
_BOUND_S = 180.0


async def measure() -> dict[str, Any]:
    """`turn_overhead_ms`: a turn whose model just answers, from its mail to the ledger's answer, over the bare call of
    that model, in turn with it (`_cpu_`: of this process's own time); `late_heartbeats`: how often a seat's admission
    went stale on a node that runs a turn of each of 200 seats at once, `turns_at_once` of them.
    """
    return {**await _overhead(), **await asyncio.to_thread(_crowd)}


async def _overhead() -> dict[str, Any]:
    async with World.open("r1") as world:
        with _model_server({"bench": [{"text": "done"}]}) as url:
            dispatch = await _dispatch(world, url)
            bare = candidate(LlmModel("openai:bench", url), lambda _: None).model
            prompt = [ModelRequest.user_text_prompt("[]", instructions="You are the agent of the seat `bench`.")]
            calls: list[tuple[float, float]] = []
            turns: list[tuple[float, float]] = []
            for number in range(TURNS + 5):
                began = _clocks()
                async with bare.request_stream(list(prompt), None, ModelRequestParameters()) as stream:
                    async for _ in stream:
                        pass
                called = _clocks()
                answer = await dispatch((_mail(number),))
                settled = await answer.outcome if not isinstance(answer, Ack) else answer  # pyright: ignore
                if not isinstance(settled, Ack):
                    raise RuntimeError(f"the turn did not end well: {settled}")
                ended = _clocks()
                calls.append((called[0] - began[0], called[1] - began[1]))
                turns.append((ended[0] - called[0], ended[1] - called[1]))
    (call_ms, call_cpu), (turn_ms, turn_cpu) = (
        tuple(1000 * statistics.median(column) for column in zip(*each[5:], strict=True)) for each in (calls, turns)
    )
    return {
        "turn_overhead_ms": round(turn_ms - call_ms, 2),
        "turn_overhead_cpu_ms": round(turn_cpu - call_cpu, 2),
        "bare_model_call_ms": round(call_ms, 2),
        "turn_overhead_ratio": round(turn_ms / call_ms, 2),
    }


def _clocks() -> tuple[float, float]:
    """The wall's and this process's own: a busy machine stretches only the first."""
    return time.perf_counter(), time.process_time()


async def _dispatch(world: World, url: str) -> SeatDispatch:
    seat = Seat("bench", runner=LlmRunner(LlmModel("openai:bench", url)))
    company = Company("bench", (seat,))
    fence = SeatFence(Term("seat:bench", "bench:1", 1), world.clock, math.inf)
    return SeatDispatch(
        seat,
        may_start=lambda _: 1,
        note_deferral=lambda _: None,
        fence=lambda _: fence,
        holds=lambda _: (),
        ledger=Ledger(await world.cells(LEDGER_BUCKET.name)),
        outbox=Outbox(_no_mail(), lambda: company, world.clock, "bench"),
        runner=LlmTurns(seat, clock=world.clock, entropy=world.entropy, variable=lambda _: None),
        slots=Slots(),
        clock=world.clock,
        entropy=world.entropy,
    )


def _no_mail() -> Any:
    return None  # the turns of this benchmark send nothing


def _mail(number: int) -> Delivery:
    event = Envelope(
        id=f"m{number}",
        type="external_notification",
        timestamp="2030-01-01T00:00:00Z",
        source="person",
        to="bench",
        body="Nothing to do.",
    )
    return Delivery(event.id, msgspec.json.encode(event), number + 1, 1, 24, datetime(2030, 1, 1, tzinfo=UTC))


def _crowd() -> dict[str, Any]:
    """One real node, a real broker, and a model that thinks, in processes of their own."""
    handles = [f"s{number:03}" for number in range(SEATS)]
    thinks: list[dict[str, Any]] = [
        {"tool": "note", "arguments": {"text": f"round {number}"}, "after_s": _THINKS_S}
        for number in range(_ROUNDS - 1)
    ]
    script = {handle: [*thinks, {"text": "done", "after_s": _THINKS_S}] for handle in handles}
    with (
        tempfile.TemporaryDirectory() as name,
        one_server(Path(name) / "broker") as broker,
        _model_server(script) as url,
    ):
        folder = Path(name)
        runner = f"{{type: llm, model: 'openai:bench', base_url: '{url}'}}"
        roles = "".join(f"  - {{handle: {handle}, runner: {runner}}}\n" for handle in handles)
        (folder / "company.yaml").write_text(f"name: Crowd\nroles:\n{roles}")
        (folder / "crewlet.yaml").write_text(
            f"node: {{id: bench, max_concurrent: {SEATS}}}\n"
            f"coordination: {{type: embedded-kv, lease_ttl_seconds: {_TTL_S}}}\n"
            f"stream: {{type: nats, url: '{broker.url}'}}\n"
        )
        log = folder / "node.log"
        with open(log, "wb") as out:
            command = [sys.executable, "-m", "benchmarks.heldnode", str(folder / "crewlet.yaml")]
            node = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            at_once = _run_crowd(folder / ".crewlet" / "run" / "node.json", handles)
        finally:
            node.terminate()
            node.wait(60)
        said = log.read_text(errors="replace")
    finished = said.count("turn_finished")
    if finished < 2 * SEATS:
        raise RuntimeError(f"{finished} of {2 * SEATS} turns finished")
    return {"late_heartbeats": said.count("seat_admission_stale"), "turns_at_once": at_once}


def _run_crowd(address: Path, handles: list[str]) -> int:
    """Send each seat two mails, so that admission is asked at both ends of the first turn. The most turns at once."""
    give_up_at = time.monotonic() + _BOUND_S
    while not address.exists() or len(_health(address)["seats"]) < len(handles):
        _wait(give_up_at)
    for subject in ("one", "two"):
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(_send, address, subject), handles))
    at_once = 0
    while (in_flight := _health(address)["in_flight"]) or not at_once:
        at_once = max(at_once, in_flight)
        _wait(give_up_at)
    return at_once


def _wait(give_up_at: float) -> None:
    if time.monotonic() > give_up_at:
        raise TimeoutError("the crowd took too long")
    time.sleep(0.2)


def _health(address: Path) -> dict[str, Any]:
    with urllib.request.urlopen(f"{json.loads(address.read_text())['url']}/health", timeout=30) as answer:
        return json.load(answer)


def _send(address: Path, subject: str, handle: str) -> None:
    request = urllib.request.Request(
        f"{json.loads(address.read_text())['url']}/seats/{handle}/mail",
        data=json.dumps({"body": "Nothing to do.", "subject": subject, "conversation": subject}).encode(),
        headers={"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        answer.read()


@contextmanager
def _model_server(script: dict[str, list[dict[str, Any]]]) -> Generator[str]:
    """The scripted server in a process of its own; its address."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "script.json"
        path.write_text(json.dumps(script))
        command = [sys.executable, "-m", "crewlet.testing.modelserver", str(path)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            yield server.stdout.readline().strip()
        finally:
            server.terminate()
            server.wait(20)
