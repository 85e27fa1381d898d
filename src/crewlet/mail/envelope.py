"""What is on the wire: one event, additive for ever."""

from typing import Any

import msgspec

LEDGERED_TYPES = frozenset({"task_assigned", "external_notification", "a2a_request", "a2a_message"})
"""The four types whose completion is recorded. Closed: a new kind of trigger is added here, not merely published."""


class Envelope(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One event.

    Attributes:
        id: names the event across re-deliveries and re-runs; for mail also the broker's message id.
        type: what happened; an unknown type is carried, logged and dropped by whoever cannot use it.
        timestamp: when it happened, UTC, RFC 3339.
        source: who says so: `person`, `program`, `seat:{handle}`, or `node` where a node tells what happened.
        to: the handle it is addressed to, or "".
        subject: one line for people, or "".
        body: the text of the mail.
        conversation: names the thread it belongs to; "" puts it in one of its own.
        chat_message: the message's identity on the chat backend that it came from, or "".
        payload: typed content beside the text.
        trace_id, span_id: hexadecimal, for tracing, or "".
        delegation_depth: how many seats passed the work on.
        parent_turn_id: the turn that sent it, or "".
        node: the node that published it; stamped at the publish when absent.
        digest: of what its sender wrote, where the sender chose the id (see `reuse`); "" elsewhere.
    """

    id: str
    type: str
    timestamp: str
    source: str
    to: str = ""
    subject: str = ""
    body: str = ""
    conversation: str = ""
    chat_message: str = ""
    payload: dict[str, Any] = {}
    trace_id: str = ""
    span_id: str = ""
    delegation_depth: int = 0
    parent_turn_id: str = ""
    node: str = ""
    digest: str = ""

    @property
    def is_ledgered(self) -> bool:
        return self.type in LEDGERED_TYPES
