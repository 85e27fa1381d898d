"""What a process of its own would have to itself: environment, working folder, search path and modules.

They are put in place for each step of the user's code and taken away after it, since all of it runs in the process of
the tests.
"""

import importlib
import os
import sys
import time
from collections.abc import Mapping
from types import ModuleType
from typing import Any

_NOT_COPIED = ("site-packages", "dist-packages")


class Surroundings:
    """Those of one worker.

    Args:
        env: the whole environment.
        folder: the working folder, in which modules are looked for first. Modules from there are this worker's own: it
            loads them anew, and neither another worker nor a test sees them.
        patches: by module, what takes the place of what as soon as it is loaded.
    """

    def __init__(self, env: Mapping[str, str], folder: str | None, patches: Mapping[str, Mapping[str, Any]]) -> None:
        self._env = dict(env)
        folder = os.path.abspath(folder or os.getcwd())
        self._home = self._folder = os.path.realpath(folder)
        self._homes = (self._home + os.sep, folder + os.sep)
        self._patches = patches
        self._own: dict[str, ModuleType] = {}
        self._foreign: set[str] = {"__main__"}
        self._is_entered = False
        extra = [os.path.join(self._home, entry) for entry in env.get("PYTHONPATH", "").split(os.pathsep) if entry]
        self._added = [self._home, *extra]
        self._path: list[str] | None = None
        self.sleep: Any = time.sleep
        """What is `time.sleep` in here."""

    def load(self, name: str) -> ModuleType:
        """Import a module of the user's. Called in here.

        Raises:
            Exception: whatever the module raises; AttributeError when it lacks what is to be replaced in it.
        """
        importlib.invalidate_caches()
        module = importlib.import_module(name)
        for patched, replacements in self._patches.items():
            target = importlib.import_module(patched)
            if patched not in self._in_folder():
                raise ImportError(f"{patched} is not in {self._home}: replace it with pytest's monkeypatch")
            for attribute, value in replacements.items():
                getattr(target, attribute)
                setattr(target, attribute, value)
        return module

    def __enter__(self) -> None:
        if self._is_entered:
            raise RuntimeError("a step of a seat's function runs inside another one")
        self._is_entered = True
        self._outer = dict(os.environ), os.getcwd(), list(sys.path), time.sleep
        self._hidden = {name: sys.modules.pop(name) for name in self._in_folder()}
        sys.modules.update(self._own)
        _set_environment(self._env)
        os.chdir(self._folder)
        time.sleep = self.sleep
        sys.path[:] = self._path if self._path is not None else [*self._added, *sys.path]

    def __exit__(self, *_: object) -> None:
        self._env, self._folder, self._path = dict(os.environ), os.getcwd(), list(sys.path)
        environment, folder, path, time.sleep = self._outer
        _set_environment(environment)
        os.chdir(folder)
        sys.path[:] = path
        self._own = {name: sys.modules.pop(name) for name in self._in_folder()}
        sys.modules.update(self._hidden)
        self._is_entered = False

    def _in_folder(self) -> list[str]:
        """The names of the loaded modules that are from the folder."""
        found: list[str] = []
        for name in sys.modules.keys() - self._foreign:
            if self._is_own(name, sys.modules[name]):
                found.append(name)
            else:
                self._foreign.add(name)
        return found

    def _is_own(self, name: str, module: ModuleType) -> bool:
        if name == "crewlet" or (name.startswith("crewlet.") and not name.startswith("crewlet.examples.")):
            return False
        file = getattr(module, "__file__", None) or next(iter(getattr(module, "__path__", ())), None)
        if not isinstance(file, str) or not file.startswith(self._homes):
            return False
        file = os.path.realpath(file)
        if file.startswith(sys.prefix + os.sep) and not self._home.startswith(sys.prefix + os.sep):
            return False
        return file.startswith(self._home) and not any(
            part in _NOT_COPIED for part in file[len(self._home) :].split(os.sep)
        )


def _set_environment(environment: Mapping[str, str]) -> None:
    for name in os.environ.keys() - environment.keys():
        del os.environ[name]
    for name, value in environment.items():
        if os.environ.get(name) != value:
            os.environ[name] = value
