"""`crewlet demo`: play it, judge it, say what came out, and leave nothing behind."""

import asyncio
import contextlib
import json
import secrets
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator
from importlib.resources import as_file, files
from pathlib import Path
from types import FrameType
from typing import TextIO

from crewlet.adapters.system.logs import configure_logs
from crewlet.supervisor.spawn import become_subreaper
from crewlet.testing.demo import DemoOptions
from crewlet.testing.demo.documents import NoDocuments, find_documents
from crewlet.testing.demo.fleet import Fleet, prepare
from crewlet.testing.demo.judge import Evidence, Verdict, judge
from crewlet.testing.demo.progress import Progress, make_progress
from crewlet.testing.demo.stage import Stage

INTERRUPTED = 130
MOST_PROBLEMS_SHOWN = 20
_STOPS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def demonstrate(options: DemoOptions) -> int:
    """See `crewlet.testing.demo.run`."""
    stream = sys.stderr if options.json else sys.stdout
    configure_logs(level="error", form="console")  # its own client of the broker has nothing to tell a watcher
    become_subreaper()
    with as_file(files("crewlet.examples") / "docs_desk") as example:
        try:
            library = find_documents(options.docs, example)
        except NoDocuments as error:
            print(f"crewlet demo: {error}", file=sys.stderr)
            return 1
        root = Path(tempfile.mkdtemp(prefix="crewlet-demo-"))
        fleet = prepare(root, example, library.root)
        progress = make_progress(stream)
        seed = secrets.randbelow(1000) if options.seed is None else options.seed
        progress.say(f"seed {seed} chooses which node meets which fault")
        with _stops_as_interrupt():
            evidence = _play(Stage(fleet, library, progress, seed), fleet, progress)
    if evidence is None:
        print("crewlet demo: interrupted; every process it started was ended", file=sys.stderr)
        shutil.rmtree(root, ignore_errors=True)
        return INTERRUPTED
    verdict = judge(evidence)
    _tell(verdict, stream)
    if options.keep or not verdict.ok:
        print(f"Logs, evidence and reports are in {root}", file=stream)
    else:
        shutil.rmtree(root, ignore_errors=True)
    if options.json:
        print(json.dumps(verdict.as_json()), flush=True)
    return 0 if verdict.ok else 1


def _play(stage: Stage, fleet: Fleet, progress: Progress) -> Evidence | None:
    """The evidence, or None when it was interrupted. In any case no process is left."""
    try:
        return asyncio.run(stage.play())
    except KeyboardInterrupt:
        return None
    finally:
        for number in _STOPS:
            signal.signal(number, signal.SIG_IGN)
        progress.close()
        for process in fleet.end():
            print(f"crewlet demo: process {process.pid} does not end", file=sys.stderr)


@contextlib.contextmanager
def _stops_as_interrupt() -> Generator[None]:
    """A closed terminal and a SIGTERM end the demonstration as Ctrl+C does."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        signal.raise_signal(signal.SIGINT)

    before = {number: signal.getsignal(number) for number in _STOPS}
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(verdict: Verdict, stream: TextIO) -> None:
    """The verdict in words."""
    took = {kind: "?" if s is None else f"{s:.1f} s" for kind, s in verdict.takeover_s.items()}
    lines = [
        f"{verdict.nodes} nodes, {verdict.seats} seats, {verdict.elapsed_s:g} s",
        f"{verdict.sent} messages sent, {verdict.finished} finished, {verdict.lost} lost",
        f"{verdict.ran_twice} ran again after they were finished; "
        f"{len(verdict.rerun_after_cut)} were cut short by a fault and rightly ran again",
        f"at most {verdict.owners_at_once_max} owner of a seat at once; "
        f"{verdict.stale_epoch_writes} writes at a stale epoch",
        f"the last seat ran again {took['killed']} after a node was killed whose parent lives, "
        f"{took['parent_killed']} after one was killed with its parent,",
        f"and {took['frozen']} after the freeze, with leases of {verdict.lease_ttl_s:g} s and the wait for mail in it; "
        f"broker restarts: {verdict.broker_restarts}",
    ]
    print("", *lines, sep="\n", file=stream)
    for problem in verdict.problems[:MOST_PROBLEMS_SHOWN]:
        print(f"WRONG: {problem}", file=stream)
    if len(verdict.problems) > MOST_PROBLEMS_SHOWN:
        print(f"WRONG: and {len(verdict.problems) - MOST_PROBLEMS_SHOWN} more", file=stream)
    print("Proven." if verdict.ok else "Not proven.", file=stream, flush=True)
