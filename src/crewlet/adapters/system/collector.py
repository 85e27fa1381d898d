"""When this process looks for garbage in cycles."""

import gc

_YOUNG_OBJECTS = 10_000
_PASSES = 20


def calm_collector() -> None:
    """Look seldom, and never again through what is there now. For a process that serves from now on.

    The interpreter would look through all its young objects each few mails, and from time to time through everything:
    tens of milliseconds in which no lease is renewed. What a node makes for a mail is nearly all freed without it.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, _PASSES, _PASSES)
