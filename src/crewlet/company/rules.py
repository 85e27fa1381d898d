"""The grammar of names and labels, for documents and settings alike. Pure."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import SplitResult, urlsplit

from crewlet.kit.fields import Field

MAX_HANDLE_CHARS: Final = 63
HANDLE_GRAMMAR: Final = f"[a-z0-9][a-z0-9-]{{0,{MAX_HANDLE_CHARS - 1}}}"
NODE_ID_GRAMMAR: Final = "[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
ROLES: Final = ("data", "ingress", "seats", "workers")
"""What a node may offer the fleet, all of it unless its settings name less."""

MAX_LABEL_KEY_BYTES: Final = 63
MAX_LABEL_VALUE_BYTES: Final = 256

_HANDLE = re.compile(HANDLE_GRAMMAR)
_NODE_ID = re.compile(NODE_ID_GRAMMAR)


def is_handle(text: str) -> bool:
    """Whether a text can be a seat's handle: no such text is a subject wildcard or splits a subject."""
    return _HANDLE.fullmatch(text) is not None


def is_node_id(text: str) -> bool:
    """Whether a text can be a node's id."""
    return _NODE_ID.fullmatch(text) is not None


def label_key_remedy(text: str) -> str:
    """What to do about a text that cannot be a label's key; "" for one that can."""
    if not text or len(text.encode(errors="replace")) > MAX_LABEL_KEY_BYTES or any(char.isspace() for char in text):
        return f"use 1 to {MAX_LABEL_KEY_BYTES} bytes without spaces"
    return "" if text.isprintable() else "remove the control characters"


def is_label_value(text: str) -> bool:
    """Whether a text can be a label's value."""
    return text.isprintable() and len(text.encode()) <= MAX_LABEL_VALUE_BYTES


def read_handle(field: Field) -> str:
    """A handle.

    Raises:
        ConfigRefused: it is outside the grammar.
    """
    text = field.text().strip()
    if not is_handle(text):
        remedy = "use 1 to 63 lower-case letters, digits and hyphens, beginning with a letter or digit"
        field.refuse(f"{text!r} cannot be a handle", remedy)
    return text


def read_node_id(field: Field) -> str:
    """A node's id.

    Raises:
        ConfigRefused: it is outside the grammar.
    """
    text = field.text().strip()
    if not is_node_id(text):
        field.refuse(f"{text!r} cannot be a node id", NODE_ID_REMEDY)
    return text


NODE_ID_REMEDY: Final = "use 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a letter or digit"


def read_address(field: Field, remedy: str, *, secret: str) -> tuple[str, SplitResult]:
    """An address over HTTP, as it stands and in its parts. It shows in lists and logs, so it holds no secret.

    Args:
        secret: the sentence that refuses a user or password.

    Raises:
        ConfigRefused: it refers to variables, is no address over HTTP, or holds a user or password.
    """
    text = field.line_of_text()
    if "${" in text:
        field.refuse("an address may not refer to variables: it shows in lists and logs", remedy)
    try:
        parts = urlsplit(text)
        is_usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        field.refuse(f"{text!r} is no address", remedy)
    if not is_usable or any(char.isspace() for char in text):
        field.refuse(f"{text!r} is no address over HTTP", remedy)
    if parts.username is not None or parts.password is not None:
        field.refuse(secret, remedy)
    return text, parts


def read_labels(field: Field) -> Mapping[str, str]:
    """Labels, trimmed on both sides and sorted by key.

    Raises:
        ConfigRefused: an empty, too long or spaced key, a value that is none, or two keys that trimming makes equal.
    """
    labels: dict[str, str] = {}
    lines: dict[str, int] = {}
    for raw, value in field.pairs():
        key = raw.strip()
        if remedy := label_key_remedy(key):
            value.refuse(f"{raw!r} cannot be a label key", remedy)
        if key in labels:
            value.refuse(f"the label {key!r} is here twice (first on line {lines[key]})", "keep one of them")
        text = value.text().strip()
        if not is_label_value(text):
            value.refuse("this label value is too long or has control characters", "write a short plain text")
        labels[key], lines[key] = text, value.line
    return dict(sorted(labels.items()))
