"""The machine's randomness."""

import os
import random
import secrets

from crewlet.kit.uuids import uuid_of


class SystemEntropy:
    """The entropy port over the operating system's generator."""

    def token(self, nbytes: int = 8) -> str:
        return secrets.token_hex(nbytes)

    def uuid(self) -> str:
        return uuid_of(os.urandom(16).hex(), version=4)

    def random(self) -> float:
        return random.random()
