"""Seeded chance that replays on every Python: only `random()` and `getrandbits` are drawn from the generator."""

import hashlib
import math
from collections.abc import Sequence
from random import Random
from typing import TypeVar

from crewlet.kit.uuids import in_groups

T = TypeVar("T")


class Dice:
    """One stream of draws. Streams of different names are independent, so that a draw more in one moves no other."""

    def __init__(self, seed: int, name: str) -> None:
        digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
        self._random = Random(int.from_bytes(digest[:8], "big"))
        self.random = self._random.random

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def between(self, low: float, high: float) -> float:
        return low + (high - low) * self._random.random()

    def below(self, count: int) -> int:
        """A whole number from 0 to `count` - 1."""
        return min(count - 1, int(self._random.random() * count))

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def wait(self, mean: float) -> float:
        """How long until something that happens every `mean` on average."""
        return -mean * math.log(1.0 - self._random.random())


class SimEntropy:
    """The entropy port over dice."""

    def __init__(self, dice: Dice) -> None:
        self._dice = dice

    def token(self, nbytes: int = 8) -> str:
        return f"{self._dice.bits(8 * nbytes):0{2 * nbytes}x}"

    def uuid(self) -> str:
        return in_groups(f"{self._dice.bits(128):032x}")

    def random(self) -> float:
        return self._dice.random()
