"""What a turn writes is asked about in the step in which it leaves: a process may have stood still just before."""

from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest
from dispatch_desk import Desk, delivery, event, mails

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.channel import Channel
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.mail.ledger import LEDGER_BUCKET
from crewlet.ports.cells import Cells, WriteResult
from crewlet.ports.mail import Ack, Defer, NoMailbox
from crewlet.ports.tools import ToolAnswer
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Turn, TurnResult


class Standing:
    """A bucket before which a process stands still: `before` is awaited before a write leaves, and told its verb.

    What it returns true of is lost, and sent again, as a store does that nobody answers.
    """

    def __init__(self, cells: Cells, before: Callable[[str], Awaitable[bool]]) -> None:
        self._cells = cells
        self._before = before

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cells, name)

    async def create(self, key: str, value: bytes, **how: Any) -> WriteResult:
        return await self._write("create", lambda: self._cells.create(key, value, **how), how)

    async def replace(self, key: str, value: bytes, **how: Any) -> WriteResult:
        return await self._write("replace", lambda: self._cells.replace(key, value, **how), how)

    async def remove(self, key: str, **how: Any) -> WriteResult:
        return await self._write("remove", lambda: self._cells.remove(key, **how), how)

    async def _write(self, verb: str, write: Callable[[], Awaitable[WriteResult]], how: dict[str, Any]) -> WriteResult:
        while await self._before(verb):
            if (admit := how.get("admit")) is not None:
                admit()
        return await write()


def _request() -> Any:
    return delivery(event("r1", type="a2a_request", source="seat:bob", payload={"channel": "0a-1"}))


async def _call(turn: Turn, tool: str, **arguments: Any) -> ToolAnswer:
    assert turn.tools is not None
    return await turn.tools.call(tool, arguments)


class _Lapsing:
    """A desk whose lease lapses, with nobody there to notice, before or between two tries of one of its writes."""

    def __init__(self, desk: Desk, at: str, *, lost_first: int = 0, skip: int = 0) -> None:
        self.desk = desk
        desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 5)
        self._at = at
        self._lost = lost_first
        self._skip = skip

    async def before(self, verb: str) -> bool:
        if verb != self._at or self.desk.fence is None:
            return False
        if self._skip > 0:
            self._skip -= 1
            return False
        if self._lost > 0:
            self._lost -= 1
            await self.desk.clock.sleep(0.1)
            return True
        self._at = ""
        await self.desk.clock.sleep(5)
        return False


@pytest.mark.parametrize("lost_first", [0, 1])
def test_an_answer_that_is_late_does_not_close_the_channel_and_the_successors_answer_wins(lost_first: int) -> None:
    async def script(turn: Turn) -> TurnResult:
        runs.append(turn.turn_id)
        await _call(turn, "answer", text=f"answer {len(runs)}")
        return TurnResult("delivered")

    runs: list[str] = []

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        cells = await LocalCells(desk.clock).open(CHANNELS_BUCKET)
        late = _Lapsing(desk, "replace", lost_first=lost_first)
        desk.channels = Channels(cast("Cells", Standing(cells, late.before)))
        await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
        await desk.open()
        assert isinstance(await desk.handle_mail(_request()), Defer)
        found = await desk.channels.find("0a-1")
        assert found is not None and found.channel.state == "open" and desk.mail.published == []
        desk.fence = desk.new_fence(8)
        assert await desk.handle_mail(_request()) == Ack()
        assert [mail.body for mail in desk.mail.published] == ["answer 2"]
        found = await desk.channels.find("0a-1")
        assert found is not None and found.channel.is_delivered

    case()


@in_virtual_time
async def test_a_question_that_is_late_opens_no_channel() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "ask", to="bob", question="how?")
        return TurnResult("delivered")

    desk = Desk(script)
    cells = await LocalCells(desk.clock).open(CHANNELS_BUCKET)
    desk.channels = Channels(cast("Cells", Standing(cells, _Lapsing(desk, "create").before)))
    await desk.open()
    await desk.handle_mail(*mails("a"))
    assert await cells.list() == [] and desk.mail.published == []


@in_virtual_time
async def test_a_channel_that_the_successor_asks_in_by_now_is_not_taken_back() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "ask", to="bob", question="how?")
        return TurnResult("delivered")

    async def stands_still(verb: str) -> bool:
        if verb == "remove":
            await desk.clock.sleep(5)
            assert await successor.handle_mail(*mails("a")) == Ack()
        return False

    desk, successor = Desk(script), Desk(script)
    cells = await LocalCells(desk.clock).open(CHANNELS_BUCKET)
    desk.channels, successor.channels = Channels(cast("Cells", Standing(cells, stands_still))), Channels(cells)
    desk.mail.answers = [NoMailbox("there is no mailbox yet")]
    desk.fence = desk.new_fence(7, good_until=desk.clock.elapsed() + 5)
    await desk.open()
    await successor.open()
    await desk.handle_mail(*mails("a"))
    (asked,) = successor.mail.published
    found = await successor.channels.find(asked.payload["channel"])
    assert found is not None and found.channel.state == "open"


@in_virtual_time
async def test_whoever_has_no_such_channel_bars_none_once_its_fence_is_closed() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "answer", text="so")
        return TurnResult("delivered")

    desk = Desk(script)
    cells = await LocalCells(desk.clock).open(CHANNELS_BUCKET)
    desk.channels = Channels(cast("Cells", Standing(cells, _Lapsing(desk, "create").before)))
    await desk.open()
    assert isinstance(await desk.handle_mail(_request()), Defer)
    assert await cells.list() == []


@in_virtual_time
async def test_a_late_note_of_a_delivery_is_left_to_the_maintenance_duty() -> None:
    async def script(turn: Turn) -> TurnResult:
        await _call(turn, "answer", text="so")
        return TurnResult("delivered")

    desk = Desk(script)
    cells = await LocalCells(desk.clock).open(CHANNELS_BUCKET)
    desk.channels = Channels(cast("Cells", Standing(cells, _Lapsing(desk, "replace", skip=1).before)))
    await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
    await desk.open()
    assert isinstance(await desk.handle_mail(_request()), Defer)
    found = await desk.channels.find("0a-1")
    assert found is not None and found.channel.answer == "so" and not found.channel.is_delivered
    assert len(desk.mail.published) == 1


@pytest.mark.parametrize(("reaches", "is_recorded"), [(False, False), (True, True)])
def test_past_the_fence_only_the_record_of_a_turn_that_reached_outside_leaves(reaches: bool, is_recorded: bool) -> None:
    async def script(turn: Turn) -> TurnResult:
        if reaches:
            turn.reach("outside")
        return TurnResult("delivered")

    @in_virtual_time
    async def case() -> None:
        desk = Desk(script)
        ledger = await LocalCells(desk.clock).open(LEDGER_BUCKET)
        await desk.open(cast("Cells", Standing(ledger, _Lapsing(desk, "create", lost_first=1).before)))
        answer = await desk.handle_mail(*mails("a"))
        assert isinstance(answer, Ack if reaches else Defer)
        assert (await desk.completion("a") is not None) == is_recorded

    case()


@pytest.mark.parametrize("mail", ["closed question", "answered in its thread"])
def test_past_the_fence_no_record_leaves_of_mail_that_runs_no_turn(mail: str) -> None:
    @in_virtual_time
    async def case() -> None:
        desk = Desk()
        ledger = await LocalCells(desk.clock).open(LEDGER_BUCKET)
        desk.channels = Channels(await LocalCells(desk.clock).open(CHANNELS_BUCKET))
        await desk.channels.open("0a-1", Channel("bob", "alice", "how?"))
        await desk.channels.answer("0a-1", by="alice", text="so", work="other")
        await desk.open(cast("Cells", Standing(ledger, _Lapsing(desk, "create").before)))
        match mail:
            case "closed question":
                given = _request()
            case _:
                fence, desk.fence = desk.fence, None  # as by an earlier owner
                await desk.ledger.record("alice", ("t0",), outcome="delivered", answered=("c1",))
                desk.fence = fence
                given = delivery(event("t1", chat_message="c1"))
        known = len(await ledger.list())
        assert isinstance(await desk.handle_mail(given), Defer)
        assert len(await ledger.list()) == known and desk.ran == []

    case()
