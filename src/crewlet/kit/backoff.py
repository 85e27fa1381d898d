"""Delays that grow."""

from dataclasses import dataclass


@dataclass(slots=True)
class Backoff:
    """Delays from `first_s`, doubling up to `ceiling_s`. Jitter is the caller's."""

    first_s: float
    ceiling_s: float
    _next_s: float = 0.0

    def next_s(self) -> float:
        """The delay before the next try, in seconds."""
        delay = self._next_s or self.first_s
        self._next_s = min(2 * delay, self.ceiling_s)
        return min(delay, self.ceiling_s)

    def reset(self) -> None:
        """Begin again with `first_s`."""
        self._next_s = 0.0
