"""Token counters by calendar window, and caps on them."""

import asyncio
from datetime import UTC, date, datetime
from zoneinfo import ZoneInfo

import pytest
from structlog.contextvars import bound_contextvars, merge_contextvars
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Unavailable
from crewlet.testing.faults import Fault, FaultyCells
from crewlet.testing.virtual import VirtualClock, in_virtual_time
from crewlet.turns.budget import Caps, Spent, charged, end_of, over, start_of, warned, warnings
from crewlet.turns.budgets import BUDGETS_BUCKET, COMPANY, Budgets

BERLIN = ZoneInfo("Europe/Berlin")


@pytest.mark.parametrize(
    ("window", "day", "start"),
    [
        ("day", date(2030, 3, 6), date(2030, 3, 6)),
        ("week", date(2030, 3, 6), date(2030, 3, 4)),
        ("week", date(2030, 3, 4), date(2030, 3, 4)),
        ("week", date(2030, 1, 1), date(2029, 12, 31)),
        ("month", date(2030, 3, 31), date(2030, 3, 1)),
    ],
)
def test_a_window_begins_on_its_calendar_day(window: str, day: date, start: date) -> None:
    assert start_of(window, day) == start  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("window", "now", "end"),
    [
        # The day on which Berlin's clocks go forward has 23 hours, and the one on which they go back 25.
        ("day", datetime(2030, 3, 31, 0, 30, tzinfo=UTC), datetime(2030, 3, 31, 22, tzinfo=UTC)),
        ("day", datetime(2030, 10, 26, 22, 30, tzinfo=UTC), datetime(2030, 10, 27, 23, tzinfo=UTC)),
        # 23:30 UTC on the last of a month is the first of the next one there.
        ("month", datetime(2030, 1, 31, 23, 30, tzinfo=UTC), datetime(2030, 2, 28, 23, tzinfo=UTC)),
        ("week", datetime(2030, 3, 6, tzinfo=UTC), datetime(2030, 3, 10, 23, tzinfo=UTC)),
    ],
)
def test_a_window_ends_at_midnight_where_the_company_is(window: str, now: datetime, end: datetime) -> None:
    assert end_of(window, now, BERLIN) == end  # type: ignore[arg-type]


def test_spending_counts_in_each_window_and_each_begins_anew_by_itself() -> None:
    spent = charged(Spent(), 10, date(2030, 1, 31))
    assert [spent.tokens(window, date(2030, 1, 31)) for window in ("day", "week", "month")] == [10, 10, 10]
    spent = charged(spent, 5, date(2030, 2, 1))
    assert [spent.tokens(window, date(2030, 2, 1)) for window in ("day", "week", "month")] == [5, 15, 5]
    # A charge that was dated a moment before midnight still counts where the others are.
    spent = charged(spent, 1, date(2030, 1, 31))
    assert [spent.tokens(window, date(2030, 2, 1)) for window in ("day", "week", "month")] == [6, 16, 6]


def test_of_several_caps_the_one_that_lasts_longest_is_named() -> None:
    now = datetime(2030, 3, 6, 12, tzinfo=UTC)
    spent = charged(Spent(), 100, now.date())
    assert over("ann", spent, Caps(), now, UTC) is None
    assert over("ann", spent, Caps(day=101), now, UTC) is None
    found = over("ann", spent, Caps(day=100, week=50, month=1000), now, UTC)
    assert found is not None and (found.window, found.spent, found.cap) == ("week", 100, 50)
    assert found.until == datetime(2030, 3, 11, tzinfo=UTC)
    assert over("ann", Spent(), Caps(day=0), now, UTC) is not None
    assert over("ann", spent, Caps(day=100), datetime(2030, 3, 7, tzinfo=UTC), UTC) is None


def test_four_fifths_are_told_once_a_window_and_again_for_a_higher_cap() -> None:
    today = date(2030, 3, 6)
    spent, caps = charged(Spent(), 79, today), Caps(day=100)
    assert list(warnings(spent, caps, today)) == []
    spent = charged(spent, 1, today)
    assert list(warnings(spent, caps, today)) == [("day", 80, 100)]
    spent = warned(spent, {"day": 100})
    assert list(warnings(charged(spent, 5, today), caps, today)) == []
    assert list(warnings(charged(spent, 90, today), Caps(day=200), today)) == [("day", 170, 200)]
    assert list(warnings(charged(spent, 90, date(2030, 3, 7)), caps, date(2030, 3, 7))) == [("day", 90, 100)]


class Office:
    """One company's budgets as several nodes see them."""

    def __init__(self, cells: Cells) -> None:
        self.documents: dict[str, Caps] = {}
        self.cells = cells

    @classmethod
    async def open(cls) -> "Office":
        return cls(await LocalCells(VirtualClock()).open(BUDGETS_BUCKET))

    def node(self, cells: Cells | None = None) -> Budgets:
        return Budgets(cells or self.cells, lambda spender: self.documents.get(spender, Caps()), lambda: UTC)


@in_virtual_time
async def test_no_charge_of_many_at_once_on_several_nodes_is_lost() -> None:
    office = await Office.open()
    nodes = [office.node() for _ in range(3)]
    await asyncio.gather(
        *(node.charge(handle, 7) for node in nodes for handle in ("ann", "bob") for _ in range(20)),
    )
    spent = {name: (await nodes[0].standing(name)).spent["day"] for name in ("ann", "bob", COMPANY)}
    assert spent == {"ann": 3 * 20 * 7, "bob": 3 * 20 * 7, COMPANY: 3 * 2 * 20 * 7}


@in_virtual_time
async def test_the_charges_of_one_node_go_together() -> None:
    office = await Office.open()
    writes = 0
    replace, create = office.cells.replace, office.cells.create

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(office.cells, name)

        async def replace(self, *args: object, **more: object) -> object:
            nonlocal writes
            writes += 1
            return await replace(*args, **more)  # type: ignore[arg-type]

        async def create(self, *args: object, **more: object) -> object:
            nonlocal writes
            writes += 1
            return await create(*args, **more)  # type: ignore[arg-type]

    node = office.node(Counting())  # type: ignore[arg-type]
    await asyncio.gather(*(node.charge("ann", 1) for _ in range(100)))
    assert writes <= 6
    assert (await node.standing("ann")).spent["month"] == 100


@in_virtual_time
async def test_a_reached_cap_of_the_seat_or_of_the_company_keeps_the_seat_and_a_raised_one_lets_it_go() -> None:
    office = await Office.open()
    office.documents = {"ann": Caps(day=100), COMPANY: Caps(month=1000)}
    node = office.node()
    await node.charge("ann", 99)
    assert await node.refusal("ann") is None
    await node.charge("ann", 1)
    found = await node.refusal("ann")
    assert found is not None and str(found) == "ann has spent 100 of 100 tokens this day"
    assert await node.refusal("bob") is None
    await node.set_caps("ann", Caps(day=200))
    assert await office.node().refusal("ann") is None
    await node.set_caps(COMPANY, Caps(week=100))
    assert [(await node.refusal(name)) is not None for name in ("ann", "bob")] == [True, True]
    await node.set_caps(COMPANY, None)
    await node.set_caps("ann", None)
    assert await node.refusal("bob") is None
    assert await node.refusal("ann") is not None
    await node.reset("ann")
    assert await node.refusal("ann") is None
    assert not (await node.standing("ann")).is_set


@in_virtual_time
async def test_people_are_told_once_when_most_is_spent(capsys: pytest.CaptureFixture[str]) -> None:
    office = await Office.open()
    office.documents = {"ann": Caps(day=100)}
    node = office.node()
    for _ in range(4):
        await node.charge("ann", 30)
    assert capsys.readouterr().out.count("budget_nearly_spent") == 1


@in_virtual_time
async def test_that_most_is_spent_is_told_under_the_name_of_no_turn_as_several_may_have_joined_the_charge() -> None:
    office = await Office.open()
    office.documents = {COMPANY: Caps(day=100)}
    node = office.node()

    async def turn(handle: str, tokens: int) -> None:
        with bound_contextvars(seat=handle, turn_id=f"turn of {handle}"):
            await node.charge(handle, tokens)

    with capture_logs(processors=[merge_contextvars]) as logs:
        await asyncio.gather(turn("ann", 1), turn("bob", 90))
    (told,) = [line for line in logs if line["event"] == "budget_nearly_spent"]
    assert told["spender"] == COMPANY and not {"seat", "turn_id"} & told.keys()


@in_virtual_time
async def test_a_counter_that_cannot_be_read_is_unknown_and_a_damaged_one_too() -> None:
    office = await Office.open()
    office.documents = {"ann": Caps(day=100)}
    await office.cells.create("spent.seat.ann", b"?")
    with pytest.raises(Unavailable, match="cannot be read"):
        await office.node().refusal("ann")
    with pytest.raises(Unavailable):
        await office.node().charge("ann", 1)


@in_virtual_time
async def test_what_was_spent_while_the_store_was_away_is_counted_with_the_next_charge() -> None:
    office = await Office.open()
    store = FaultyCells(office.cells)
    node = office.node(store)
    store.cut()
    for _ in range(2):
        with pytest.raises(Unavailable):
            await node.charge("ann", 5)
    store.heal()
    await node.charge("bob", 1)
    await node.charge("ann", 1)
    spent = {name: (await node.standing(name)).spent["day"] for name in ("ann", "bob", COMPANY)}
    assert spent == {"ann": 11, "bob": 1, COMPANY: 12}


@in_virtual_time
async def test_a_charge_that_may_have_been_counted_is_not_counted_twice() -> None:
    office = await Office.open()
    store = FaultyCells(office.cells)
    node = office.node(store)
    await node.charge("ann", 1)
    store.next("replace", Fault.UNANSWERED)
    store.next("replace", Fault.UNANSWERED)
    with pytest.raises(Unavailable):
        await node.charge("ann", 5)
    await node.charge("ann", 1)
    assert [(await node.standing(name)).spent["day"] for name in ("ann", COMPANY)] == [7, 7]


@in_virtual_time
async def test_a_caller_that_is_cancelled_has_its_tokens_counted_all_the_same() -> None:
    office = await Office.open()
    node = office.node()
    charging = asyncio.ensure_future(node.charge("ann", 5))
    await asyncio.sleep(0)
    charging.cancel()
    await asyncio.sleep(1)
    assert (await node.standing("ann")).spent["day"] == 5


@in_virtual_time
async def test_a_seat_may_have_any_handle() -> None:
    office = await Office.open()
    node = office.node()
    await node.charge("company", 5)
    await node.charge("ann", 5)
    assert (await node.standing("company")).spent["day"] == 5
    assert (await node.standing(COMPANY)).spent["day"] == 10
