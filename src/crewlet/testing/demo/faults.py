"""The harm: a node killed, a node frozen past its lease, one killed with its parent, a broker member restarted."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from crewlet.supervisor.page import boottime
from crewlet.testing.demo import processes
from crewlet.testing.demo.fleet import DemoFailed, DemoNode
from crewlet.testing.demo.judge import Fault

POLL_S = 0.1
MEET_A_RUN_S = 6.0
LOOK_EVERY_S = 0.02
BROKER_BACK_S = 30.0
SAYS_S = 5.0


async def kill(node: DemoNode, is_at_work: Callable[[], bool]) -> Fault:
    """SIGKILL a node in the middle of a run. Its parent and its broker stay."""
    process = await _meet(node, is_at_work)
    at = boottime()
    os.kill(process.pid, signal.SIGKILL)
    return Fault("killed", node.id, at, at)


async def kill_parent(node: DemoNode, is_at_work: Callable[[], bool], start_again: Callable[[], None]) -> Fault:
    """SIGKILL a node's parent in the middle of a run, as when a machine is lost: node, programs and broker member go
    with it, and nobody gives anything back. It is started again once they are seen to be gone.

    Raises:
        DemoFailed: they do not go, or the broker member is not back.
    """
    process, member = await _meet(node, is_at_work), node.broker
    up = node.up
    if up is None or member is None:
        raise DemoFailed(f"node {node.id} does not run: {node.last_words()}")
    at = boottime()
    node.up = None  # its end is meant
    up.kill()
    up.wait()
    while processes.live([process, member]):
        if boottime() > at + BROKER_BACK_S:
            raise DemoFailed(f"node {node.id} or its broker outlived its parent")
        await asyncio.sleep(POLL_S)
    start_again()
    while not _answers(node.broker_port):
        if boottime() > at + BROKER_BACK_S:
            raise DemoFailed(f"the broker member beside node {node.id} was not back after {BROKER_BACK_S:g} s")
        await asyncio.sleep(POLL_S)
    return Fault("parent_killed", node.id, at, boottime())


@dataclass(frozen=True, slots=True)
class Frozen:
    """A node that stands still since `at`, with its programs: all of `processes`."""

    node: DemoNode
    at: float
    processes: list[psutil.Process]


async def freeze(node: DemoNode, is_at_work: Callable[[], bool]) -> Frozen:
    """SIGSTOP a node in the middle of a run, and its programs, not its parent."""
    process = await _meet(node, is_at_work)
    at = boottime()
    return Frozen(node, at, processes.stop_tree(process))


async def outlast(frozen: Frozen, *, for_s: float, say: Callable[[str], None]) -> Fault:
    """Wait until its parent has ended what stands still, or SIGCONT what is left of it after so long."""
    node, count = frozen.node, len(frozen.processes)
    try:
        while (left := processes.live(frozen.processes)) and boottime() < frozen.at + for_s:
            await asyncio.sleep(POLL_S)
    finally:
        processes.send(processes.live(frozen.processes), signal.SIGCONT)
    until = boottime()
    if left:
        say(f"{node.id} thawed after {until - frozen.at:.1f} s: {len(left)} of {count} processes were left to thaw")
    else:
        while (why := node.said(f"watchdog: node {frozen.processes[0].pid} ")) is None and boottime() < until + SAYS_S:
            await asyncio.sleep(POLL_S)
        say(
            f"{until - frozen.at:.1f} s into the freeze {node.id} is gone with its programs: {count} processes,"
            f" none of which can wake up beside the next owner of its seats"
        )
        say(f"its parent says: {why or 'nothing of it'}")
    return Fault("frozen", node.id, frozen.at, until)


async def restart_broker(node: DemoNode) -> Fault:
    """SIGTERM a broker member, and wait until another process answers in its place.

    Raises:
        DemoFailed: there is none, or none came.
    """
    member = node.broker
    if member is None:
        raise DemoFailed(f"there is no broker process beside node {node.id}")
    at = boottime()
    member.terminate()
    while boottime() < at + BROKER_BACK_S:
        await asyncio.sleep(POLL_S)
        fresh = node.broker
        if fresh is not None and fresh != member and _answers(node.broker_port):
            return Fault("broker", node.id, at, boottime())
    raise DemoFailed(f"the broker member beside node {node.id} was not back {BROKER_BACK_S:g} s after its SIGTERM")


async def _meet(node: DemoNode, is_at_work: Callable[[], bool]) -> psutil.Process:
    """The node's process, in the middle of a run if one comes along soon.

    Raises:
        DemoFailed: the node does not run.
    """
    process = node.process
    if process is None:
        raise DemoFailed(f"node {node.id} does not run: {node.last_words()}")
    until = boottime() + MEET_A_RUN_S
    while not is_at_work() and boottime() < until:
        await asyncio.sleep(LOOK_EVERY_S)
    return process


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=0.5):
            return True
    except OSError:
        return False
