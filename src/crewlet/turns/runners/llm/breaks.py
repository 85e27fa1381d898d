"""The ways in which a model does not bring its turn to an outcome."""

from typing import Literal

from crewlet.turns.turn import TurnBroke

Breakage = Literal[
    "library_missing",
    "key_missing",
    "key_refused",
    "quota_spent",
    "model_unknown",
    "model_rejected",
    "model_unavailable",
    "prompt_too_large",
    "answer_too_large",
    "answer_cut",
    "answer_empty",
    "answer_filtered",
    "usage_impossible",
    "bad_calls",
    "model_misbehaved",
]
"""`library_missing`: the extra is not installed. `key_missing`: the variable of the key is not set. `key_refused`: the
provider does not take the key. `quota_spent`: its account may spend nothing more. `model_unknown`: neither provider nor
model of that name. `model_rejected`: the provider takes the request for wrong. `model_unavailable`: nobody answered
usably for as long as a turn waits. `prompt_too_large`: for the model's window. `answer_too_large`: more than any use.
`answer_cut`: at the model's limit of tokens. `answer_empty`: nothing, again and again. `answer_filtered`: withheld by
the provider. `usage_impossible`: no answer costs what it says. `bad_calls`: calls that break their tool's schema, again
and again. `model_misbehaved`: anything else."""


class ModelBroke(TurnBroke):
    """A model did not bring its turn to an outcome; `kind` names how."""

    def __init__(self, kind: Breakage, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind: Breakage = kind
