"""What the system allows this process."""

import resource

from crewlet.kit.refusal import ConfigRefused

FEWEST_FILES = 64
"""Open files that a node needs before it runs any program."""


def refuse_few_files() -> None:
    """Refuse to begin where files, sockets and programs could not be opened.

    Raises:
        ConfigRefused: says how few this process may open, and where that is set.
    """
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed != resource.RLIM_INFINITY and allowed < FEWEST_FILES:
        raise ConfigRefused(
            f"this process may open {allowed} files, and a node needs {FEWEST_FILES} and some more for each program",
            where="the limit of open files",
            remedy="raise it with `ulimit -n 1024`, or with LimitNOFILE= in the unit of a service",
        )
