"""The kinds of seat: one module each.

Belongs here: how one kind of agent is brought from mail to outcome.
Does not: screening, the ledger, settling the delivery.
"""

from collections.abc import Callable, Mapping
from typing import assert_never

from crewlet.company.model import CommandRunner, LlmRunner, PythonRunner, ScriptRunner, Seat
from crewlet.ports.clock import Clock
from crewlet.ports.entropy import Entropy
from crewlet.ports.programs import Programs
from crewlet.turns.runners.command import CommandTurns, ProgramBroke, minimal_env, no_variable
from crewlet.turns.runners.llm import LlmTurns
from crewlet.turns.runners.python import PythonTurns
from crewlet.turns.runners.script import ScriptTurns
from crewlet.turns.turn import Runner

__all__ = ["CommandTurns", "LlmTurns", "ProgramBroke", "PythonTurns", "ScriptTurns", "minimal_env", "runner_for"]


def runner_for(
    seat: Seat,
    *,
    programs: Programs,
    clock: Clock,
    entropy: Entropy,
    base_env: Mapping[str, str],
    default_cwd: str | None = None,
    variable: Callable[[str], str | None] = no_variable,
) -> Runner:
    """The runner of a seat's kind.

    Args:
        base_env: what every program gets beside its seat's variables; `minimal_env(os.environ)` on a node.
        default_cwd: the folder of the company document.
        variable: the value of a variable of the node by its name, for the references of seats.
    """
    match seat.runner:
        case ScriptRunner():
            return ScriptTurns(clock=clock)
        case CommandRunner():
            return CommandTurns(
                seat, programs, clock=clock, base_env=base_env, default_cwd=default_cwd, variable=variable
            )
        case PythonRunner():
            return PythonTurns(seat, programs, clock=clock, base_env=base_env, variable=variable)
        case LlmRunner():
            return LlmTurns(seat, clock=clock, entropy=entropy, variable=variable)
        case _:
            assert_never(seat.runner)
