"""When to start a child again that ended."""

from dataclasses import dataclass

FIRST_S = 0.5
LONGEST_S = 30.0
HEALTHY_S = 60.0


@dataclass(slots=True)
class Backoff:
    """Pauses that double from half a second to half a minute, and begin anew after a minute of health."""

    ends: int = 0
    """How often the child ended in a row without that minute of health in between."""

    def after(self, lived_s: float) -> float:
        """The pause, in seconds, after a child that lived so long."""
        self.ends = 1 if lived_s >= HEALTHY_S else self.ends + 1
        return min(LONGEST_S, FIRST_S * 2 ** min(self.ends - 1, 16))
