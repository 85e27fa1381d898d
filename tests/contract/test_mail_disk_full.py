"""A real broker that has no room left: at its own limit, and on a disk that is full."""

import asyncio
import math
import subprocess
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
from mail_worlds import nats_world

from crewlet.adapters.nats import publishing
from crewlet.mail import topics
from crewlet.ports.errors import Unavailable
from crewlet.ports.mail import Mail, StoreFull
from crewlet.supervisor.broker import find_server
from crewlet.supervisor.brokerplan import BrokerPlan
from crewlet.testing.brokers import one_server
from crewlet.testing.contracts.mailworld import Desk, until, until_backlog

pytestmark = pytest.mark.real

INBOX = topics.inbox("alice")
LETTER = b"x" * 200_000


async def _fill(mail: Mail) -> tuple[list[str], str, Unavailable]:
    """Send until a mail is not taken: those that were, that one, and what its sender was told."""
    taken: list[str] = []
    for number in range(1000):
        try:
            await mail.publish(INBOX.topic, LETTER, message_id=f"e{number}")
        except Unavailable as error:
            return taken, f"e{number}", error
        taken.append(f"e{number}")
    raise AssertionError("the store never filled up")


async def test_a_broker_at_its_limit_refuses_in_words_and_takes_mail_again_once_there_is_room(tmp_path: Path) -> None:
    with one_server(tmp_path, plan=BrokerPlan(max_store=3_000_000)) as server:
        async with nats_world(server.urls) as world:
            mail = await world.client()
            await mail.ensure_subscription(INBOX)
            taken, refused, error = await _fill(mail)
            assert isinstance(error, StoreFull)
            assert "no room" in str(error)
            desk = Desk()
            await mail.attach(INBOX, desk, good_until=math.inf)
            await until(world, lambda: desk.ids == taken)
            await until_backlog(world, mail, INBOX, lambda backlog: (backlog.waiting, backlog.in_hand) == (0, 0))
            # Worked mail makes the room; the refusal has not burnt the id.
            assert not (await mail.publish(INBOX.topic, LETTER, message_id=refused)).is_duplicate
            await until(world, lambda: desk.ids == [*taken, refused])


@contextmanager
def _small_disk(path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Path]:
    """A disk of 12 MB under the broker's store, in a namespace of its own; the folder through which tests see it."""
    mounted = path / "broker" / "jetstream"
    mounted.mkdir(parents=True)
    mount = f"mount -t tmpfs -o size=12m tmpfs {mounted} && echo ready && exec sleep 300"
    try:
        keeper = subprocess.Popen(["unshare", "-rm", "sh", "-c", mount], stdout=subprocess.PIPE)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    try:
        assert keeper.stdout is not None
        if keeper.stdout.readline() != b"ready\n":
            pytest.skip("no file system may be mounted here")
        inside = path / "nats-server"
        enter = f"nsenter -t {keeper.pid} -U -m --preserve-credentials"
        inside.write_text(f'#!/bin/sh\nexec {enter} {find_server()} "$@"\n')
        inside.chmod(0o755)
        monkeypatch.setenv("CREWLET_NATS_SERVER", str(inside))
        yield Path(f"/proc/{keeper.pid}/root{mounted}")
    finally:
        keeper.kill()
        keeper.wait()


async def test_a_full_disk_loses_no_mail_that_was_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishing, "PUBLISH_BUDGET_S", 1.0)
    with _small_disk(tmp_path, monkeypatch) as disk, one_server(tmp_path) as server:
        async with nats_world(server.urls) as world:
            mail = await world.client()
            await mail.ensure_subscription(INBOX)
            filler = disk / "filler"
            filler.write_bytes(b"x" * 9_500_000)
            taken, undecided, error = await _fill(mail)
            assert taken
            assert "its disk is full" in str(error)
            filler.unlink()
            # A server that has met a full disk stores nothing more until it is started again.
            await asyncio.to_thread(server.restart)
            await until(world, lambda: world.connections[0].is_connected)
            await mail.publish(INBOX.topic, b"x", message_id=undecided)
            desk = Desk()
            await mail.attach(INBOX, desk, good_until=math.inf)
            await until(world, lambda: desk.ids[-1:] == [undecided])
            assert desk.ids == [*taken, undecided]
