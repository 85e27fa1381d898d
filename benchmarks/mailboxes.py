# pyright: basic
"""Making the mailboxes of a thousand seats, beside the bare client's requests for as many durables, all sent at once.

A mailbox is three durables. Both sides begin with an empty stream each round; ours also asks what is there already, as
a node does at every start.
"""

import asyncio
import json
import statistics
import time
from typing import Any

import nats
from nats.aio.client import Client

from benchmarks.rawclient import inbox
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.mail import topics
from crewlet.mail.mailboxes import Mailboxes

SEATS = 1000
ROUNDS = 3
_HANDLES = [f"ensured-{number}" for number in range(SEATS)]
_MAILBOXES = [subscription for handle in _HANDLES for subscription in topics.mailbox(handle)]


async def measure(url: str) -> dict[str, Any]:
    """`ensure_ratio`: of times, the median of interleaved rounds."""
    clock = SystemClock()
    connection = await Connection.open(BrokerAddress(urls=(url,), name="bench:2"), clock=clock, startup_timeout_s=30)
    client = await nats.connect(url)
    ours_s: list[float] = []
    raw_s: list[float] = []
    for _ in range(ROUNDS):
        raw_s.append(await _create(client))
        ours_s.append(await _ensure(connection, clock))
        await _delete(client, "CREWLET_AGENT")
    await client.close()
    await connection.close()
    return {
        "ensure_ratio": round(statistics.median(a / b for a, b in zip(ours_s, raw_s, strict=True)), 3),
        "ensure_s": round(statistics.median(ours_s), 3),
        "create_s": round(statistics.median(raw_s), 3),
    }


async def _ensure(connection: Connection, clock: SystemClock) -> float:
    mail = NatsMail(connection, clock=clock, entropy=SystemEntropy(), ack_window_s=45.0)
    await mail.start()
    begun = time.perf_counter()
    made = await Mailboxes(mail, clock, alarm_after_s=45.0).ensure(_HANDLES)
    took_s = time.perf_counter() - begun
    if made != len(_MAILBOXES):
        raise RuntimeError(f"{made} of {len(_MAILBOXES)} subscriptions were made")
    return took_s


async def _create(client: Client) -> float:
    js = client.jetstream()
    await js.add_stream(name="RAWBOXES", subjects=["rawboxes.>"], retention="interest", max_consumers=100_000)
    bodies: list[tuple[str, bytes]] = []
    for number, subscription in enumerate(_MAILBOXES):
        name, subject = subscription.group, f"rawboxes.{number}"
        config = inbox(name, subject).as_dict()
        body = json.dumps({"stream_name": "RAWBOXES", "action": "create", "config": config}).encode()
        bodies.append((f"$JS.API.CONSUMER.CREATE.RAWBOXES.{name}.{subject}", body))
    begun = time.perf_counter()
    answers = await asyncio.gather(*(client.request(subject, body, timeout=120) for subject, body in bodies))
    took_s = time.perf_counter() - begun
    if any(b'"error"' in answer.data for answer in answers):
        raise RuntimeError("a durable was not made")
    await _delete(client, "RAWBOXES")
    return took_s


async def _delete(client: Client, stream: str) -> None:
    await client.request(f"$JS.API.STREAM.DELETE.{stream}", b"", timeout=120)
