"""Reading the steps of a script seat."""

from collections.abc import Collection
from difflib import get_close_matches
from typing import Final

from crewlet.company.model import Fail, Reply, ScriptStep, Send, Sleep
from crewlet.company.rules import read_handle
from crewlet.kit.fields import Field

MAX_SLEEP_S: Final = 24 * 3600
_STEPS: Final = ("reply", "send", "sleep", "fail")

Sends = list[tuple[Field, str]]
"""Where a script sends to and the handle it names, to be checked once all roles are known."""


def read_steps(field: Field, sends: Sends) -> tuple[ScriptStep, ...]:
    """The steps, in order. Handles that they send to are added to `sends`.

    Raises:
        ConfigRefused: a member that is not exactly one known step.
    """
    steps = [item.read(lambda item: _read_step(item, sends), None) for item in field.items()]
    return tuple(step for step in steps if step is not None)


def _read_step(item: Field, sends: Sends) -> ScriptStep:
    block = item.block(_STEPS)
    if len(block.node.values) != 1:
        item.refuse("a step is exactly one key", f"write one of {', '.join(_STEPS)} after each `- `")
    (word,) = block.node.values
    value = block.at(word)
    match word:
        case "reply":
            return Reply(value.text())
        case "sleep":
            return Sleep(value.number(0, MAX_SLEEP_S))
        case "fail":
            return Fail(value.line_of_text())
        case _:
            mail = value.block(("to", "text"))
            to = mail.require("to", "write `to:` with a seat's handle")
            sends.append((to, read_handle(to)))
            return Send(sends[-1][1], mail.require("text", "write `text:` with what to send").text())


def check_send(field: Field, *, handle: str, seats: Collection[str], roles: Collection[str]) -> None:
    """Hold a recipient against the company.

    Raises:
        ConfigRefused: it is no seat.
    """
    if handle in seats:
        return
    if handle in roles:
        field.refuse(f"{handle!r} is a person's role, which has no inbox", "send to a seat of an agent")
    near = get_close_matches(handle, seats, n=1)
    remedy = f"the nearest handle is {near[0]!r}" if near else "add such a role, or name a seat that is there"
    field.refuse(f"there is no seat {handle!r}", remedy)
