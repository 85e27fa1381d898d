"""What a topic and a pattern over topics may look like, and the short names that follow from them."""

import re
from collections.abc import Callable
from hashlib import sha256

from crewlet.ports.errors import Misuse
from crewlet.ports.mail import Subscription

_TOPIC = re.compile(r"[^\s.*>]+(\.[^\s.*>]+)+")


def is_topic(text: str) -> bool:
    """Two or more tokens between dots, none empty, without spaces and wildcards."""
    return _TOPIC.fullmatch(text) is not None


def check_group(group: str) -> None:
    """Raises Misuse: the name of a group is empty or holds what no log line could show."""
    if not group or not group.isprintable():
        raise Misuse(f"{group!r} is not a group")


def check_message(message_id: str, headers: dict[str, str] | None) -> None:
    """Raises Misuse: the id or a header is empty, not printable, or would lose spaces at its ends on the wire."""
    for text in (message_id, *(headers or {}).keys(), *(headers or {}).values()):
        if not text or not text.isprintable() or text.strip() != text:
            raise Misuse(f"{text!r} cannot be a message id or a header")


def matcher(pattern: str) -> Callable[[str], object]:
    """A predicate for topics: `*` stands for one token, `>` for one or more at the end.

    Raises:
        Misuse: an empty pattern, an empty token, or `>` before the end.
    """
    tokens = pattern.split(".")
    if any(not token for token in tokens) or ">" in tokens[:-1] or re.search(r"\s", pattern):
        raise Misuse(f"{pattern!r} is not a topic pattern")
    parts = [{"*": r"[^.]+", ">": r".+"}.get(token) or re.escape(token) for token in tokens]
    return re.compile(r"\.".join(parts)).fullmatch


def digest(subscription: Subscription) -> str:
    """What tells one `(topic, group)` from every other, whatever characters they use."""
    return sha256(f"{subscription.topic}\0{subscription.group}".encode()).hexdigest()[:16]


def readable(text: str) -> str:
    """A head for people: what a subject token or a consumer's name may hold, cut to 32 characters."""
    return re.sub(r"[^A-Za-z0-9-]", "-", text)[:32] or "-"
