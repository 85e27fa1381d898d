"""How many turns run at once, and who waits."""

import asyncio

import pytest
from dispatch_desk import Desk, mails

from crewlet.ports.mail import Ack, Defer
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.slots import DEFAULT_SLOTS, Slots, SlotsClosed
from crewlet.turns.turn import Turn, TurnResult


@pytest.mark.proves("IN-05")
@pytest.mark.parametrize(("asked", "given"), [(0, DEFAULT_SLOTS), (-3, 1), (1, 1), (5, 5)])
def test_zero_slots_mean_the_default_and_fewer_mean_one(asked: int, given: int) -> None:
    assert Slots(asked).limit == given


@pytest.mark.proves("IN-05")
@in_virtual_time
async def test_releasing_twice_frees_one_slot() -> None:
    slots = Slots(1)
    slot = await slots.take()
    slot.release()
    slot.release()
    await slots.take()
    assert slots.running == 1
    waiting = asyncio.create_task(slots.take())
    await asyncio.sleep(1)
    assert not waiting.done()
    waiting.cancel()


@in_virtual_time
async def test_slots_are_handed_out_in_the_order_of_asking_and_a_cancelled_waiter_loses_none() -> None:
    slots = Slots(1)
    first = await slots.take()
    order: list[str] = []

    async def wait(name: str) -> None:
        await slots.take()
        order.append(name)

    tasks = [asyncio.create_task(wait(name)) for name in ("a", "b", "c")]
    await asyncio.sleep(1)
    first.release()
    tasks[0].cancel()  # it was handed the slot and is cancelled before it could look
    await asyncio.sleep(1)
    assert order == ["b"]
    assert (slots.running, slots.waiting) == (1, 1)
    tasks[2].cancel()


@pytest.mark.proves("IN-05")
@in_virtual_time
async def test_two_slots_run_two_of_three_busy_seats_and_the_third_starts_the_moment_one_ends() -> None:
    starts: dict[str, float] = {}

    async def script(turn: Turn) -> TurnResult:
        starts[turn.seat.handle] = asyncio.get_running_loop().time()
        await asyncio.sleep({"alice": 5, "bob": 3, "carol": 1}[turn.seat.handle])
        return TurnResult("delivered")

    slots = Slots(2)
    desks = [await Desk(script, slots=slots, handle=handle).open() for handle in ("alice", "bob", "carol")]
    began = asyncio.get_running_loop().time()
    outcomes = await asyncio.gather(*(desk.answer(mails("a")) for desk in desks))
    assert outcomes == [Ack(), Ack(), Ack()]
    assert {handle: at - began for handle, at in starts.items()} == {"alice": 0, "bob": 0, "carol": 3}
    assert slots.running == 0


@pytest.mark.proves("DR-06")
@in_virtual_time
async def test_a_closed_gate_sends_the_waiting_turn_back_and_lets_the_running_one_end() -> None:
    async def script(turn: Turn) -> TurnResult:
        await asyncio.sleep(5)
        return TurnResult("delivered")

    slots = Slots(1)
    running = await Desk(script, slots=slots).open()
    waiting = await Desk(script, slots=slots, handle="bob").open()
    first = asyncio.create_task(running.handle_mail(*mails("a")))
    await asyncio.sleep(1)
    second = asyncio.create_task(waiting.dispatch(mails("a")))
    await asyncio.sleep(1)
    assert slots.waiting == 1
    slots.close()
    assert isinstance(await second, Defer)
    assert waiting.ran == []
    assert waiting.deferrals == ["bob"]
    assert await first == Ack()
    assert isinstance(await running.dispatch(mails("b")), Defer), "an idle closed gate refuses too"
    with pytest.raises(SlotsClosed):
        await slots.take()


@pytest.mark.parametrize("change", ["not owned", "lost and won again", "cancelled"])
def test_a_turn_that_got_its_slot_too_late_does_not_start(change: str) -> None:
    @in_virtual_time
    async def case() -> None:
        slots = Slots(1)
        desk = await Desk(slots=slots).open()
        slot = await slots.take()
        handling = asyncio.create_task(desk.handle_mail(*mails("a")))
        await asyncio.sleep(1)
        assert desk.fence is not None
        match change:
            case "not owned":
                desk.owned = None
            case "lost and won again":
                desk.fence.close("lease_lost")
                desk.fence, desk.owned = desk.new_fence(8), 8
            case _:
                await desk.dispatch.cancel("deadline")
        slot.release()
        assert isinstance(await handling, Defer)
        assert desk.ran == []
        assert slots.running == 0

    case()
