"""The parent of one node and its broker.

It sleeps until the instant to which the node's leases are good, and ends the node, with everything the node started,
when that instant passes or when the node ends. It starts what ended again, hands a stop on, and takes everything with
it when it goes. One thread, no locks, and nothing in its loop that could block.

Exit codes of `run`: 0 after a drain, 1 for what failed, 75 when the last node of a crash loop was wedged, 78 and 2 as
the node gave them.
"""

import os
import select
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from subprocess import SubprocessError
from types import FrameType

from crewlet.kit.listening import ListenFailed, refuse_unusable
from crewlet.kit.unusable import Unusable
from crewlet.supervisor import runlock
from crewlet.supervisor.aftermath import GivingBack
from crewlet.supervisor.backoff import Backoff
from crewlet.supervisor.broker import Broker, BrokerError, BrokerRefused, StoreInUse
from crewlet.supervisor.giveback import TOKEN_ENV
from crewlet.supervisor.nodeprocess import WEDGED, NodeProcess
from crewlet.supervisor.notify import Notify
from crewlet.supervisor.page import boottime
from crewlet.supervisor.plan import PLAN_ENV, UpPlan
from crewlet.supervisor.proof import Left, Proof, reap_orphans
from crewlet.supervisor.spawn import become_subreaper, spawn
from crewlet.supervisor.storewatch import StoreWatch
from crewlet.supervisor.wake import SignalWaiter

BROKER_URL_ENV = "CREWLET_BROKER_URL"
BROKER_TOKEN_ENV = TOKEN_ENV

FAILED, USAGE, REFUSED = 1, 2, 78
CRASH_LIMIT = 50
"""A node that ended so often in a row, never healthy for a minute, is not started again. Well beyond the 25 deliveries
of a message, so that one which kills its node is dead-lettered before its node is given up."""

_BROKER_START_S = 60.0
_STORE_FREE_S = 2.0
_GIVE_BACK_S = 5.0
_LONGEST_SLEEP_S = 0.5


def main(argv: Sequence[str], *, planner: Sequence[str] = ("-P", "-m", "crewlet.cli", "up-plan")) -> int:
    """Have `crewlet up-plan` check the command and write a plan, in a process of its own; then run the plan.

    That process loads what this one must not. Its output and, when it wrote no plan, its exit code are the command's. A
    SIGTERM meanwhile ends both: process 1 of a container, which has no default for it, would go on and start.

    Args:
        argv: the arguments after `up`.
        planner: what the interpreter is told to run as the planning process, before `argv`.
    """
    before = signal.signal(signal.SIGTERM, _stop)
    try:
        code, text = _planned(argv, planner)
    except _Stopped:
        return 0  # nothing was begun
    except KeyboardInterrupt:
        return 128 + signal.SIGINT
    finally:
        signal.signal(signal.SIGTERM, before)
    if code != 0:
        return code if code > 0 else 128 - code
    return run(UpPlan.from_json(text)) if text else 0


class _Stopped(Exception):
    """A SIGTERM came while there was no plan yet."""


def _stop(_number: int, _frame: FrameType | None) -> None:
    raise _Stopped


def _planned(argv: Sequence[str], planner: Sequence[str]) -> tuple[int, str]:
    """The planning process's exit code and what it wrote. It does not outlive this call."""
    read_end, write_end = os.pipe()
    with open(read_end, "rb") as pipe:
        planning = spawn(
            [sys.executable, *planner, *argv],
            env={**os.environ, PLAN_ENV: str(write_end)},
            pass_fds=(write_end,),
        )
        os.close(write_end)
        try:
            text = pipe.read().decode()
            return planning.wait(), text
        except (_Stopped, KeyboardInterrupt):
            planning.kill()
            planning.wait()
            raise


def run(plan: UpPlan) -> int:
    """Run broker and node until a stop or a failure that repeating cannot mend. Call it in the main thread.

    The first SIGTERM, SIGINT or SIGHUP has the node drain, for as long as that takes; a second one ends everything.
    SIGUSR2 goes on to the node, which prints its stacks.

    Returns:
        The exit code of the command, as the module says.
    """
    try:
        lock = _lock(plan)
    except _Failed as failure:
        say(str(failure))
        return failure.code
    try:
        with SignalWaiter() as signals:
            if plan.api is not None:
                refuse_unusable(*plan.api)
            return _Parent(plan, signals, Notify.taken_from_environment()).run()
    except ListenFailed as failure:
        say(str(failure))
        return FAILED
    finally:
        runlock.give_up(lock)


def say(line: str) -> None:
    """Print a line for people on the raw standard error; drop it rather than wait for a reader."""
    with suppress(OSError, ValueError):
        if select.select([], [2], [], 0)[1]:
            os.write(2, f"crewlet up: {line}\n".encode()[: select.PIPE_BUF])


class _Failed(Exception):
    """What ends the command; the text is one sentence."""

    def __init__(self, sentence: str, code: int = FAILED) -> None:
        super().__init__(sentence)
        self.code = code


class _Parent:
    """The state of the loop. Instants are readings of `boottime`."""

    def __init__(self, plan: UpPlan, signals: SignalWaiter, notify: Notify) -> None:
        self._plan = plan
        self._signals = signals
        self._notify = notify
        self._broker: Broker | None = None
        self._broker_since = 0.0
        self._broker_due: float | None = None
        self._broker_backoff = Backoff()
        self._store = StoreWatch(say)
        self._node: NodeProcess | None = None
        self._node_due: float | None = None
        self._is_told_up = False
        self._node_backoff = Backoff()
        self._giving_back: list[GivingBack] = []
        self._has_run = False
        self._given_up: set[int] = set()
        self._exit_code: int | None = None
        self._is_draining = False
        ttl_s = plan.lease_ttl_s
        self._longest_sleep_s = _LONGEST_SLEEP_S if ttl_s is None else min(_LONGEST_SLEEP_S, ttl_s / 10)

    def run(self) -> int:
        if not become_subreaper():
            say("this system cannot prove a process tree dead; programs that left their group may outlive the node.")
        try:
            self._start_broker()
            self._node_due = boottime()
            while self._exit_code is None:
                self._turn()
                if self._exit_code is None:
                    self._signals.sleep(self._sleep_s())
        except _Failed as failure:
            say(str(failure))
            return failure.code if self._exit_code is None else self._exit_code
        finally:
            self._end_everything()
        return self._exit_code

    def _turn(self) -> None:
        """Look at everything once, the deadline first."""
        self._watch_node()
        self._watch_stops()
        self._pass_on_stacks()
        self._watch_broker()
        self._giving_back = [helper for helper in self._giving_back if not helper.has_ended()]
        self._given_up -= reap_orphans(self._children())
        if self._exit_code is None and self._node_due is not None and boottime() >= self._node_due:
            self._start_node()
        if self._node is not None and self._node.is_up():
            self._notify.ready()
            if not self._is_told_up:
                self._is_told_up = True
                say("node is up; `crewlet status` shows how it is.")
        self._notify.alive()

    def _sleep_s(self) -> float:
        dues = [due for due in (self._node_due, self._broker_due) if due is not None]
        if self._node is not None and (deadline := self._node.next_instant()) is not None:
            dues.append(deadline)
        return min([self._longest_sleep_s, *(due - boottime() for due in dues)])

    def _start_broker(self) -> None:
        if self._plan.broker is None:
            return
        until = boottime() + _BROKER_START_S
        try:
            broker = self._broker = self._launch_broker()
            while not broker.is_listening():
                if self._signals.stops:
                    return
                if boottime() >= until:
                    raise _Failed(f"the broker did not listen within {_BROKER_START_S:g} s; see {broker.log_path}.")
                self._signals.sleep(0.01)
        except BrokerRefused as refusal:
            raise _Failed(str(refusal), REFUSED) from refusal
        except BrokerError as error:
            raise _Failed(str(error)) from error
        self._broker_since = boottime()
        say(f"broker {broker.plan.name} listens on {broker.url} (process {broker.pid}).")

    def _launch_broker(self) -> Broker:
        """The last owner's broker may need a moment more to die."""
        assert self._plan.broker is not None
        until = boottime() + _STORE_FREE_S
        while True:
            try:
                return Broker.launch(self._plan.broker)
            except StoreInUse:
                if boottime() >= until or self._signals.stops:
                    raise
            self._signals.sleep(0.05)

    def _watch_broker(self) -> None:
        broker = self._broker
        if broker is None:
            return
        if self._broker_due is None:
            code = broker.exit_code()
            if code is None:
                self._store.turn(broker)
                return
            self._store.forget()
            pause_s = self._broker_backoff.after(boottime() - self._broker_since)
            self._broker_due = boottime() + pause_s
            say(f"broker {broker.plan.name} ended with {_how(code)}; starting it again in {pause_s:g} s.")
            if code > 0:
                say(str(broker.failure()))
        if boottime() < self._broker_due:
            return
        self._broker_due, self._broker_since = None, boottime()
        try:
            broker.relaunch()
        except BrokerError as error:
            pause_s = self._broker_backoff.after(0.0)
            self._broker_due = boottime() + pause_s
            say(f"{error} Trying again in {pause_s:g} s.")

    def _start_node(self) -> None:
        env = {**os.environ, **self._plan.node_env}
        if self._broker is not None:
            env[BROKER_URL_ENV] = self._broker.url
            if self._broker.plan.token is not None:
                env[BROKER_TOKEN_ENV] = self._broker.plan.token
        self._node_due, self._is_told_up = None, False
        try:
            self._node = NodeProcess(self._plan.node_argv, env)
        except (OSError, SubprocessError) as error:
            raise _Failed(f"the node cannot be started: {error}.") from error
        say(f"node started (process {self._node.pid}).")

    def _watch_node(self) -> None:
        node = self._node
        if node is None:
            return
        if not node.has_ended():
            if not node.is_past_deadline():
                node.ask_for_stacks_when_stale()
                return
            node.kill(as_wedged=True)
        proof = node.end(self._spared(), self._given_up)
        self._node = None
        if node.was_wedged:
            say(f"watchdog: node {node.pid} did not renew its leases in time and was killed (exit code {WEDGED}).")
        self._given_up -= proof.reaped.keys()
        self._alarm(proof.left)
        self._give_back(node, proof)
        node.close()
        self._node_ended(node)

    def _give_back(self, node: NodeProcess, proof: Proof) -> None:
        """Have what the node had go back now. It gave back all of it itself if it ended well, or never had anything."""
        if node.exit_code == 0 or not node.page.read_owner():
            return
        if not proof.is_proven:
            say(f"nothing of node {node.pid} is given back: it is not proven that all it started has ended.")
            return
        if self._broker is None:
            say(f"nothing of node {node.pid} is given back: only a broker beside it shows its connection closed.")
            return
        try:
            self._giving_back.append(GivingBack(node.page, self._broker))
        except (OSError, SubprocessError) as error:
            say(f"nothing of node {node.pid} is given back: {error}.")

    def _node_ended(self, node: NodeProcess) -> None:
        code = node.exit_code
        if self._is_draining:
            self._exit_code = 0 if code in (0, -signal.SIGTERM) else (WEDGED if code == WEDGED else FAILED)
            say("node drained." if self._exit_code == 0 else f"node ended with {_how(code)} while it drained.")
            return
        if code in (USAGE, REFUSED):
            self._exit_code = code
            say(f"node ended with {_how(code)}: its configuration was refused, so it is not started again.")
            return
        self._has_run |= node.had_started
        if code == FAILED and not self._has_run:
            # It has said why. What never had its broker does not come up by being started again; one that had it may,
            # and in a cluster the other members need the broker that would end with this process.
            self._exit_code = FAILED
            return
        pause_s = self._node_backoff.after(boottime() - node.started_at)
        if self._node_backoff.ends >= CRASH_LIMIT:
            self._exit_code = WEDGED if code == WEDGED else FAILED
            say(f"node ended with {_how(code)}, {CRASH_LIMIT} times in a row; giving up.")
            return
        self._node_due = boottime() + pause_s
        say(f"node ended with {_how(code)}; starting it again in {pause_s:g} s.")

    def _pass_on_stacks(self) -> None:
        if self._signals.wants_stacks:
            self._signals.wants_stacks = False
            if self._node is not None:
                self._node.ask_for_stacks()

    def _watch_stops(self) -> None:
        stops = self._signals.stops
        if not stops or self._exit_code is not None:
            return
        self._notify.stopping()
        if len(stops) > 1:
            say("stopped again: ending everything at once.")
            self._exit_code = FAILED
        elif self._node is None:
            self._exit_code = 0
        elif not self._is_draining:
            self._is_draining = True
            say("stopping: the node drains; a second signal ends it at once.")
            self._node.terminate()

    def _end_everything(self) -> None:
        """Whatever way the loop was left, nothing outlives it."""
        if self._node is not None:
            self._node.kill()
            self._alarm(self._node.end(self._spared(), self._given_up).left)
            self._node.close()
            self._node = None
        is_hurried = len(self._signals.stops) > 1
        for helper in self._giving_back:
            helper.wait(0.0 if is_hurried else _GIVE_BACK_S)
        if self._broker is not None:
            self._broker.stop(timeout_s=1.0 if is_hurried else 10.0)

    def _alarm(self, left: Sequence[Left]) -> None:
        for process in left:
            self._given_up.add(process.pid)
            say(f"ALARM: process {process} of the node does not end; it may still act.")

    def _spared(self) -> set[int]:
        """The broker and helpers while they run; afterwards their numbers may be anybody's."""
        broker = self._broker
        helpers = {helper.pid for helper in self._giving_back if not helper.has_ended()}
        if broker is None or broker.pid is None or broker.exit_code() is not None:
            return helpers
        return {broker.pid, *helpers}

    def _children(self) -> set[int]:
        return self._spared() if self._node is None else {*self._spared(), self._node.pid}


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _lock(plan: UpPlan) -> int:
    try:
        return runlock.take_in(plan.data_dir, runlock.UP_LOCK)
    except runlock.Taken as taken:
        raise _Failed(f"another `crewlet up`{taken.by} already runs on the data directory {plan.data_dir}.") from taken
    except Unusable as unusable:
        code = FAILED if unusable.may_pass else REFUSED
        raise _Failed(f"node.data_dir {plan.data_dir} cannot be used: {unusable}.", code) from unusable
