"""The machine's randomness."""

import random
import secrets
import uuid


class SystemEntropy:
    """The entropy port over the operating system's generator."""

    def token(self, nbytes: int = 8) -> str:
        return secrets.token_hex(nbytes)

    def uuid(self) -> str:
        return str(uuid.uuid4())

    def random(self) -> float:
        return random.random()
