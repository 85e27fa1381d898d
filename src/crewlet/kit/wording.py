"""Instants and counts in sentences for people. Pure."""

from datetime import UTC, datetime


def instant(at: datetime) -> str:
    """An instant as the command line shows it: UTC, to the second, as in `2030-01-31T18:00:00Z`."""
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def counted(count: int, one: str, many: str = "") -> str:
    """A number and its noun, as in `1 message` and `2 messages`; `many` where an s does not do."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"
