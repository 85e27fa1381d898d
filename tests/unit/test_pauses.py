"""The one record that says which seats people have paused."""

import asyncio
from datetime import timedelta

import pytest

from crewlet.adapters.local.cells import LocalCells
from crewlet.mail.pauses import PAUSES_BUCKET, PAUSES_KEY, Pauses, Wish
from crewlet.mail.reuse import IdReused
from crewlet.ports.cells import Cells
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.testing.faults import Fault, FaultyCells
from crewlet.testing.virtual import VirtualClock, in_virtual_time


async def _bucket(clock: VirtualClock | None = None) -> Cells:
    return await LocalCells(clock or VirtualClock()).open(PAUSES_BUCKET)


@pytest.mark.proves("HO-07")
@in_virtual_time
async def test_of_two_people_who_pause_one_seat_the_first_wins() -> None:
    pauses = Pauses(await _bucket())
    first = await pauses.pause(["alice"], Wish("p1", by="ada", reason="wrong customer"))
    second = await pauses.pause(["alice"], Wish("p2", by="bob", stop_running=True))
    assert (first.done, first.lost) == (("alice",), {})
    assert second.done == ()
    assert second.lost["alice"] == (await pauses.in_force())["alice"] == first.pauses["alice"]
    assert (first.pauses["alice"].by, first.pauses["alice"].stop_running) == ("ada", False)


@pytest.mark.proves("HO-07")
@in_virtual_time
async def test_of_two_who_pause_one_seat_at_once_exactly_one_wins() -> None:
    pauses = Pauses(await _bucket())
    answers = await asyncio.gather(*(pauses.pause(["alice"], Wish(f"p{each}")) for each in range(8)))
    assert sum(answer.done == ("alice",) for answer in answers) == 1
    winner = (await pauses.in_force())["alice"]
    assert all(answer.lost == {"alice": winner} for answer in answers if not answer.done)


@pytest.mark.proves("HO-07")
@in_virtual_time
async def test_a_resume_of_another_pause_or_of_none_loses() -> None:
    pauses = Pauses(await _bucket())
    await pauses.pause(["alice"], Wish("p1"))
    assert (await pauses.resume({"alice": "p1"})).done == ("alice",)
    await pauses.pause(["alice"], Wish("p2"))
    for old in ("p1", ""):
        lost = await pauses.resume({"alice": old})
        assert lost.done == () and lost.lost == await pauses.in_force()
    assert set(await pauses.in_force()) == {"alice"}


@pytest.mark.proves("HO-07")
@in_virtual_time
async def test_a_change_of_an_older_pause_or_of_none_loses() -> None:
    pauses = Pauses(await _bucket())
    await pauses.pause(["alice"], Wish("p1"))
    assert (await pauses.pause(["alice"], Wish("p2", stop_running=True), instead_of="p1")).done == ("alice",)
    assert (await pauses.pause(["alice"], Wish("p3"), instead_of="p1")).lost["alice"] is not None
    assert (await pauses.pause(["bob"], Wish("p4"), instead_of="p1")).lost == {"bob": None}
    assert {handle: pause.id for handle, pause in (await pauses.in_force()).items()} == {"alice": "p2"}


@pytest.mark.proves("HO-07")
@in_virtual_time
async def test_a_resumed_seat_can_be_paused_again() -> None:
    pauses = Pauses(await _bucket())
    await pauses.pause(["alice"], Wish("p1"))
    await pauses.resume({"alice": "p1"})
    assert (await pauses.pause(["alice"], Wish("p2"))).done == ("alice",)


@in_virtual_time
async def test_a_unit_is_paused_in_one_write_and_leaves_what_was_paused_before() -> None:
    cells = await _bucket()
    pauses = Pauses(cells)
    await pauses.pause(["bob"], Wish("p1", by="ada"))
    before = (await cells.mark()).last_revision
    changed = await pauses.pause(["alice", "bob", "carol"], Wish("p2"))
    assert (await cells.mark()).last_revision == before + 1
    assert changed.done == ("alice", "carol") and set(changed.lost) == {"bob"}
    assert {handle: pause.id for handle, pause in changed.pauses.items()} == {"alice": "p2", "bob": "p1", "carol": "p2"}


@in_virtual_time
async def test_a_pause_ends_by_the_stores_clock_and_is_then_in_nobodys_way() -> None:
    clock = VirtualClock()
    pauses = Pauses(await _bucket(clock))
    changed = await pauses.pause(["alice"], Wish("p1", for_s=60))
    assert changed.pauses["alice"].until == clock.now() + timedelta(seconds=60)
    await clock.sleep(59)
    assert set(await pauses.in_force()) == {"alice"}
    await clock.sleep(1.1)
    assert await pauses.in_force() == {}
    assert (await pauses.resume({"alice": "p1"})).lost == {"alice": None}
    assert (await pauses.pause(["alice"], Wish("p2"))).done == ("alice",)


@in_virtual_time
async def test_an_end_that_has_passed_is_refused() -> None:
    clock = VirtualClock()
    pauses = Pauses(await _bucket(clock))
    for wish in (Wish("p1", until=clock.now() - timedelta(hours=1)), Wish("p2", for_s=-1), Wish("p3", for_s=0)):
        with pytest.raises(Misuse, match="has passed"):
            await pauses.pause(["alice"], wish)
    assert await pauses.in_force() == {}


@pytest.mark.parametrize("verb", ["pause", "resume"])
@pytest.mark.parametrize("fault", [Fault.LOST, Fault.UNANSWERED, Fault.LATE])
@in_virtual_time
async def test_a_write_that_nobody_answered_is_unknown_and_a_repeat_of_it_settles_it(verb: str, fault: Fault) -> None:
    cells = FaultyCells(await _bucket())
    pauses = Pauses(cells)
    await pauses.pause(["bob"], Wish("p0"))
    if verb == "resume":
        await pauses.pause(["alice"], Wish("p1"))

    async def act() -> object:
        return await (pauses.pause(["alice"], Wish("p1")) if verb == "pause" else pauses.resume({"alice": "p1"}))

    cells.next("replace", fault)
    with pytest.raises(Unavailable):
        await act()
    if fault is Fault.LATE:
        await cells.deliver_late()
    await act()
    assert ("alice" in await pauses.in_force()) is (verb == "pause")
    assert "bob" in await pauses.in_force()


@in_virtual_time
async def test_a_resume_that_lands_late_does_not_end_a_pause_that_came_after_it() -> None:
    cells = FaultyCells(await _bucket())
    pauses = Pauses(cells)
    await pauses.pause(["alice"], Wish("p1"))
    cells.next("replace", Fault.LATE)
    with pytest.raises(Unavailable):
        await pauses.resume({"alice": "p1"})
    await pauses.pause(["alice"], Wish("p2", stop_running=True), instead_of="p1")
    await cells.deliver_late()
    assert (await pauses.in_force())["alice"].id == "p2"


@in_virtual_time
async def test_a_store_that_does_not_answer_or_cannot_be_understood_is_unavailable_and_never_no_pause() -> None:
    cells = FaultyCells(await _bucket())
    pauses = Pauses(cells)
    cells.cut()
    for act in (pauses.in_force(), pauses.pause(["alice"], Wish("p1")), pauses.resume({"alice": "p1"})):
        with pytest.raises(Unavailable):
            await act
    cells.heal()
    await cells.create(PAUSES_KEY, b"[]")
    with pytest.raises(Unavailable, match="cannot be read"):
        await pauses.in_force()
    with pytest.raises(Unavailable, match="cannot be read"):
        await pauses.pause(["alice"], Wish("p1"))


@in_virtual_time
async def test_an_id_that_is_used_for_another_wish_is_refused_and_a_repeat_of_the_first_is_not() -> None:
    clock = VirtualClock()
    pauses = Pauses(await _bucket(clock))
    first = Wish("p1", by="ada", reason="wrong customer", for_s=600.0)
    standing = (await pauses.pause(["alice"], first)).pauses["alice"]
    await clock.sleep(60)
    for other in (
        Wish("p1", by="ada", reason="wrong customer", for_s=900.0),
        Wish("p1", by="ada", reason="wrong customer", until=clock.now() + timedelta(seconds=600)),
        Wish("p1", by="ada", reason="wrong customer"),
        Wish("p1", by="bob", reason="wrong customer", for_s=600.0),
        Wish("p1", by="ada", reason="another", for_s=600.0),
        Wish("p1", by="ada", reason="wrong customer", for_s=600.0, stop_running=True),
    ):
        with pytest.raises(IdReused, match="the id 'p1'"):
            await pauses.pause(["bob", "alice"], other)
    assert await pauses.in_force() == {"alice": standing}
    assert (await pauses.pause(["alice"], first)).done == ("alice",)
    same = Wish("p1", by="ada", reason="wrong customer", until=standing.until)
    assert (await pauses.pause(["alice"], same)).pauses == {"alice": standing}
    assert (await pauses.pause(["alice"], Wish("p1", by="bob"), instead_of="p1")).pauses["alice"].by == "bob"
