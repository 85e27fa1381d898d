"""The routes of seats' mail."""

from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Response

from crewlet.company.rules import MAX_HANDLE_CHARS
from crewlet.node.limits import MESSAGE_ID_PATTERN
from crewlet.node.mailstatus import SeatMail
from crewlet.node.status import MailOutcome, SentMail
from crewlet.web.errors import RETRY_AFTER, Refusal
from crewlet.web.ports import WebNode
from crewlet.web.shapes import ErrorBody, MailIn

Handle = Annotated[str, Path(description="a seat's handle", max_length=MAX_HANDLE_CHARS)]
MessageId = Annotated[str, Path(description="a mail's id", min_length=1, max_length=200)]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", pattern=MESSAGE_ID_PATTERN, description="becomes the mail's id; repeats are one"),
]


def problems(**by_status: str) -> dict[int | str, dict[str, Any]]:
    """How a route may refuse, for its description: `s404="why"`."""
    return {int(status[1:]): {"model": ErrorBody, "description": why} for status, why in by_status.items()}


def refuse_while_draining(node: WebNode) -> None:
    """Raises Refusal: this node takes no more work."""
    if node.health().shutting_down:
        raise Refusal(503, "draining", "This node is draining; ask another one.", RETRY_AFTER)


def add_mail(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""

    @app.post(
        "/seats/{handle}/mail",
        status_code=202,
        response_model_exclude_none=True,
        tags=["mail"],
        responses=problems(
            s400="more than one Idempotency-Key",
            s404="the company has no such seat",
            s413="the mail is too large",
            s415="the body is not JSON",
            s422="a field is missing, unknown or not usable, or another mail has this Idempotency-Key",
            s503="draining, or the broker does not answer; the same Idempotency-Key makes a repeat safe",
        ),
    )
    async def send_mail(handle: Handle, mail: MailIn, response: Response, key: IdempotencyKey = None) -> SentMail:
        """Put a mail into a seat's inbox. With the `dead_letter` of an earlier mail of this key nothing is sent:
        `POST /dlq/{dead_letter}/replay` puts that one back."""
        refuse_while_draining(node)
        sent = await node.commands.send_mail(
            handle,
            mail.body,
            subject=mail.subject,
            message_id=key,
            conversation=mail.conversation,
            chat_message=mail.chat_message,
        )
        response.headers["Location"] = f"/seats/{handle}/mail/{sent.id}"
        return sent

    @app.get(
        "/seats/{handle}/mail",
        response_model_exclude_none=True,
        tags=["mail"],
        responses=problems(s404="the company has no such seat", s503="the broker or the lease store does not answer"),
    )
    async def seat_mail(handle: Handle) -> SeatMail:
        """What lies in a seat's inbox, how old its oldest mail is, and what keeps it from being read."""
        return await node.commands.seat_mail(handle)

    @app.get(
        "/seats/{handle}/mail/{message_id}",
        response_model_exclude_none=True,
        tags=["mail"],
        responses=problems(s404="the company has no such seat", s503="the ledger or the broker does not answer"),
    )
    async def mail_outcome(handle: Handle, message_id: MessageId) -> MailOutcome:
        """What became of a mail: `open`, `finished`, `dead_lettered`, or `unknown` where there is no trace of it."""
        return await node.commands.mail_outcome(handle, message_id)
