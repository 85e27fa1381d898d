"""Topics, the completion ledger and the mailboxes of a company."""

import asyncio

import pytest
from structlog.testing import capture_logs

from crewlet.adapters.local.cells import LocalCells
from crewlet.duties.firing import MOST_CATCH_UP
from crewlet.mail import topics
from crewlet.mail.batching import nak_delay_s
from crewlet.mail.ledger import LEDGER_BUCKET, Ledger
from crewlet.mail.mailboxes import Mailboxes
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import Subscription
from crewlet.ports.term import Term
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time

TTL_S = 30.0


@pytest.mark.proves("SU-10")
@pytest.mark.parametrize("handle", ["", ".", "*", ">", "a.b", "A", "-a", "a b", "ünïcødé", "a" * 64, "a\n"])
def test_what_is_no_handle_gets_no_topic(handle: str) -> None:
    with pytest.raises(Misuse):
        topics.inbox(handle)
    with pytest.raises(Misuse):
        topics.mailbox(handle)


def test_a_mailbox_is_three_subscriptions_and_each_says_whose_it_is() -> None:
    inbox, control, reflect = topics.mailbox("ceo")
    assert inbox == Subscription("crewlet.agent.ceo.inbox", "agent-ceo")
    assert {topics.seat_of(each) for each in (inbox, control, reflect)} == {"ceo"}
    assert topics.seat_of(Subscription("crewlet.agent.ceo.inbox", "somebody-else")) is None
    assert topics.seat_of(Subscription("crewlet.agent.inbox", "agent-ceo")) is None


@pytest.mark.parametrize("name", ["", "a b", "a.*", "A"])
def test_what_is_no_event_type_gets_no_topic(name: str) -> None:
    with pytest.raises(Misuse):
        topics.event(name)


async def _ledger() -> Ledger:
    return Ledger(await LocalCells(VirtualClock()).open(LEDGER_BUCKET))


@pytest.mark.proves("LG-07")
@in_virtual_time
async def test_a_trigger_recorded_by_many_at_once_stays_as_the_first_said() -> None:
    ledger = await _ledger()
    recording = (ledger.record("ceo", ["t"], outcome="delivered", turn_id=f"run-{n}") for n in range(16))
    assert await asyncio.gather(*recording) == [True] * 16
    first = await ledger.completion("ceo", "t")
    assert first is not None and first.turn_id.startswith("run-")
    assert await ledger.record("ceo", ["t"], outcome="failed", turn_id="later")
    assert await ledger.record("ceo", ["t", "u"], outcome="failed", turn_id="later")
    assert await ledger.completion("ceo", "t") == first


@pytest.mark.proves("LG-09")
@in_virtual_time
async def test_nothing_is_recorded_for_no_seat_or_no_triggers() -> None:
    ledger = await _ledger()
    await ledger.record("", ["t"], outcome="delivered")
    await ledger.record("ceo", [], outcome="delivered")
    assert await ledger.finished("", ["t"]) == {}
    assert await ledger.finished("ceo", []) == {}
    assert await ledger.finished("ceo", ["t"]) == {}


@pytest.mark.proves("LG-12")
def test_the_ledger_remembers_longer_than_a_message_can_come_back_or_a_schedule_is_caught_up() -> None:
    naks_s = sum(nak_delay_s(delivery) for delivery in range(1, 26))
    assert LEDGER_BUCKET.max_age_s == 7 * 24 * 3600 > max(naks_s, MOST_CATCH_UP.total_seconds())


@in_virtual_time
async def test_any_text_can_be_the_id_of_a_trigger_and_no_two_share_a_record() -> None:
    ledger = await _ledger()
    ids = ["a.b", "a/b", "a=b", "a_b", "a b", "*", ">", "ü", "", "a=2eb", "A.B"]
    for number, trigger in enumerate(ids):
        await ledger.record("ceo", [trigger], outcome="delivered", turn_id=str(number), term=Term("seat:ceo", "n:1", 3))
    for number, trigger in enumerate(ids):
        completion = await ledger.completion("ceo", trigger)
        assert completion is not None
        assert (completion.turn_id, completion.owner, completion.epoch) == (str(number), "n:1", 3)


class _Office:
    """The mailboxes of one seat, behind a broker that can be told to fail."""

    def __init__(self) -> None:
        self.clock = VirtualClock()
        self.is_down = False
        self.mail = TwinMail(TwinBroker(self.clock, ack_window_s=TTL_S), clock=self.clock, fault=self._fault)
        self.mailboxes = Mailboxes(self.mail, self.clock, alarm_after_s=TTL_S)

    async def _fault(self, request: str) -> None:
        if self.is_down and request == "ensure_subscription":
            raise Unavailable("nobody answers")


@in_virtual_time
async def test_mailboxes_are_made_once_and_only_what_is_missing_later() -> None:
    office = _Office()
    await office.mail.start()
    assert await office.mailboxes.ensure(["ceo", "cfo"]) == 6
    assert await office.mailboxes.ensure(["ceo", "cfo", "cto"]) == 3
    assert await office.mailboxes.ensure(["ceo"]) == 0


@pytest.mark.proves("SU-04")
@in_virtual_time
async def test_a_mailbox_that_cannot_be_made_raises_one_alarm_a_ttl_and_no_sooner() -> None:
    office = _Office()
    await office.mail.start()
    office.is_down = True
    with capture_logs() as logs:
        making = asyncio.create_task(office.mailboxes.ensure_until_made(["ceo"]))
        await asyncio.sleep(TTL_S - 1)
        assert logs == []
        await asyncio.sleep(3 * TTL_S)
        assert [line["event"] for line in logs] == ["seat_mailboxes_not_made"] * 3
        office.is_down = False
        assert await making == 3
    with capture_logs() as logs:
        office.is_down = True
        making = asyncio.create_task(office.mailboxes.ensure_until_made(["cfo"]))
        await asyncio.sleep(TTL_S - 1)
        assert logs == []
        making.cancel()
