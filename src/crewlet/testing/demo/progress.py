"""What a watcher sees: a line for each thing that happens, and on a terminal the fleet as it stands."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TextIO

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

_PLAIN_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Scene:
    """The fleet at one moment.

    Attributes:
        urls: by node, where it answers; None when it does not.
        seats: by node, how many seats it holds.
        state: by node, a word for people: `up`, `killed`, `frozen`.
        sent: messages acknowledged so far, the seats' own included.
        finished: messages that runs have ended for.
        reports: reports written.
    """

    urls: Mapping[str, str | None]
    seats: Mapping[str, int]
    state: Mapping[str, str]
    sent: int
    finished: int
    reports: int


class Progress(Protocol):
    def say(self, line: str) -> None:
        """Something happened."""
        ...

    def show(self, scene: Scene) -> None:
        """The fleet as it stands; called about once a second."""
        ...

    def close(self) -> None:
        """Leave the terminal as it was."""
        ...


def make_progress(stream: TextIO) -> Progress:
    """Live on a terminal, plain lines elsewhere."""
    console = Console(file=stream, highlight=False)
    return _Live(console) if console.is_terminal and not console.is_dumb_terminal else Plain(stream)


@dataclass(slots=True)
class Plain:
    """Lines with the seconds since the start."""

    stream: TextIO = field(default_factory=lambda: sys.stdout)
    _began: float = field(default_factory=time.monotonic)
    _shown: float = 0.0

    def say(self, line: str) -> None:
        print(f"{time.monotonic() - self._began:6.1f} s  {line}", file=self.stream, flush=True)

    def show(self, scene: Scene) -> None:
        if time.monotonic() - self._shown < _PLAIN_EVERY_S:
            return
        self._shown = time.monotonic()
        nodes = ", ".join(f"{node} {_state(scene, node)}" for node in scene.urls)
        self.say(f"{nodes}; {scene.sent} messages sent, {scene.finished} worked, {scene.reports} reports")

    def close(self) -> None:
        pass


class _Live:
    """A table of the nodes that stays below the lines."""

    def __init__(self, console: Console) -> None:
        self._began = time.monotonic()
        # No refresh thread: processes are started from here, and a fork beside threads is asking for trouble.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._live.start()

    def say(self, line: str) -> None:
        stamp = Text(f"{time.monotonic() - self._began:6.1f} s  ", style="dim")
        self._live.console.print(stamp + Text(line))

    def show(self, scene: Scene) -> None:
        table = Table(box=None, pad_edge=False)
        for column in ("node", "state", "seats", "watch it at"):
            table.add_column(column)
        for node, url in scene.urls.items():
            style = "" if scene.state[node] == "up" else "bold red"
            watch = f"{url}/query/fleet" if url else "-"
            table.add_row(node, Text(scene.state[node], style=style), str(scene.seats.get(node, 0)), watch)
        counts = f"{scene.sent} messages sent, {scene.finished} worked, {scene.reports} reports"
        self._live.update(Group(Text(""), table, Text(counts)), refresh=True)

    def close(self) -> None:
        self._live.stop()


def _state(scene: Scene, node: str) -> str:
    if scene.state[node] != "up":
        return scene.state[node]
    return f"holds {scene.seats.get(node, 0)}"
