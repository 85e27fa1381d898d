"""When the mailbox of a seat that left the company goes: decisions over records, without doing anything.

Who reads and writes is `crewlet.duties.retiring` for the sweep, and `mailboxes` for a node that wants a mailbox back.
"""

import enum
from datetime import datetime, timedelta

from crewlet.mail.registry import MailboxRecord

GRACE_S = 24 * 3600.0
"""How long the mail of a removed seat is kept after its absence was first noticed."""

LONGEST_BUDGET_S = 30.0
"""One retirement acts no longer than this, nor longer than half the TTL of the lease that it holds."""

TAKE_OVER_AFTER_S = 2 * LONGEST_BUDGET_S
"""A retirement older than this is not waited for by a node that wants the mailbox back."""

RESUME_AFTER_S = 15 * 60.0
"""A mark older than this was left behind by a sweep that died."""


class Verdict(enum.Enum):
    """What a sweep does about one seat."""

    LEAVE = enum.auto()
    REGISTER = enum.auto()
    """In the company, and without a record: write one, so that it can be missed later."""
    DISCOVER = enum.auto()
    """Known to the broker alone: write a record that is absent from now on."""
    RESTORE = enum.auto()
    """In the company, and something of its mailbox is missing: make it."""
    RETURN = enum.auto()
    """Back in the company: forget the absence."""
    RECOVER = enum.auto()
    """Back in the company, and a retirement of it died half way: forget both and make the mailbox again."""
    STAMP = enum.auto()
    """Missed for the first time: write down when."""
    RETIRE = enum.auto()
    """Missed for the whole grace."""
    RESUME = enum.auto()
    """A retirement of it died half way: finish it."""


def verdict(
    record: MailboxRecord | None, *, is_in_company: bool, is_whole: bool, now: datetime, grace_s: float
) -> Verdict:
    """What to do about one seat.

    Args:
        record: its record, or None where there surely is none.
        is_in_company: whether the roster in force has it.
        is_whole: False only where the broker surely lacks some of its mailbox.
        now: the store's clock.
        grace_s: how long a removed seat's mail is kept.
    """
    if record is None:
        return Verdict.REGISTER if is_in_company else Verdict.DISCOVER
    if record.retiring_since is not None:
        if now - record.retiring_since < timedelta(seconds=RESUME_AFTER_S):
            return Verdict.LEAVE
        return Verdict.RECOVER if is_in_company else Verdict.RESUME
    if is_in_company:
        if record.absent_since is not None:
            return Verdict.RETURN
        return Verdict.LEAVE if is_whole else Verdict.RESTORE
    if record.absent_since is None:
        return Verdict.STAMP
    is_due = now - record.absent_since >= timedelta(seconds=grace_s)
    return Verdict.RETIRE if is_due else Verdict.LEAVE


def may_take_over(record: MailboxRecord, now: datetime) -> bool:
    """Whether a retirement has had its time, so that a node of which the seat is part again goes on without it."""
    return record.retiring_since is not None and now - record.retiring_since >= timedelta(seconds=TAKE_OVER_AFTER_S)


def was_taken_over(found: MailboxRecord | None) -> bool:
    """Whether a retirement that finds its mark gone must put the mailbox back: somebody wants the seat's mail kept.

    A peer's own mark, an absence that a peer left standing, or a record that a peer took away with the mailbox say the
    opposite.
    """
    return found is not None and found.is_clean


def budget_s(lease_ttl_s: float) -> float:
    """How long one retirement may act, from before it claims the seat.

    Its last delete is then sent, and has half a TTL to arrive, while the lease still keeps every node out.
    """
    return min(LONGEST_BUDGET_S, lease_ttl_s / 2)
