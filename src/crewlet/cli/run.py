"""Running the command tree, and turning what goes wrong into one sentence and an exit code."""

import os
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from crewlet.cli import FAILED, INTERRUPTED, OK, REFUSED, USAGE, printing
from crewlet.kit.refusal import ConfigRefused, ManyRefused
from crewlet.ports.errors import CrewletError


def run(args: Sequence[str]) -> int:
    """Run a command other than `up` and return its exit code."""
    from crewlet.cli.app import PLAN_ONLY, app
    from crewlet.cli.usage import UsageError, sentence_of

    printing.wants_json = False
    is_plan = list(args[:1]) == ["up-plan"]
    try:
        # The parent of a node has `up` parsed here: usage and help are those of the command that was typed.
        command = ["up", *args[1:]] if is_plan else list(args)
        return _code(app(command, prog_name="crewlet", obj=PLAN_ONLY if is_plan else None, standalone_mode=False))
    except SystemExit as end:
        return _code(end.code)
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":
            print(error, file=sys.stderr)
            return USAGE
        sentence = sentence_of(error)
        _tell_programs(error, sentence, "usage")
        return tell(sentence, USAGE)
    except ConfigRefused as refusal:
        _tell_programs(refusal, str(refusal))
        for each in refusal.all if isinstance(refusal, ManyRefused) else (refusal,):
            tell(str(each), REFUSED)
        return REFUSED
    except CrewletError as error:
        _tell_programs(error, _sentence(str(error)))
        return tell(_sentence(str(error)), FAILED)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter would complain once more when it flushes at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return FAILED
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        sentence = f"{place}{error.strerror or error}."
        _tell_programs(error, sentence)
        return tell(sentence, FAILED)


def _tell_programs(error: Exception, sentence: str, word: str = "") -> None:
    """The failure on standard output, where the command was asked for JSON."""
    if printing.wants_json:
        word = word or ("config_refused" if isinstance(error, ConfigRefused) else getattr(error, "word", "failed"))
        facts: Mapping[str, Any] = getattr(error, "facts", {})
        if isinstance(error, ManyRefused):
            facts = {**facts, "details": [str(each) for each in error.all]}
        printing.print_json({**facts, "error": word, "detail": sentence})


def tell(sentence: str, code: int) -> int:
    """Say what went wrong on standard error, and pass the exit code on."""
    print(f"crewlet: {sentence}", file=sys.stderr)
    return code


def _sentence(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


def _code(code: object) -> int:
    return code if isinstance(code, int) else OK if code is None else FAILED
