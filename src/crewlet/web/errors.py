"""Every refusal of the API in one shape: `{"error": word, "detail": sentence}`."""

from collections.abc import Mapping
from typing import Any, cast

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from crewlet.duties.frame import NotOnDuty, UnknownDuty
from crewlet.mail.outbox import UnknownSeat
from crewlet.mail.replays import ReplayUnsure
from crewlet.mail.reuse import IdReused
from crewlet.node.historydesk import UnknownTurn
from crewlet.node.letterdesk import NoEvent, UnknownLetter
from crewlet.node.limits import LINE_PATTERN, LINE_RULE, MESSAGE_ID_PATTERN, MESSAGE_ID_RULE
from crewlet.node.pausing import PauseLost, UnknownUnit
from crewlet.node.scheduledesk import UnknownSchedule
from crewlet.ports.errors import Misuse, Unavailable
from crewlet.ports.mail import MailRefused, MessageTooLarge, NoMailbox

RETRY_AFTER = {"Retry-After": "2"}


class Refusal(HTTPException):
    """A refusal that a route decides itself."""

    def __init__(self, status: int, error: str, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(status, detail, headers=headers)
        self.error = error


def install(app: FastAPI) -> None:
    """Translate what routes and the framework raise."""

    @app.exception_handler(HTTPException)
    def on_http(request: Request, error: HTTPException) -> JSONResponse:
        if isinstance(error.__cause__, RecursionError):
            return answer(422, "invalid", "The body is nested too deeply.")
        if isinstance(error.__cause__, UnicodeDecodeError):
            return answer(422, "invalid", "The body is not UTF-8 text.")
        word = error.error if isinstance(error, Refusal) else _WORDS.get(error.status_code, "refused")
        detail = str(error.detail)
        if not isinstance(error, Refusal):
            detail = _SENTENCES.get(error.status_code, detail)
        return answer(error.status_code, word, detail, error.headers)

    @app.exception_handler(RequestValidationError)
    def on_invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        return answer(422, "invalid", _first_fault(error))

    @app.exception_handler(UnknownSeat)
    def on_unknown(request: Request, error: UnknownSeat) -> JSONResponse:
        return answer(404, "unknown_seat", _sentence(error))

    @app.exception_handler(UnknownDuty)
    def on_unknown_duty(request: Request, error: UnknownDuty) -> JSONResponse:
        return answer(404, "unknown_duty", _sentence(error))

    @app.exception_handler(UnknownSchedule)
    def on_unknown_schedule(request: Request, error: UnknownSchedule) -> JSONResponse:
        return answer(404, "unknown_schedule", _sentence(error))

    @app.exception_handler(NotOnDuty)
    def on_not_on_duty(request: Request, error: NotOnDuty) -> JSONResponse:
        return answer(409, "not_on_duty", _sentence(error))

    @app.exception_handler(UnknownLetter)
    def on_unknown_letter(request: Request, error: UnknownLetter) -> JSONResponse:
        return answer(404, "unknown_letter", _sentence(error))

    @app.exception_handler(NoEvent)
    def on_no_event(request: Request, error: NoEvent) -> JSONResponse:
        return answer(409, "no_event", _sentence(error))

    @app.exception_handler(UnknownTurn)
    def on_unknown_turn(request: Request, error: UnknownTurn) -> JSONResponse:
        return answer(404, "unknown_turn", _sentence(error))

    @app.exception_handler(ReplayUnsure)
    def on_unsure(request: Request, error: ReplayUnsure) -> JSONResponse:
        return answer(409, "replay_unsure", _sentence(error))

    @app.exception_handler(UnknownUnit)
    def on_unknown_unit(request: Request, error: UnknownUnit) -> JSONResponse:
        return answer(404, "unknown_unit", _sentence(error))

    @app.exception_handler(PauseLost)
    def on_pause_lost(request: Request, error: PauseLost) -> JSONResponse:
        return answer(409, "pause_lost", _sentence(error))

    @app.exception_handler(MessageTooLarge)
    def on_large(request: Request, error: MessageTooLarge) -> JSONResponse:
        return answer(413, "too_large", _sentence(error))

    @app.exception_handler(NoMailbox)
    def on_no_mailbox(request: Request, error: NoMailbox) -> JSONResponse:
        return answer(503, "no_mailbox", _sentence(error), RETRY_AFTER)

    @app.exception_handler(MailRefused)
    def on_refused(request: Request, error: MailRefused) -> JSONResponse:
        return answer(422, "refused", _sentence(error))

    @app.exception_handler(IdReused)
    def on_reused(request: Request, error: IdReused) -> JSONResponse:
        return answer(422, "id_reused", _sentence(error))

    @app.exception_handler(Misuse)
    def on_misuse(request: Request, error: Misuse) -> JSONResponse:
        return answer(422, "invalid", _sentence(error))

    @app.exception_handler(Unavailable)
    def on_unavailable(request: Request, error: Unavailable) -> JSONResponse:
        word = "fleet_unavailable" if request.url.path.startswith("/query/") else "unavailable"
        return answer(503, word, _sentence(error), RETRY_AFTER)


def answer(status: int, error: str, detail: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
    """One refusal."""
    return JSONResponse({"error": error, "detail": detail}, status, headers=dict(headers) if headers else None)


_WORDS = {404: "not_found", 405: "method_not_allowed", 400: "bad_request", 413: "too_large"}
_SENTENCES = {
    404: "There is nothing at this path; `GET /openapi.json` says what there is.",
    405: "This path does not take this method.",
}


def _sentence(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "?", "!")) else ".")


def _first_fault(error: RequestValidationError) -> str:
    """The first fault in a sentence that names the field and its rule, without repeating what was sent."""
    fault = error.errors()[0]
    if fault.get("type") == "json_invalid":
        return "The body is not valid JSON."
    place = ".".join(str(part) for part in fault.get("loc", ())[1:])
    return f"{place[:_FIELD_CHARS] or 'body'}: {_rule(fault)}."


def _rule(fault: Mapping[str, Any]) -> str:
    """What the field that is at fault has to be."""
    kind, limits = str(fault.get("type", "")), cast("Mapping[str, Any]", fault.get("ctx") or {})
    match kind:
        case "string_pattern_mismatch" if limits.get("pattern") in _PATTERNS:
            return _PATTERNS[limits["pattern"]]
        case "string_too_long":
            return f"it has at most {limits.get('max_length')} characters"
        case "string_too_short" if limits.get("min_length") == 1:
            return "it is empty"
        case "greater_than" | "greater_than_equal" | "less_than" | "less_than_equal":
            bound = next(iter(limits.values()), "")
            return f"it has to be {_COMPARED[kind]} {bound}"
        case "value_error":
            return str(limits.get("error", "it cannot be used"))
        case _ if kind.startswith(("datetime", "timezone")):
            return "write an instant with its zone, such as 2030-01-31T18:00:00Z"
        case _:
            return _RULES.get(kind, "it cannot be used")


_FIELD_CHARS = 80
_PATTERNS = {LINE_PATTERN: LINE_RULE, MESSAGE_ID_PATTERN: MESSAGE_ID_RULE}
_COMPARED = {
    "greater_than": "more than",
    "greater_than_equal": "at least",
    "less_than": "less than",
    "less_than_equal": "at most",
}
_RULES = {
    "missing": "it is missing",
    "extra_forbidden": "there is no such field",
    "string_type": "it has to be text",
    "string_unicode": "it has to be text that UTF-8 can hold",
    "bool_type": "it has to be true or false",
    "bool_parsing": "it has to be true or false",
    "int_type": "it has to be a whole number",
    "int_parsing": "it has to be a whole number",
    "int_from_float": "it has to be a whole number",
    "int_parsing_size": "it has to be a smaller number",
    "float_type": "it has to be a number",
    "float_parsing": "it has to be a number",
    "finite_number": "it has to be a finite number",
    "dict_type": "it has to be a JSON object",
    "model_type": "it has to be a JSON object",
    "model_attributes_type": "it has to be a JSON object",
}
