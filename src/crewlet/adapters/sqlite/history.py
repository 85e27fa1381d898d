"""The history port on SQLite."""

import asyncio
from collections import deque
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, assert_never

import apsw
import msgspec
import structlog

from crewlet.adapters.sqlite.database import Database, Value, Values, run
from crewlet.ports.errors import CrewletError, Misuse
from crewlet.ports.history import (
    HEAD_CHARS,
    CallBegan,
    CallEnded,
    CallLine,
    Dispatched,
    DispatchLine,
    Happening,
    Progressed,
    RoundBegan,
    RoundEnded,
    RoundLine,
    TurnBegan,
    TurnEnded,
    TurnLine,
    TurnPage,
)

_log = structlog.get_logger()

MAX_WAITING = 10_000
_SOON_S = 0.1
_BATCH = 500

_TURN = """turn_id, seat, epoch, runner, work_key, triggers, began_at, ended_at, outcome, detail, round, tool,
    progressed_at, progress"""


# What belongs to a turn goes before it, so that no row takes others with it past the bound.
_FORGET = (
    """DELETE FROM calls WHERE (turn_id, number) IN
       (SELECT turn_id, number FROM turns JOIN calls USING (turn_id)
        WHERE progressed_at < ? ORDER BY progressed_at LIMIT ?)""",
    """DELETE FROM rounds WHERE (turn_id, number) IN
       (SELECT turn_id, number FROM turns JOIN rounds USING (turn_id)
        WHERE progressed_at < ? ORDER BY progressed_at LIMIT ?)""",
    """DELETE FROM turns WHERE sequence IN
       (SELECT sequence FROM turns WHERE progressed_at < ? ORDER BY progressed_at LIMIT ?)""",
    """DELETE FROM dispatches WHERE sequence IN
       (SELECT sequence FROM dispatches WHERE at < ? ORDER BY at LIMIT ?)""",
)


class SqliteHistory:
    """This node's history in its database.

    What is noted is written together, a tenth of a second later at most, so that a turn costs no write of its own.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[Happening] = deque()
        self._writing: asyncio.Task[None] | None = None
        self._lost = 0

    def note(self, happening: Happening) -> None:
        """See the port."""
        if len(self._waiting) >= MAX_WAITING:
            self._lose(1, "it waits for the disk")
            return
        self._waiting.append(happening)
        if self._writing is None or self._writing.done():
            self._writing = asyncio.get_running_loop().create_task(self._write_soon(), name="history")

    async def keep(self, happening: Happening) -> None:
        """See the port."""
        batch = [*self._take(len(self._waiting)), happening]
        try:
            await self._database.write(lambda connection: _write(connection, batch))
        except CrewletError:
            self._lose(len(batch) - 1, "its write failed")
            raise

    async def turns(self, seat: str, *, after: int = 0, limit: int = 50) -> Sequence[TurnLine]:
        """See the port."""
        _check_limit(limit)
        rows = await self._select(
            f"""SELECT sequence, {_TURN} FROM turns WHERE seat = ? AND (sequence > ? OR ended_at IS NULL)
                ORDER BY sequence DESC LIMIT ?""",
            (seat, after, limit),
        )
        return [_turn_line(row) for row in reversed(rows)]

    async def turn(self, turn_id: str) -> TurnPage | None:
        """See the port."""
        if not turn_id:
            return None
        pattern = turn_id.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
        rows = await self._select(
            f"""SELECT sequence, {_TURN} FROM turns WHERE turn_id LIKE ? ESCAPE '\\'
                ORDER BY turn_id <> ? LIMIT 2""",
            (pattern, turn_id),
        )
        if not rows or (len(rows) > 1 and rows[0][1] != turn_id):
            return None
        line = _turn_line(rows[0])
        rounds = await self._select(
            """SELECT number, began_at, ended_at, model, input_tokens, output_tokens FROM rounds WHERE turn_id = ?
               ORDER BY number""",
            (line.turn_id,),
        )
        calls = await self._select(
            """SELECT number, round, tool, server, is_effect, key, arguments, began_at, ended_at, is_error, answer
               FROM calls WHERE turn_id = ? ORDER BY number""",
            (line.turn_id,),
        )
        return TurnPage(line, tuple(_round_line(row) for row in rounds), tuple(_call_line(row) for row in calls))

    async def dispatches(self, seat: str, *, limit: int = 50) -> Sequence[DispatchLine]:
        """See the port."""
        _check_limit(limit)
        rows = await self._select(
            "SELECT seat, triggers, answer, reason, at FROM dispatches WHERE seat = ? ORDER BY sequence DESC LIMIT ?",
            (seat, limit),
        )
        return [DispatchLine(row[0], _triggers(row[1]), row[2], row[3], _instant(row[4])) for row in reversed(rows)]

    async def prune(self, before: datetime, *, at_most: int = 500) -> int:
        """See the port."""
        _check_limit(at_most)
        until = before.timestamp()

        def forget(connection: apsw.Connection) -> int:
            left = at_most
            for statement in _FORGET:
                if left:
                    run(connection, statement, (until, left))
                    left -= connection.changes()
            return at_most - left

        await self._settled()
        return await self._database.write(forget)

    async def close(self) -> None:
        """Write what waits."""
        if self._writing is not None:
            self._writing.cancel()
        await self._write_all()

    async def _write_soon(self) -> None:
        await asyncio.sleep(_SOON_S)
        await self._write_all()

    async def _write_all(self) -> None:
        while batch := self._take(_BATCH):
            try:
                await self._database.write(lambda connection, batch=batch: _write(connection, batch))
            except CrewletError as error:
                self._lose(len(batch), str(error))

    def _take(self, at_most: int) -> list[Happening]:
        return [self._waiting.popleft() for _ in range(min(at_most, len(self._waiting)))]

    def _lose(self, count: int, reason: str) -> None:
        if count and not self._lost:
            _log.error("history_lost", reason=reason)
        self._lost += count

    async def _select(self, sql: str, values: tuple[Value, ...]) -> list[tuple[Any, ...]]:
        await self._settled()
        return await self._database.read(lambda connection: run(connection, sql, values))

    async def _settled(self) -> None:
        """What was noted before is seen by whoever reads now."""
        if self._waiting:
            await self._write_all()


def _write(connection: apsw.Connection, batch: Sequence[Happening]) -> None:
    for happening in batch:
        sql, values = _statement(happening)
        run(connection, sql, values)
        if not isinstance(happening, Dispatched | TurnBegan):
            run(
                connection,
                "UPDATE turns SET progressed_at = :at WHERE turn_id = :turn",
                {"at": happening.at.timestamp(), "turn": happening.turn_id},
            )


def _statement(happening: Happening) -> tuple[str, Values]:
    at = happening.at.timestamp()
    match happening:
        case TurnBegan():
            return (
                """INSERT INTO turns (turn_id, seat, epoch, runner, work_key, triggers, began_at, progressed_at)
                   VALUES (:turn, :seat, :epoch, :runner, :key, :triggers, :at, :at) ON CONFLICT DO NOTHING""",
                {
                    "turn": happening.turn_id,
                    "seat": happening.seat,
                    "epoch": happening.epoch,
                    "runner": happening.runner,
                    "key": happening.work_key,
                    "triggers": _packed(happening.triggers),
                    "at": at,
                },
            )
        case RoundBegan(turn_id, number):
            return (
                """INSERT INTO rounds (turn_id, number, began_at)
                   SELECT :turn, :number, :at FROM turns WHERE turn_id = :turn ON CONFLICT DO NOTHING;
                   UPDATE turns SET round = :number, tool = '' WHERE turn_id = :turn""",
                {"turn": turn_id, "number": number, "at": at},
            )
        case RoundEnded(turn_id, number, model, input_tokens, output_tokens):
            return (
                """UPDATE rounds SET ended_at = :at, model = :model, input_tokens = :input, output_tokens = :output
                   WHERE turn_id = :turn AND number = :number""",
                {
                    "turn": turn_id,
                    "number": number,
                    "model": model,
                    "input": input_tokens,
                    "output": output_tokens,
                    "at": at,
                },
            )
        case CallBegan():
            return (
                """INSERT INTO calls (turn_id, number, round, tool, server, is_effect, key, arguments, began_at)
                   SELECT :turn, :number, round, :tool, :server, :effect, :key, :arguments, :at
                   FROM turns WHERE turn_id = :turn ON CONFLICT DO NOTHING;
                   UPDATE turns SET tool = :tool WHERE turn_id = :turn""",
                {
                    "turn": happening.turn_id,
                    "number": happening.number,
                    "tool": happening.tool,
                    "server": happening.server,
                    "effect": happening.is_effect,
                    "key": happening.key,
                    "arguments": happening.arguments[:HEAD_CHARS],
                    "at": at,
                },
            )
        case CallEnded(turn_id, number, is_error, answer):
            return (
                """UPDATE calls SET ended_at = :at, is_error = :error, answer = :answer
                   WHERE turn_id = :turn AND number = :number;
                   UPDATE turns SET tool = '' WHERE turn_id = :turn""",
                {"turn": turn_id, "number": number, "error": is_error, "answer": answer[:HEAD_CHARS], "at": at},
            )
        case Progressed(turn_id, text):
            return (
                "UPDATE turns SET progress = :text WHERE turn_id = :turn",
                {"turn": turn_id, "text": text[:HEAD_CHARS]},
            )
        case TurnEnded(turn_id, outcome, detail):
            return (
                """UPDATE turns SET ended_at = :at, outcome = :outcome, detail = :detail, tool = ''
                   WHERE turn_id = :turn""",
                {"turn": turn_id, "outcome": outcome, "detail": detail[:HEAD_CHARS], "at": at},
            )
        case Dispatched():
            return (
                """INSERT INTO dispatches (seat, triggers, answer, reason, at)
                   VALUES (:seat, :triggers, :answer, :reason, :at)""",
                {
                    "seat": happening.seat,
                    "triggers": _packed(happening.triggers),
                    "answer": happening.answer,
                    "reason": happening.reason[:HEAD_CHARS],
                    "at": at,
                },
            )
        case _:
            assert_never(happening)


def _turn_line(row: tuple[Any, ...]) -> TurnLine:
    return TurnLine(
        sequence=row[0],
        turn_id=row[1],
        seat=row[2],
        epoch=row[3],
        runner=row[4],
        work_key=row[5],
        triggers=_triggers(row[6]),
        began_at=_instant(row[7]),
        ended_at=_maybe(row[8]),
        outcome=row[9],
        detail=row[10],
        round=row[11],
        tool=row[12],
        progressed_at=_instant(row[13]),
        progress=row[14],
    )


def _round_line(row: tuple[Any, ...]) -> RoundLine:
    return RoundLine(row[0], _instant(row[1]), _maybe(row[2]), row[3], row[4], row[5])


def _call_line(row: tuple[Any, ...]) -> CallLine:
    number, in_round, tool, server, is_effect, key, arguments, began_at, ended_at, is_error, answer = row
    return CallLine(
        number=number,
        round=in_round,
        tool=tool,
        server=server,
        is_effect=bool(is_effect),
        key=key,
        arguments=arguments,
        began_at=_instant(began_at),
        ended_at=_maybe(ended_at),
        is_error=bool(is_error),
        answer=answer,
    )


def _packed(triggers: Sequence[str]) -> str:
    return msgspec.json.encode(triggers).decode()


def _triggers(text: str) -> tuple[str, ...]:
    return msgspec.json.decode(text, type=tuple[str, ...])


def _instant(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _maybe(seconds: float | None) -> datetime | None:
    return None if seconds is None else _instant(seconds)


def _check_limit(limit: int) -> None:
    if not 1 <= limit <= 1_000:
        raise Misuse(f"a limit is 1 to 1,000, not {limit}")
