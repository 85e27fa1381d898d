"""Forgetting the marks that removed keys leave in a bucket, some of them side by side."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from crewlet.adapters.nats.lane import Lane
from crewlet.adapters.nats.translate import ApiError, PurgeAnswer, StoredMessage, unavailable
from crewlet.ports.errors import Unavailable

AT_ONCE = 64
"""So many are on their way together. The server answers as many within milliseconds; others' reads wait meanwhile."""


async def purge_all(
    lane: Lane,
    stream: str,
    markers: Sequence[StoredMessage],
    turned: Callable[[], None],
    *,
    check: Callable[[], Awaitable[None]],
    timeout_s: float,
) -> int:
    """Purge each marker at its own sequence, so that a newer write of its key stays. Returns how many went.

    One that fails keeps none of the others, unless all of a batch fail: then nobody is there to ask.

    Args:
        turned: called after each batch, which takes three times `timeout_s` at most.
        check: awaited right before each batch is sent, for `timeout_s` at most. Raises Unavailable where the stream is
            not known to be the one that the markers were found in: one that was made anew gives sequences out again,
            and a purge names nothing else.
        timeout_s: for a request's turn, and for its answer.

    Raises:
        Unavailable: some may be there still. A further call finds those.

    Cancellation: what is on its way may still take effect, which harms nobody.
    """
    purged, problems = 0, list[Unavailable]()
    for first in range(0, len(markers), AT_ONCE):
        batch = markers[first : first + AT_ONCE]
        failed = len(problems)
        try:
            await check()
        except Unavailable as error:
            problems.append(error)
            break
        purging = (_purge(lane, stream, marker, timeout_s) for marker in batch)
        for answer in await asyncio.gather(*purging, return_exceptions=True):
            if isinstance(answer, Unavailable):
                problems.append(answer)
            elif isinstance(answer, BaseException):
                raise answer
            else:
                purged += answer
        turned()
        if len(problems) - failed == len(batch):
            break
    if problems:
        raise Unavailable(f"{purged} of {len(markers)} purged: {problems[0]}")
    return purged


async def _purge(lane: Lane, stream: str, marker: StoredMessage, timeout_s: float) -> int:
    """Everything of the key up to a marker. Returns 1, or 0 where it was gone by then."""
    body = {"filter": marker.subject, "seq": marker.seq + 1}
    try:
        answer = await lane.api(f"STREAM.PURGE.{stream}", body, PurgeAnswer, timeout_s=timeout_s)
    except ApiError as error:
        raise unavailable(error, stream) from error
    if not answer.success:
        raise Unavailable("the broker's answer does not say that it is done")
    return answer.purged
