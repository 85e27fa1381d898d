"""Every subject that Crewlet uses is built here, so that no two places can disagree about one."""

import re
from functools import lru_cache
from typing import Literal

from crewlet.company.rules import HANDLE_GRAMMAR
from crewlet.company.rules import is_handle as is_handle
from crewlet.ports.errors import Misuse
from crewlet.ports.mail import Subscription

NOTIFICATIONS = Subscription("crewlet.notifications.inbound", "notifications")
"""Company-wide inbound notifications: one group, any node may win one."""

ALL_INBOXES = "crewlet.agent.*.inbox"
ALL_MAILBOXES = "crewlet.agent.>"

MailboxKind = Literal["inbox", "control", "reflect"]


def _subject(handle: str, kind: MailboxKind) -> str:
    if not is_handle(handle):
        raise Misuse(f"{handle!r} is not a handle ({HANDLE_GRAMMAR}), so it has no topic")
    return f"crewlet.agent.{handle}.{kind}"


def inbox(handle: str) -> Subscription:
    """All work for a seat. Its group is its ownership: who attaches here is the seat."""
    return Subscription(_subject(handle, "inbox"), f"agent-{handle}")


def control(handle: str) -> Subscription:
    """Starts and completions of a seat's detached runs; apart from the inbox, which such a run holds."""
    return Subscription(_subject(handle, "control"), f"control-{handle}")


def reflect(handle: str) -> Subscription:
    """Wakes for a seat's reflection after a turn."""
    return Subscription(_subject(handle, "reflect"), f"reflect-{handle}")


@lru_cache(10_000)
def mailbox(handle: str) -> tuple[Subscription, ...]:
    """The three subscriptions that together are a seat's mailbox."""
    return inbox(handle), control(handle), reflect(handle)


def letters_of(handle: str) -> str:
    """A pattern over the topics of a seat's mailbox: what its dead letters fell out of."""
    return _subject(handle, "inbox").rpartition(".")[0] + ".*"


def seat_of(subscription: Subscription) -> str | None:
    """The handle whose mailbox a subscription belongs to, or None for anybody else's consumer."""
    tokens = subscription.topic.split(".")
    if len(tokens) != 4 or tokens[:2] != ["crewlet", "agent"] or not is_handle(tokens[2]):
        return None
    return tokens[2] if subscription in mailbox(tokens[2]) else None


def mailbox_at(topic: str) -> Subscription | None:
    """The subscription of a seat's mailbox that has this topic, if the topic is one of those."""
    tokens = topic.split(".")
    if len(tokens) != 4 or not is_handle(tokens[2]):
        return None
    return next((found for found in mailbox(tokens[2]) if found.topic == topic), None)


def event(event_type: str) -> str:
    """The record of something that happened. Never a work queue."""
    if not re.fullmatch(r"[a-z0-9_]+(\.[a-z0-9_]+)*", event_type):
        raise Misuse(f"{event_type!r} is not an event type")
    return f"crewlet.events.{event_type}"


def signal(name: str) -> str:
    """A broadcast to whoever runs now. No stream keeps it."""
    return f"crewlet.signals.{name}"


def question(name: str) -> str:
    """A question to whoever runs now. No stream keeps it."""
    return f"crewlet.questions.{name}"
