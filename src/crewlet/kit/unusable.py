"""Why a folder cannot be used, in words for whoever named it."""

import errno
from pathlib import Path

_MAY_PASS = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})


class Unusable(Exception):
    """A folder cannot be used. `str(error)` says why and what to do, as part of a sentence.

    Attributes:
        may_pass: it may be usable later as it stands, as once a disk has room; else somebody has to change something.
    """

    def __init__(self, error: OSError) -> None:
        self.may_pass = error.errno in _MAY_PASS
        place = Path(str(error.filename)) if error.filename is not None else None
        why = (error.strerror or str(error)).lower()
        if place is not None and isinstance(error, FileExistsError | NotADirectoryError):
            place, why = _in_the_way(place)
        remedy = "make room" if error.errno in (errno.ENOSPC, errno.EDQUOT) else "name one that this user may write to"
        super().__init__(f"{f'{place}: ' if place is not None else ''}{why}; {remedy}")


def _in_the_way(place: Path) -> tuple[Path, str]:
    """What stands where a folder should be."""
    for path in reversed((place, *place.parents)):
        if path.is_symlink() and not path.exists():
            return path, "a link that leads nowhere"
        if path.exists() and not path.is_dir():
            return path, "it is not a folder"
    return place, "a file was in the way"
