"""A module that takes long to load, for a node that is started with this folder on its path.

While the file that STALL names is there, the module `pydantic_ai.providers.ollama` is not loaded; `.reached` beside it
says that somebody waits for it.
"""

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

_SLOW = "pydantic_ai.providers.ollama"


class _Slow:
    """Finds nothing itself."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        del path, target
        if name == _SLOW:
            file = Path(os.environ["STALL"])
            file.with_suffix(".reached").touch()
            while file.exists():
                time.sleep(0.02)


sys.meta_path.insert(0, _Slow)
