"""How many tokens may be spent in a day, a week and a month, and what has been: pure.

Windows are those of the company's own calendar: a day begins at midnight where the company is, a week on Monday, a
month on its first day. Instants are the store's, so that every node is in the same window.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, tzinfo
from typing import Literal, assert_never

import msgspec

Window = Literal["day", "week", "month"]
WINDOWS: tuple[Window, ...] = ("day", "week", "month")

WARNED_AT = 0.8
"""The part of a cap at which people are told, once a window."""


class Caps(msgspec.Struct, frozen=True, omit_defaults=True):
    """The most tokens that may be spent in a window; None sets no limit, 0 allows nothing."""

    day: int | None = None
    week: int | None = None
    month: int | None = None

    def of(self, window: Window) -> int | None:
        return getattr(self, window)

    @property
    def is_unlimited(self) -> bool:
        return self == _NO_CAPS


_NO_CAPS = Caps()


class Count(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens spent in one window.

    Attributes:
        start: the first day of the window.
        warned: the cap of which people have been told that most of it is spent; 0 when they have not.
    """

    start: date
    tokens: int = 0
    warned: int = 0


class Spent(msgspec.Struct, frozen=True):
    """What one spender has spent, in the newest window of each kind."""

    windows: dict[Window, Count] = {}

    def tokens(self, window: Window, today: date) -> int:
        """Spent in the window that this day lies in."""
        count = self.windows.get(window)
        return count.tokens if count is not None and count.start == start_of(window, today) else 0


@dataclass(frozen=True, slots=True)
class Over:
    """A cap is reached.

    Attributes:
        spender: who.
        window: which cap; the one that lasts longest, when several are.
        spent, cap: tokens.
        until: when the window ends.
    """

    spender: str
    window: Window
    spent: int
    cap: int
    until: datetime

    def __str__(self) -> str:
        return f"{self.spender} has spent {self.spent} of {self.cap} tokens this {self.window}"


def start_of(window: Window, day: date) -> date:
    """The first day of the window that a day lies in."""
    match window:
        case "day":
            return day
        case "week":
            return day - timedelta(days=day.weekday())
        case "month":
            return day.replace(day=1)
        case _:
            assert_never(window)


def end_of(window: Window, now: datetime, zone: tzinfo) -> datetime:
    """When the window ends that an instant lies in, in that zone: midnight there, also on a day of 23 or 25 hours."""
    start = start_of(window, now.astimezone(zone).date())
    match window:
        case "day":
            after = start + timedelta(days=1)
        case "week":
            after = start + timedelta(days=7)
        case "month":
            after = (start + timedelta(days=31)).replace(day=1)
        case _:
            assert_never(window)
    return datetime.combine(after, time(), zone)


def charged(spent: Spent, tokens: int, today: date) -> Spent:
    """The same with so many tokens more, in the windows that this day lies in."""
    windows: dict[Window, Count] = {}
    for window in WINDOWS:
        start, before = start_of(window, today), spent.windows.get(window)
        if before is None or before.start < start:
            windows[window] = Count(start, tokens)
        else:  # also where another node was asked a moment later, in the next window already
            windows[window] = msgspec.structs.replace(before, tokens=before.tokens + tokens)
    return Spent(windows)


def over(spender: str, spent: Spent, caps: Caps, now: datetime, zone: tzinfo) -> Over | None:
    """The cap that is reached, if one is: nothing more may be spent until its window ends."""
    today = now.astimezone(zone).date()
    reached = [
        Over(spender, window, tokens, cap, end_of(window, now, zone))
        for window in WINDOWS
        if (cap := caps.of(window)) is not None and (tokens := spent.tokens(window, today)) >= cap
    ]
    return max(reached, key=lambda each: each.until, default=None)


def warnings(spent: Spent, caps: Caps, today: date) -> Iterator[tuple[Window, int, int]]:
    """Each cap of which four fifths are spent and nobody has been told: window, tokens, cap."""
    for window in WINDOWS:
        cap, count = caps.of(window), spent.windows.get(window)
        if not cap or count is None or count.start != start_of(window, today):
            continue
        if count.tokens >= WARNED_AT * cap and count.warned != cap:
            yield window, count.tokens, cap


def warned(spent: Spent, told: Mapping[Window, int]) -> Spent:
    """The same with these caps noted as told."""
    return Spent(
        {
            window: msgspec.structs.replace(count, warned=told[window]) if window in told else count
            for window, count in spent.windows.items()
        }
    )
