"""The refusal of something a person wrote: one sentence that says what is wrong, where, and what to do."""

from collections.abc import Sequence
from typing import Final

MOST_REFUSALS: Final = 20
"""So many of one file are told at once."""


class ConfigRefused(Exception):
    """A file, field or flag of the user's cannot be used as it stands.

    Args:
        problem: what is wrong, without a closing full stop.
        where: the place a person can go to: `company.yaml:12`, `stream.cluster.peers`, or both.
        remedy: what to write or do instead.

    The command line prints `str(error)` and ends with exit code 78.
    """

    def __init__(self, problem: str, *, where: str = "", remedy: str = "") -> None:
        self.problem = problem
        self.where = where
        self.remedy = remedy
        sentence = f"{where}: {problem}" if where else problem
        super().__init__(f"{sentence}; {remedy}." if remedy else f"{sentence}.")


class ManyRefused(ConfigRefused):
    """Several things are wrong with one file: `all` has them in the order in which they were found, 20 at most."""

    def __init__(self, found: Sequence[ConfigRefused]) -> None:
        first = found[0]
        super().__init__(first.problem, where=first.where, remedy=first.remedy)
        self.all = tuple(found)


class Refusals:
    """Gathers what is wrong with one file, so that all of it can be told at once."""

    def __init__(self) -> None:
        self._found: list[ConfigRefused] = []

    def __len__(self) -> int:
        return len(self._found)

    def add(self, refusal: ConfigRefused) -> None:
        """Keep it, once, and read on.

        Raises:
            ManyRefused: these are enough.
        """
        if any(str(refusal) == str(kept) for kept in self._found):
            return
        self._found.append(refusal)
        if len(self._found) >= MOST_REFUSALS:
            self.raise_any()

    def raise_any(self) -> None:
        """End the reading.

        Raises:
            ConfigRefused: the one that was kept; ManyRefused where there are more.
        """
        if self._found:
            raise self._found[0] if len(self._found) == 1 else ManyRefused(self._found)
