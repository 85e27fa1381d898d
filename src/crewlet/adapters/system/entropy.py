"""The machine's randomness."""

import os
import random
import secrets


class SystemEntropy:
    """The entropy port over the operating system's generator."""

    def token(self, nbytes: int = 8) -> str:
        return secrets.token_hex(nbytes)

    def uuid(self) -> str:
        # Version 4 and its variant by hand: `uuid4` takes several times as long.
        digits = os.urandom(16).hex()
        variant = "89ab"[int(digits[16], 16) & 3]
        return f"{digits[:8]}-{digits[8:12]}-4{digits[13:16]}-{variant}{digits[17:20]}-{digits[20:]}"

    def random(self) -> float:
        return random.random()
