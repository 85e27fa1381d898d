"""The models that a seat names, and what the failures of their providers mean."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from pydantic_ai import exceptions as failures
from pydantic_ai.models import Model, infer_model
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles.openai import OpenAIModelProfile
from pydantic_ai.providers import Provider, infer_provider, infer_provider_class
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

from crewlet.company.model import LlmModel
from crewlet.kit.lines import one_line
from crewlet.turns.runners.llm.breaks import Breakage, ModelBroke
from crewlet.turns.runners.llm.keys import key_of
from crewlet.turns.runners.llm.wire import bound_answers

_SHOWN_CHARS = 400
_QUOTA_REST_S = 3600.0
_NO_KEY = "no-key"
_PROFILE = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
"""A stream that just ends was cut: half an answer must not pass for one."""


@dataclass(slots=True, eq=False)
class Candidate:
    """One model that may be asked.

    Attributes:
        name: as the document names it.
        secret: its key, to be blotted out wherever something is told of it.
        rests_until: it is not asked before this reading of `Clock.elapsed`.
        failures: how often running it did not answer.
        trouble: why, the last time, as people may see it.
    """

    name: str
    model: Model
    secret: str | None = None
    rests_until: float = 0.0
    failures: int = 0
    trouble: str = ""

    def blotted(self, text: str) -> str:
        """The text as people may see it: one line, bounded, and without the key."""
        shown = text.replace(self.secret, "***") if self.secret else text
        return one_line(shown, _SHOWN_CHARS)


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a model did not answer.

    Attributes:
        is_passing: the same request may be answered later, or by another model now.
        retry_after_s: as the provider asks; None when it does not.
    """

    kind: Breakage
    is_passing: bool
    text: str
    retry_after_s: float | None = None


def candidate(model: LlmModel, variable: Callable[[str], str | None]) -> Candidate:
    """Make one model ready to be asked; nothing is sent.

    Raises:
        ModelBroke: its key is not set here, or nobody knows such a provider.
    """
    key = key_of(model, variable)
    try:
        made = _make(model, key)
    except (failures.UserError, ValueError, TypeError, ImportError) as error:
        problem = Candidate(model.name, infer_model("test"), key).blotted(f"{model.name}: {error}")
        raise ModelBroke("model_unknown", problem) from None
    _retry_only_here(made)
    bound_answers(made)
    return Candidate(model.name, made, key)


def _make(model: LlmModel, key: str | None) -> Model:
    provider, _, name = model.name.partition(":")
    if model.base_url is None:
        return infer_model(model.name, lambda kind: _own_provider(kind, key))
    match provider:
        case "openai" | "openai-chat":
            # Never the provider of OpenAI itself: that would send its key to whoever listens at the address.
            compatible = OpenAICompatibleProvider("openai-compatible", base_url=model.base_url, api_key=key or _NO_KEY)
            return OpenAIChatModel(name, provider=compatible, profile=_PROFILE)
        case "openai-responses":
            return OpenAIResponsesModel(name, provider=OpenAIProvider(model.base_url, key or _NO_KEY))
        case _:
            url = model.base_url
            return infer_model(model.name, lambda kind: _provider_at(kind, url, key))


def _own_provider(kind: str, key: str | None) -> Provider[Any]:
    made: Any = infer_provider_class(kind)
    return infer_provider(kind) if key is None else made(api_key=key)


def _provider_at(kind: str, url: str, key: str | None) -> Provider[Any]:
    made: Any = infer_provider_class(kind)
    return made(api_key=key or _NO_KEY, base_url=url)


def _retry_only_here(model: Model) -> None:
    """Retries of the provider's own client would be seen by nobody, and pass no fence."""
    client: Any = getattr(model.provider, "client", None)
    if hasattr(client, "max_retries"):
        client.max_retries = 0


def trouble_of(error: Exception) -> Trouble:
    """What a failed request means. What nobody can name is a provider that answered garbage: it may answer again."""
    text = _said(error)
    after = error.retry_after if isinstance(error, failures.ModelAPIError) else None
    match error:
        case failures.ModelContextWindowExceededError():
            return Trouble("prompt_too_large", False, text)
        case failures.ModelAuthenticationError():
            return Trouble("key_refused", False, text)
        case failures.ModelNotFoundError():
            return Trouble("model_unknown", False, text)
        case failures.ModelQuotaExceededError():
            return Trouble("quota_spent", True, text, max(after or 0.0, _QUOTA_REST_S))
        case failures.ModelRateLimitError() | failures.ModelUnavailableError() | failures.ModelServerError():
            return Trouble("model_unavailable", True, text, after)
        case failures.ModelRequestRejectedError():
            return Trouble("model_rejected", False, text)
        case failures.ModelHTTPError() if error.status_code < 500 and error.status_code not in (408, 409, 425, 429):
            return Trouble("model_rejected", False, text)
        case failures.UserError():
            return Trouble("model_rejected", False, text)
        case TimeoutError():
            return Trouble("model_unavailable", True, "it did not answer in time")
        case _:
            return Trouble("model_unavailable", True, text, after)


def _said(error: Exception) -> str:
    """What a provider says of its error, without what only a program needs."""
    if not isinstance(error, failures.ModelHTTPError):
        return str(error) or type(error).__name__
    body = error.body
    said = cast("dict[str, Any]", body).get("message") if isinstance(body, dict) else body
    return f"{error.status_code} {said}" if isinstance(said, str) and said else f"{error.status_code}"
