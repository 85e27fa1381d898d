"""A give-back that stands still in its middle, for an `up` that is started with this folder on its path.

STAND_AT names the point at which its helper stops itself, each time: as it `begin`s, or with its hand-back of `mail` or
of `leases` in the making, past every look at the time. SIGCONT has it go on.
"""

import os
import signal
import sys

from crewlet.supervisor.natswire import Question
from crewlet.supervisor.remains import Held, InHand


def _stand() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_nak, _release = InHand.nak, Held.release
_stood: list[bool] = []


def _nak_later(self: InHand) -> Question:
    _stand_once()
    return _nak(self)


def _release_later(self: Held) -> Question:
    _stand_once()
    return _release(self)


def _stand_once() -> None:
    if not _stood:
        _stood.append(True)
        _stand()


if "crewlet.supervisor.giveback" in sys.orig_argv:
    match os.environ["STAND_AT"]:
        case "begin":
            _stand()
        case "mail":
            InHand.nak = _nak_later
        case _:
            Held.release = _release_later
