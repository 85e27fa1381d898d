"""Mail whose burial meets a defect of our own: it is let go of, so that it comes back, and holds up nothing beside."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest
from structlog.testing import capture_logs

from crewlet.ports.mail import Ack, BatchOptions, Defer, Delivery, Outcome, Subscription
from crewlet.testing.contracts.mailworld import Desk, send
from crewlet.testing.twins.mail import TwinMail
from crewlet.testing.twins.mailbroker import TwinBroker
from crewlet.testing.virtual import VirtualClock, in_virtual_time, until

INBOX = Subscription("crewlet.agent.alice.inbox", "agent-alice")
WINDOW_S = 30.0


@in_virtual_time
async def test_mail_past_its_budget_that_cannot_be_buried_for_a_defect_comes_back_and_the_rest_is_worked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = TwinBroker(VirtualClock(), ack_window_s=WINDOW_S, delivery_budget=1)
    mail = TwinMail(broker)
    await mail.start()
    bury, tries = broker.bury, list[str]()

    def broken_once(subject: str, *more: Any) -> Any:
        tries.append(subject)
        if len(tries) == 1:
            raise RuntimeError("a defect")
        return bury(subject, *more)

    monkeypatch.setattr(broker, "bury", broken_once)
    desk = Desk([Defer("its only delivery")])
    attachment = await mail.attach(INBOX, desk, good_until=math.inf, options=BatchOptions(max_messages=1))
    await send(mail, INBOX.topic, "e1")
    await until(lambda: attachment.is_quiesced)
    await send(mail, INBOX.topic, "e2", "e3")
    attachment.reconfigure(BatchOptions(max_messages=10))
    with capture_logs() as logs:
        attachment.unquiesce()
        await until(lambda: desk.ids == ["e1", "e2", "e3"])
        for _ in range(6):
            attachment.prolong(math.inf)
            await asyncio.sleep(WINDOW_S / 3)
    assert [letter.headers["Crewlet-Message-Id"] for letter in broker.dead_letters] == ["e1"]
    assert len(tries) == 2 and attachment.in_hand == 0
    assert "mail_pass_broke" not in [line["event"] for line in logs]
    await mail.stop()


@in_virtual_time
async def test_mail_whose_hand_back_meets_a_defect_comes_back_when_its_window_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    broker = TwinBroker(VirtualClock(), ack_window_s=WINDOW_S)
    mail = TwinMail(broker)
    await mail.start()
    nak, tries = broker.nak, list[int]()

    def broken_once(subscription: Subscription, sequence: int, delay_s: float) -> None:
        tries.append(sequence)
        if len(tries) == 1:
            raise RuntimeError("a defect")
        nak(subscription, sequence, delay_s)

    async def hold(_: Sequence[Delivery]) -> Outcome:
        attachment.hold("landed in between")
        return Ack()

    monkeypatch.setattr(broker, "nak", broken_once)
    desk = Desk([hold])
    await mail.ensure_subscription(INBOX)
    await send(mail, INBOX.topic, "e1", "e2", "e3")
    attachment = await mail.attach(INBOX, desk, good_until=math.inf, options=BatchOptions(max_messages=10))
    await until(lambda: tries != [])
    await asyncio.sleep(1)
    assert attachment.in_hand == 0
    attachment.unhold("landed in between")
    for _ in range(6):
        attachment.prolong(math.inf)
        await asyncio.sleep(WINDOW_S / 3)
    assert sorted(desk.ids) == ["e1", "e2", "e3"] and attachment.in_hand == 0
    await mail.stop()
