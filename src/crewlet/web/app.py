"""The routes: read the node's snapshots, write through its commands."""

from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Response

from crewlet import __version__
from crewlet.node.settings_model import ApiSettings
from crewlet.node.status import FleetSnapshot, HealthSnapshot, MailOutcome, SentMail
from crewlet.web import errors
from crewlet.web.errors import RETRY_AFTER, Refusal
from crewlet.web.guard import Guard
from crewlet.web.metrics import exposition
from crewlet.web.ports import WebNode
from crewlet.web.shapes import MESSAGE_ID_PATTERN, ErrorBody, Live, MailIn, Ready, SeatDetail

Handle = Annotated[str, Path(description="a seat's handle", max_length=63)]
MessageId = Annotated[str, Path(description="a mail's id", min_length=1, max_length=200)]
IdempotencyKey = Annotated[
    str | None,
    Header(alias="Idempotency-Key", pattern=MESSAGE_ID_PATTERN, description="becomes the mail's id; repeats are one"),
]


def create_app(node: WebNode, api: ApiSettings | None = None) -> FastAPI:
    """The API of one node.

    Args:
        node: what it shows and asks.
        api: the listening address and token that the guard goes by; None is loopback without a token.
    """
    api = api or ApiSettings()
    app = FastAPI(
        title="Crewlet",
        version=__version__,
        summary="One node of a company of AI agents.",
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=lambda route: route.name,
    )
    errors.install(app)
    app.add_middleware(Guard, host=api.host, token=api.token)
    _add_probes(app, node)
    _add_queries(app, node)
    _add_mail(app, node)
    return app


def _problems(**by_status: str) -> dict[int | str, dict[str, Any]]:
    """How a route may refuse, for its description: `s404="why"`."""
    return {int(status[1:]): {"model": ErrorBody, "description": why} for status, why in by_status.items()}


def _add_probes(app: FastAPI, node: WebNode) -> None:
    @app.get("/health", response_model_exclude_none=True, tags=["probes"])
    async def health() -> HealthSnapshot:
        """The node's facts. Always 200; a field that does not apply is left out."""
        return node.health()

    @app.get("/livez", tags=["probes"])
    async def livez() -> Live:
        """The process answers."""
        return Live()

    @app.get("/readyz", response_model_exclude_none=True, tags=["probes"], responses={503: {"model": Ready}})
    async def readyz(response: Response) -> Ready:
        """Whether work may be sent here; 503 with the reason when not."""
        health = node.health()
        reason = health.not_ready_reason
        if reason is not None:
            response.status_code = 503
        return Ready(ready=reason is None, node=health.node, draining=health.shutting_down, reason=reason)

    render = exposition(node.health)

    @app.get("/metrics", response_class=Response, tags=["probes"])
    async def metrics() -> Response:
        """Prometheus metrics."""
        return Response(render(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_queries(app: FastAPI, node: WebNode) -> None:
    unavailable = "the lease store does not answer"

    @app.get("/query/fleet", response_model_exclude_none=True, tags=["query"], responses=_problems(s503=unavailable))
    async def fleet() -> FleetSnapshot:
        """Nodes and seats as the leases tell them: every node answers alike."""
        return await node.fleet()

    @app.get(
        "/query/seats/{handle}",
        response_model_exclude_none=True,
        tags=["query"],
        responses=_problems(s404="the company has no such seat", s503=unavailable),
    )
    async def seat(handle: Handle) -> SeatDetail:
        """One seat and who holds it."""
        snapshot = await node.fleet()
        found = next((each for each in snapshot.seats if each.handle == handle), None)
        if found is None:
            raise Refusal(404, "unknown_seat", f"The company has no seat {handle!r}.")
        is_placeable = all(each.handle != handle for each in snapshot.unplaceable)
        return SeatDetail(seat=found, is_placeable=is_placeable)


def _add_mail(app: FastAPI, node: WebNode) -> None:
    problems = _problems(
        s404="the company has no such seat",
        s413="the mail is too large",
        s415="the body is not JSON",
        s422="a field is missing, unknown or not usable",
        s503="draining, or the broker does not answer; the same Idempotency-Key makes a repeat safe",
    )

    @app.post("/seats/{handle}/mail", status_code=202, tags=["mail"], responses=problems)
    async def send_mail(handle: Handle, mail: MailIn, response: Response, key: IdempotencyKey = None) -> SentMail:
        """Put a mail into a seat's inbox."""
        if node.health().shutting_down:
            raise Refusal(503, "draining", "This node is draining; ask another one.", RETRY_AFTER)
        sent = await node.commands.send_mail(
            handle, mail.body, subject=mail.subject, message_id=key, conversation=mail.conversation
        )
        response.headers["Location"] = f"/seats/{handle}/mail/{sent.id}"
        return sent

    @app.get(
        "/seats/{handle}/mail/{message_id}",
        response_model_exclude_none=True,
        tags=["mail"],
        responses=_problems(s404="the company has no such seat", s503="the ledger cannot be read"),
    )
    async def mail_outcome(handle: Handle, message_id: MessageId) -> MailOutcome:
        """What became of a mail: `open` until a turn has finished it."""
        return await node.commands.mail_outcome(handle, message_id)
