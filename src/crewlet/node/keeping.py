"""How long a node remembers what it did."""

from datetime import timedelta

import structlog

from crewlet.ports.clock import Clock
from crewlet.ports.errors import Unavailable
from crewlet.ports.history import History

KEPT_S = 30 * 24 * 3600.0

_EVERY_S = 3600.0
_AT_ONCE = 500
_REST_S = 0.2
"""Between two batches, so that the turns' own writes come first."""

_log = structlog.get_logger()


async def forget_in_time(history: History, clock: Clock, kept_s: float = KEPT_S) -> None:
    """Forget turns and dispatches once they are old enough, a few at a time, for ever."""
    while True:
        try:
            before = clock.now() - timedelta(seconds=kept_s)
            while await history.prune(before, at_most=_AT_ONCE) >= _AT_ONCE:
                await clock.sleep(_REST_S)
        except Unavailable as error:
            _log.warning("history_not_pruned", error=str(error))
        await clock.sleep(_EVERY_S)
