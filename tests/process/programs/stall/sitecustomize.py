"""A module that takes long to load, for a node that is started with this folder on its path.

While the file that STALL names is there, the module `pydantic_ai.providers.ollama` is not loaded; `.reached` beside it
says that somebody waits for it.
"""

import os
import sys
import time
from collections.abc import Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import ModuleType

_SLOW = "pydantic_ai.providers.ollama"


class _SlowLoader(SourceFileLoader):
    """Waits where only whoever wants this module waits along."""

    def exec_module(self, module: ModuleType) -> None:
        file = Path(os.environ["STALL"])
        file.with_suffix(".reached").touch()
        while file.exists():
            time.sleep(0.02)
        super().exec_module(module)


class _Finder:
    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != _SLOW:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _SlowLoader(name, spec.origin)
        return spec


sys.meta_path.insert(0, _Finder)
