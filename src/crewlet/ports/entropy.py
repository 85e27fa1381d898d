"""Randomness, behind a door so that a simulation can replay it."""

from typing import Protocol


class Entropy(Protocol):
    """A source of ids and jitter."""

    def token(self, nbytes: int = 8) -> str:
        """`2 * nbytes` lower-case hexadecimal digits that no other call returns."""
        ...

    def uuid(self) -> str:
        """A new random UUID in its canonical text form."""
        ...

    def random(self) -> float:
        """A number in [0, 1), for jitter."""
        ...
