"""Keeping secrets out of what a server says of itself. Pure."""

from collections.abc import Iterable
from typing import Any, Final, cast

from crewlet.kit import lines

SHOWN_CHARS: Final = 500
MIN_SECRET_CHARS: Final = 4
"""A shorter text is no secret, and stands in too much that is none."""

_MASK = "[redacted]"


class Redaction:
    """Replaces the given texts wherever they stand."""

    def __init__(self, secrets: Iterable[str]) -> None:
        # The longest first: one secret may hold another.
        self._secrets = sorted({text for text in secrets if len(text) >= MIN_SECRET_CHARS}, key=len, reverse=True)

    def __call__(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, _MASK)
        return text

    def within(self, value: Any) -> Any:
        """A value of JSON without them, wherever in it they stand."""
        match value:
            case str():
                return self(value)
            case list():
                return [self.within(item) for item in cast("list[Any]", value)]
            case dict():
                pairs = cast("dict[str, Any]", value).items()
                return {self(key): self.within(item) for key, item in pairs}
            case _:
                return value

    def tail(self, text: str, *, is_cut: bool) -> str:
        """The end of an output on one line, short enough for a sentence.

        Args:
            is_cut: the text is the end of a longer one, and may begin in the middle of a secret.
        """
        if is_cut:
            text = text[self._cut_at(text) :]
        text = self(text)
        return lines.last_words(text)[:SHOWN_CHARS]

    def _cut_at(self, text: str) -> int:
        """Past whatever the beginning could be the rest of."""
        return max(
            (
                length
                for secret in self._secrets
                for length in range(1, min(len(secret), len(text) + 1))
                if secret.endswith(text[:length])
            ),
            default=0,
        )
