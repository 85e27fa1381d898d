"""The only place that chooses adapters: one node, from its settings and the company's document.

It decides what answers at each port, in which order the parts come up, and in which they go down. What a node does
with its ports is `crewlet.node`.
"""

import asyncio
import contextlib
import faulthandler
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from importlib import import_module
from pathlib import Path
from typing import Any

import structlog

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.local.signals import LocalSignals
from crewlet.adapters.mcp import McpServers, load_mcp
from crewlet.adapters.nats.cells import NatsCells
from crewlet.adapters.nats.connection import BrokerAddress, Connection
from crewlet.adapters.nats.inventory import Inventory
from crewlet.adapters.nats.mail import NatsMail
from crewlet.adapters.nats.signals import NatsSignals
from crewlet.adapters.process import LocalPrograms, MarkBook
from crewlet.adapters.sqlite.database import Database
from crewlet.adapters.sqlite.history import SqliteHistory
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.collector import calm_collector
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.adapters.system.limits import files_watched, refuse_few_files
from crewlet.adapters.system.logfile import LogFile
from crewlet.adapters.system.logs import FileLog, configure_logs
from crewlet.adapters.system.loopwatch import loop_watched
from crewlet.company.model import Company
from crewlet.kit.listening import ListenFailed, refuse_unusable
from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.unusable import Unusable
from crewlet.node.assembly import Node
from crewlet.node.bundle import NodeConfig, Ports
from crewlet.node.formerstreams import left_behind, note_stream
from crewlet.node.settings import LoggingSettings, Settings
from crewlet.ports.deadletters import DeliveryJournal
from crewlet.ports.deadline import Deadline, NoDeadline
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import History
from crewlet.ports.inhand import Slots
from crewlet.ports.mail import Mail
from crewlet.ports.tools import ToolServerNotStarted
from crewlet.supervisor import runlock
from crewlet.supervisor.notify import Notify
from crewlet.supervisor.page import PAGE_ENV, Page, PageDeadline, PageSlots
from crewlet.supervisor.parent import BROKER_TOKEN_ENV, BROKER_URL_ENV
from crewlet.supervisor.watchdog import Watchdog
from crewlet.turns.runners import minimal_env
from crewlet.turns.runners.llm import refuse_without_extra

_log = structlog.get_logger()


def run_node(settings: Settings, company: Company) -> int:
    """Run one node until it is told to stop, on the calling (main) thread.

    SIGTERM or SIGINT drains it; a second one ends it at once. SIGUSR2 prints every thread's stack to stderr. A node
    whose loops have not turned for a lease TTL ends with exit code 75; see `crewlet.supervisor.watchdog`.

    Returns:
        0 after a drain, 1 when the broker could not be reached in time.

    Raises:
        ConfigRefused: the settings do not fit this machine or broker, or the company needs an extra that is missing.
    """
    _configure_logs(settings.logging, settings.path)
    refuse_few_files()
    if "seats" in settings.node.roles:
        refuse_without_extra(company.seats)
    faulthandler.register(signal.SIGUSR2, all_threads=True)
    _load_what_is_needed(settings, company)
    try:
        with _data_dir_locked(settings.node.data_dir):
            if settings.api.address is not None:
                refuse_unusable(*settings.api.address)
            return _run(_main(settings, company))
    except (Unavailable, ListenFailed) as error:
        sentence = str(error)
        print(f"crewlet node: {sentence}{'' if sentence.endswith('.') else '.'}", file=sys.stderr)
        return 1


def _configure_logs(settings: LoggingSettings, source: Path) -> None:
    file = settings.file
    if file is None:
        configure_logs(level=settings.level, form=settings.format)
        return
    try:
        opened = LogFile(file.path, max_bytes=file.max_size_mb * 1_000_000, max_backups=file.max_backups)
    except OSError as error:
        problem = f"{file.path} cannot be used: {error.strerror}"
        remedy = "write a file that this user may write, in a folder that is there and that it may write to"
        raise ConfigRefused(problem, where=f"{source}: logging.file.path", remedy=remedy) from error
    log = FileLog(opened, file.level, file.format)
    configure_logs(level=settings.level, form=settings.format, stderr=settings.stderr, file=log)


def _load_what_is_needed(settings: Settings, company: Company) -> None:
    """What some nodes do without and is slow to load, before anything runs that could wait for it."""
    if settings.api.address is not None:
        import_module("crewlet.web.app")
    wanting = [seat.handle for seat in company.seats if seat.tool_servers]
    if not wanting or "seats" not in settings.node.roles:
        return
    try:
        load_mcp()
    except ToolServerNotStarted as missing:
        raise ConfigRefused(str(missing), where=f"{settings.company}: the tools of {wanting[0]}") from missing


def _run(main: Coroutine[Any, Any, int]) -> int:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    return uvloop.run(main)


async def _main(settings: Settings, company: Company) -> int:
    stopping = _stop_signals()
    notify = Notify.taken_from_environment()
    entropy = SystemEntropy()
    owner = f"{settings.node.id}:{entropy.token(4)}"
    async with _history(settings) as history, _ports(settings, owner, entropy, stopping, history) as ports:
        if ports is None:
            return 0
        node = Node(_node_config(settings, owner), company, ports)
        if not await _unless_stopped(node.open(), stopping):
            return 0
        try:
            async with _served(node, settings):
                with loop_watched(), files_watched(), _watchdog(node, notify, can_lapse=ports.leases_can_lapse):
                    if await _unless_stopped(node.start(), stopping):
                        calm_collector()
                        notify.ready()
                        await _either(stopping.wait(), node.contested.wait())
                    notify.stopping()
                if not node.contested.is_set:
                    await node.drain()
        finally:
            await node.close()
        if (refusal := node.contested.value) is not None:
            raise refusal
    return 0


def _watchdog(node: Node, notify: Notify, *, can_lapse: bool) -> Watchdog:
    """Armed until the stop begins, which may take as long as it needs. The TTL in force is its limit."""
    beats = node.beats
    return Watchdog(
        beats.worst,
        threshold_s=beats.threshold_s,
        poll_s=beats.beat_s,
        dies_at_thaw=can_lapse,
        on_healthy=notify.alive,
    )


@contextlib.asynccontextmanager
async def _history(settings: Settings) -> AsyncGenerator[History]:
    """The node's own store, written out and closed after everything that tells it something.

    Raises:
        ConfigRefused: it cannot be used.
    """
    database = Database(settings.node.data_dir / "node.db")
    await database.open()
    history = SqliteHistory(database)
    try:
        yield history
    finally:
        await history.close()
        await database.close()


@contextlib.asynccontextmanager
async def _ports(
    settings: Settings, owner: str, entropy: SystemEntropy, stopping: asyncio.Event, history: History
) -> AsyncGenerator[Ports | None]:
    """The bundle, or None when the node was stopped while it waited for the broker."""
    is_local = settings.coordination.type == "local"
    clock = SystemClock(counts_suspend=not is_local)
    programs = LocalPrograms(marks=MarkBook(settings.node.data_dir / "run" / "programs"))
    await programs.end_left()
    opened: list[Connection] = []

    async def connect() -> None:
        opened.append(
            await Connection.open(
                _address(settings, owner),
                clock=clock,
                startup_timeout_s=settings.startup_timeout_s,
                replicas=settings.stream.replicas,
            )
        )

    if not await _unless_stopped(connect(), stopping):
        yield None
        return
    connection = opened[0]
    deadline, slots = _shared_with_parent(owner, clock)
    mails: list[NatsMail] = []

    async def open_mail(ack_window_s: float) -> Mail:
        mail = NatsMail(
            connection,
            clock=clock,
            entropy=entropy,
            ack_window_s=ack_window_s,
            replicas=settings.stream.replicas,
            slots=slots,
        )
        await mail.start()
        mails.append(mail)
        return mail

    async def give_back_left(journal: DeliveryJournal) -> int:
        return sum([await mail.give_back_left(journal) for mail in mails])

    async def close_mail() -> None:
        for mail in mails:
            await mail.stop()

    shared = NatsCells(connection, entropy=entropy)
    own = LocalCells(clock, epochs_file=settings.node.data_dir / "epochs")
    _tell_of_streams(settings)
    signals = LocalSignals() if is_local else NatsSignals(connection)
    try:
        yield Ports(
            lease_cells=own if is_local else shared,
            cells=shared,
            open_mail=open_mail,
            close_mail=close_mail,
            is_linked=lambda: connection.is_connected,
            links=lambda: connection.links,
            is_gone=lambda: connection.is_gone,
            may_meet_other_kind=True,
            programs=programs,
            tool_servers=McpServers(programs),
            signals=signals,
            clock=clock,
            entropy=entropy,
            deadline=deadline,
            leases_can_lapse=not is_local,
            history=history,
            give_back_left=give_back_left if is_local else None,
            find_former=shared.find if is_local else own.open,
            stores=Inventory(connection),
        )
    finally:
        await signals.stop()
        await connection.close()


def _tell_of_streams(settings: Settings) -> None:
    """Warn of mail on another broker, and note this one."""
    for left in left_behind(settings):
        _log.warning("broker_left_behind", reason=left)
    try:
        note_stream(settings)
    except OSError as error:
        _log.warning("broker_not_noted", error=str(error))


def _address(settings: Settings, owner: str) -> BrokerAddress:
    stream = settings.stream
    if stream.type == "nats":
        tls = stream.tls
        return BrokerAddress(
            urls=(stream.url,),
            token=stream.token,
            credentials=stream.credentials,
            tls_ca=tls.ca if tls else None,
            tls_cert=tls.cert if tls else None,
            tls_key=tls.key if tls else None,
            name=owner,
        )
    url = os.environ.get(BROKER_URL_ENV)
    if not url:
        raise ConfigRefused(
            "a bare node runs no broker of its own, and stream.type is embedded",
            where="stream.type",
            remedy="start it with `crewlet up`, or set stream.type to nats and stream.url to a running broker",
        )
    return BrokerAddress(urls=(url,), token=os.environ.get(BROKER_TOKEN_ENV), name=owner)


def _shared_with_parent(owner: str, clock: SystemClock) -> tuple[Deadline, Slots | None]:
    """What the parent process reads of this one, if there is a parent."""
    fd = os.environ.get(PAGE_ENV)
    if not fd:
        return NoDeadline(), None
    page = Page.open(int(fd))
    page.write_owner(owner)
    return PageDeadline(page), PageSlots(page, clock.elapsed)


def _node_config(settings: Settings, owner: str) -> NodeConfig:
    return NodeConfig(
        node_id=settings.node.id,
        owner=owner,
        roles=frozenset(settings.node.roles),
        labels=settings.node.labels,
        max_concurrent=settings.node.max_concurrent,
        lease_ttl_s=settings.coordination.lease_ttl_seconds,
        program_env=minimal_env(os.environ),
        company_dir=str(settings.company.parent),
        removed_seat_grace_s=settings.mail.removed_seat_grace_seconds,
        variable=os.environ.get,
    )


@contextlib.asynccontextmanager
async def _served(node: Node, settings: Settings) -> AsyncGenerator[None]:
    """HTTP, bound before seats are claimed and closed after they are given back."""
    if settings.api.address is None:
        with _node_file(settings, None):
            yield
        return
    # A node without an API loads no web framework.
    from crewlet.web.app import create_app
    from crewlet.web.server import serve

    server = await serve(create_app(node, settings.api), *settings.api.address)
    try:
        with _node_file(settings, server.url):
            _log.info("api_listening", url=server.url)
            yield
    finally:
        await server.stop()
        _log.info("api_stopped")


def _stop_signals() -> asyncio.Event:
    """Set by the first SIGTERM or SIGINT. The second gets the system's own answer: death at once."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()

    numbers = (signal.SIGTERM, signal.SIGINT)

    def on_signal() -> None:
        stopping.set()
        for number in numbers:
            loop.remove_signal_handler(number)
            signal.signal(number, signal.SIG_DFL)

    for number in numbers:
        loop.add_signal_handler(number, on_signal)
    return stopping


async def _either(*waits: Coroutine[Any, Any, object]) -> None:
    """Wait until one of them has ended; the others are cancelled."""
    waiting = [asyncio.ensure_future(each) for each in waits]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for each in waiting:
            each.cancel()


async def _unless_stopped(work: Coroutine[Any, Any, None], stopping: asyncio.Event) -> bool:
    """Do the work, or give it up when the node is told to stop. True when it was done."""
    doing = asyncio.ensure_future(work)
    told = asyncio.ensure_future(stopping.wait())
    try:
        await asyncio.wait({doing, told}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        told.cancel()
        if not doing.done():
            doing.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await doing
    return not doing.cancelled()


@contextlib.contextmanager
def _data_dir_locked(data_dir: Path) -> Generator[None]:
    """One node a data directory: its epochs and its address file have one writer."""
    try:
        lock = runlock.take_in(data_dir, runlock.NODE_LOCK)
    except runlock.Taken as taken:
        raise Unavailable(f"another node{taken.by} runs on the data directory {data_dir}; stop it first") from taken
    except Unusable as unusable:
        sentence = f"node.data_dir {data_dir} cannot be used: {unusable}"
        raise (Unavailable if unusable.may_pass else ConfigRefused)(sentence) from unusable
    try:
        yield
    finally:
        runlock.give_up(lock)


@contextlib.contextmanager
def _node_file(settings: Settings, url: str | None) -> Generator[None]:
    """Tell the command line where this node listens, if it does, readable by this user alone."""
    path = settings.node.data_dir / "run" / "node.json"
    facts: dict[str, object] = {"url": url, "pid": os.getpid(), "node_id": settings.node.id}
    if settings.api.token is not None:
        facts["token"] = settings.api.token
    fresh = path.with_suffix(".new")
    fresh.unlink(missing_ok=True)
    with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(facts, file)
    fresh.replace(path)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
