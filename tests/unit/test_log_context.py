"""The names in the log lines of one context."""

import asyncio

import structlog

from crewlet.kit import logcontext


async def test_a_context_names_its_own_lines_and_what_it_starts_and_nobody_elses() -> None:
    with structlog.testing.capture_logs(processors=[logcontext.merge]) as logs:
        log = structlog.get_logger()

        async def child(name: str) -> None:
            with logcontext.bound({"turn_id": name}):
                await asyncio.sleep(0)
                log.info("in", seat="own")

        with logcontext.bound({"seat": "alice", "epoch": 3}):
            await asyncio.gather(child("t1"), child("t2"))
            log.info("between")
        log.info("after")
    told = [{key: value for key, value in line.items() if key != "log_level"} for line in logs]
    assert told == [
        {"event": "in", "seat": "own", "epoch": 3, "turn_id": "t1"},
        {"event": "in", "seat": "own", "epoch": 3, "turn_id": "t2"},
        {"event": "between", "seat": "alice", "epoch": 3},
        {"event": "after"},
    ]
    assert dict(logcontext.names()) == {}
