"""Which documents the demonstration works on."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MAX_DOCUMENTS = 60
MAX_BYTES = 200_000
MAX_FOLDERS = 5_000
_NOT_DOCUMENTS = frozenset(
    {"node_modules", "__pycache__", "site-packages", "dist", "build", "target", "vendor", "venv"}
)


class NoDocuments(Exception):
    """There is no Markdown where it was looked for. Says where."""


@dataclass(frozen=True, slots=True)
class Library:
    """A folder with documents: paths relative to it, with `/`, sorted. Bounded in number and size."""

    root: Path
    paths: tuple[str, ...]

    def text(self, path: str) -> str:
        """A document's text; what is not UTF-8 in it is replaced."""
        return (self.root / path).read_text("utf-8", errors="replace")


def find_documents(asked: Path | None, example: Path) -> Library:
    """The documents of the folder asked for; else of the current one; else those that come with the example.

    Raises:
        NoDocuments: the folder asked for is none, or has no Markdown.
    """
    if asked is not None:
        if not asked.is_dir():
            raise NoDocuments(f"{asked} is not a folder; give --docs the folder of your Markdown documents")
        library = _library(asked)
        if not library.paths:
            raise NoDocuments(f"{asked} has no Markdown documents (*.md); give --docs another folder")
        return library
    here = _library(Path.cwd())
    return here if here.paths else _library(example)


def _library(root: Path) -> Library:
    root = root.resolve()
    paths: list[str] = []
    for path in _markdown(root):
        paths.append(path.relative_to(root).as_posix())
        if len(paths) == MAX_DOCUMENTS:
            break
    return Library(root, tuple(sorted(paths)))


def _markdown(root: Path) -> Iterator[Path]:
    """Upper folders first, so that a bound leaves out what lies deepest."""
    level = [root]
    seen = 0
    while level:
        below: list[Path] = []
        for folder in level:
            seen += 1
            if seen > MAX_FOLDERS:
                return
            try:
                entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            except OSError:
                continue
            for entry in entries:
                if entry.name.startswith(".") or entry.name in _NOT_DOCUMENTS or entry.is_symlink():
                    continue
                if entry.is_dir():
                    if not Path(entry.path, "pyvenv.cfg").exists():
                        below.append(Path(entry.path))
                elif _is_document(entry):
                    yield Path(entry.path)
        level = below


def _is_document(entry: "os.DirEntry[str]") -> bool:
    try:
        return entry.name.lower().endswith(".md") and 0 < entry.stat().st_size <= MAX_BYTES
    except OSError:
        return False
