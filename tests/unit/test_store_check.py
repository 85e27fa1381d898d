"""What a node says of a damaged store, and what it does about counters that went back."""

import asyncio
from collections.abc import Sequence

import pytest
from node_rig import Fleet
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.cli.status import problem_of
from crewlet.node.storecheck import ALARM_EVERY_S, EAGER_S, EVERY_S, StoreCheck
from crewlet.ports.errors import Unavailable
from crewlet.ports.stores import StoreFault, Stores
from crewlet.seats.leases import EPOCHS_BUCKET
from crewlet.seats.records import EpochRecord, decode_epoch, encode
from crewlet.testing.virtual import VirtualClock, in_virtual_time

GONE = StoreFault("crewlet_ledger", "missing", "it was deleted")
BACK = StoreFault("crewlet_epochs", "reset", "it was put back")


class Told(Stores):
    """Says what the test wants; None is no answer."""

    def __init__(self) -> None:
        self.now: Sequence[StoreFault] | None = ()

    async def faults(self) -> Sequence[StoreFault]:
        if self.now is None:
            raise Unavailable("nobody answered")
        found, self.now = self.now, [fault for fault in self.now if fault.kind != "reset"]
        return found


@in_virtual_time
async def test_a_fault_is_told_at_once_then_now_and_then_and_stands_until_an_answer_without_it() -> None:
    clock, stores, resets, link = VirtualClock(), Told(), list[str](), [True]

    async def on_reset(store: str) -> None:
        resets.append(store)

    check = StoreCheck(stores, clock, lambda: link[0], on_reset)
    looking = asyncio.ensure_future(check.run())
    stores.now = [GONE, BACK]
    with capture_logs() as logs:
        await clock.sleep(EVERY_S)
        assert check.faults == {"crewlet_ledger": "it was deleted"} and resets == ["crewlet_epochs"]
        stores.now = [GONE]
        await clock.sleep(ALARM_EVERY_S)
        stores.now = None
        await clock.sleep(EVERY_S)
        assert check.faults == {"crewlet_ledger": "it was deleted"}
        stores.now = ()
        await clock.sleep(EVERY_S)
        assert check.faults == {}
    told = [(line["store"], line["log_level"]) for line in logs if line["event"] == "store_damaged"]
    assert told == [("crewlet_ledger", "error"), ("crewlet_epochs", "error"), ("crewlet_ledger", "error")]
    # A broker that is back is looked at without waiting for the next time.
    link[0] = False
    await clock.sleep(2.0)
    stores.now = [GONE]
    link[0] = True
    await clock.sleep(2.0)
    assert check.faults == {"crewlet_ledger": "it was deleted"}
    looking.cancel()


@in_virtual_time
@pytest.mark.parametrize("store", ["crewlet_leases", "crewlet_epochs"])
async def test_nothing_is_claimed_over_a_new_link_before_a_look_nor_while_leases_that_were_forgotten_may_be_good(
    store: str,
) -> None:
    clock, stores, links = VirtualClock(), Told(), [0]

    async def on_reset(store: str) -> None:
        del store

    check = StoreCheck(stores, clock, lambda: True, on_reset, links=lambda: links[0], lapse_s=lambda: 10.0)
    looking = asyncio.ensure_future(check.run())
    assert check.may_claim()
    await clock.sleep(1.0)
    links[0], stores.now = 1, None
    assert not check.may_claim()
    await clock.sleep(2.0)
    assert not check.may_claim(), "nobody answered the look"
    stores.now = ()
    await clock.sleep(EAGER_S)
    assert check.may_claim()
    links[0], stores.now = 2, None
    for _ in range(10):
        assert not check.may_claim()
        await clock.sleep(1.0)
    assert check.may_claim(), "no lease from before is good any more, whatever a look would say"
    stores.now = ()
    await clock.sleep(EVERY_S)
    links[0], stores.now = 3, [StoreFault(store, "reset", "it was put back")]
    for _ in range(9):
        await clock.sleep(1.0)
        assert not check.may_claim()
    await clock.sleep(2.0)
    assert check.may_claim()
    looking.cancel()


@in_virtual_time
async def test_a_node_waits_with_its_claims_for_the_leases_that_a_broker_forgot() -> None:
    stores = Told()
    fleet = Fleet(("a", "b", "c", "d", "e"), stores=stores)
    node = await fleet.node("n1")
    await fleet.until(lambda: len(node.health().seats) == 4, "it holds what it takes in its first pass")
    stores.now = [StoreFault("crewlet_leases", "reset", "it was put back")]
    fleet.cut.add("n1")
    await fleet.clock.sleep(1.0)
    fleet.cut.discard("n1")
    await fleet.clock.sleep(node.health().lease_ttl_s - 2.0)
    assert len(node.health().seats) == 4
    await fleet.until(lambda: len(node.health().seats) == 5, "it takes the last seat once all leases have lapsed")


@in_virtual_time
async def test_a_node_that_starts_after_counters_went_back_waits_with_its_claims_too() -> None:
    own = LocalCells(VirtualClock())
    noted = await own.open(EPOCHS_BUCKET)
    await noted.create("seat.a", encode(EpochRecord(epoch=9)))
    fleet = Fleet(("a",), find_former=own.open)
    node = await fleet.node("n1")
    await fleet.clock.sleep(node.health().lease_ttl_s - 1.0)
    assert not node.health().seats
    await fleet.until(lambda: "a" in node.health().seats, "all leases that were forgotten have lapsed")
    assert decode_epoch(await (await fleet.store.open(EPOCHS_BUCKET)).read("seat.a")).epoch == 10
    await fleet.close()


@in_virtual_time
async def test_a_node_raises_counters_that_went_back_to_what_it_had_noted_and_its_health_names_what_is_gone() -> None:
    own, stores = LocalCells(VirtualClock()), Told()
    fleet = Fleet(("a",), find_former=own.open, stores=stores)
    node = await fleet.node("n1")
    await fleet.until(lambda: "a" in node.health().seats, "it holds its seat")
    await fleet.clock.sleep(1)
    noted, epochs = await own.open(EPOCHS_BUCKET), await fleet.store.open(EPOCHS_BUCKET)
    entry = await noted.read("seat.a")
    assert entry is not None
    await noted.replace("seat.a", encode(EpochRecord(epoch=9)), expect=entry.revision)
    stores.now = [GONE, BACK]
    await fleet.clock.sleep(EVERY_S + 1)
    assert decode_epoch(await epochs.read("seat.a")).epoch == 9
    assert node.health().store_faults == {"crewlet_ledger": "it was deleted"}
    stores.now = ()
    await fleet.clock.sleep(EVERY_S + 1)
    assert node.health().store_faults is None
    await fleet.close()


def test_stores_with_which_the_same_is_wrong_are_named_together() -> None:
    health = {"status": "ok", "queue": "connected", "store_faults": {"b": "it was deleted", "a": "it was deleted"}}
    assert problem_of(health) == "What the broker keeps is damaged. a, b: it was deleted."


@pytest.mark.parametrize("faults", [None, {"crewlet_ledger": "it was deleted; restart this node"}])
def test_status_names_what_is_damaged(faults: dict[str, str] | None) -> None:
    health = {"status": "ok", "queue": "connected", "has_presence": True, "store_faults": faults}
    said = problem_of(health)
    assert (said == "") is (faults is None)
    assert faults is None or "crewlet_ledger: it was deleted; restart this node." in said
