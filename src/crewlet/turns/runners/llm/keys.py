"""The key of a model, out of the variables of its node. Needs no library, so that a key can be missed before a turn."""

from collections.abc import Callable

from crewlet.company.model import LlmModel
from crewlet.turns.runners.llm.breaks import ModelBroke


def key_of(model: LlmModel, variable: Callable[[str], str | None]) -> str | None:
    """The key that a model is asked with; None for one that names none.

    Raises:
        ModelBroke: it names a variable that is not set here.
    """
    if model.api_key is None:
        return None
    key = variable(model.api_key)
    if not key:
        raise ModelBroke("key_missing", f"{model.name}: the variable {model.api_key} is not set on this node")
    return key
