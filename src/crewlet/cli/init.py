"""`crewlet init`: a company that runs as it is written."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer

from crewlet.cli.client import CommandFailed
from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.unusable import Unusable

FILES = ("crewlet.yaml", "company.yaml", "count_words.py")


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", readable=False, help="Where to write.", show_default=False)
    ] = Path("."),
) -> None:
    """Write crewlet.yaml, company.yaml and a small agent program, with comments. Nothing is overwritten."""
    try:
        _write_all(folder)
    except OSError as error:
        unusable = Unusable(error)
        if unusable.may_pass:
            raise CommandFailed(f"The files cannot be written: {unusable}") from error
        raise ConfigRefused(f"the folder {folder} cannot be used: {unusable}") from error
    where = "" if folder == Path(".") else f"cd {folder} && "
    print(f"Wrote {', '.join(FILES)} in {folder}/. Next, in two terminals:")
    print(f"  {where}crewlet up\n  {where}crewlet seat send counter 'How many words are these?' --wait")


def _write_all(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        if (folder / name).exists() or (folder / name).is_symlink():
            problem = "the file is there already, and nothing was written"
            raise ConfigRefused(problem, where=str(folder / name), remedy="remove it, or name another folder")
    templates = resources.files("crewlet.cli") / "templates"
    written: list[Path] = []
    try:
        for name in FILES:
            text = (templates / name).read_text(encoding="utf-8")
            with (folder / name).open("x", encoding="utf-8") as file:
                written.append(folder / name)
                file.write(text)
    except OSError:
        # A part of them would keep the next try from writing any.
        for path in written:
            path.unlink(missing_ok=True)
        raise
