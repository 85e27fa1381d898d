"""The routes: read the node's snapshots, write through its commands."""

from fastapi import FastAPI, Response

from crewlet import __version__
from crewlet.node.settings_model import ApiSettings
from crewlet.node.status import FleetSnapshot, HealthSnapshot
from crewlet.node.troubles import TroublesSnapshot
from crewlet.web import errors
from crewlet.web.duties import add_duties
from crewlet.web.errors import Refusal
from crewlet.web.guard import Guard
from crewlet.web.letters import add_letters
from crewlet.web.mail import Handle, add_mail, problems
from crewlet.web.metrics import exposition
from crewlet.web.pauses import add_pauses
from crewlet.web.ports import WebNode
from crewlet.web.shapes import Live, Ready, SeatDetail
from crewlet.web.turns import add_budgets, add_turns


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
        # A slash too many is told as what it is; a redirect would answer with nothing that a program can read.
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name,
    )
    errors.install(app)
    app.add_middleware(Guard, host=api.host, token=api.token)
    _add_probes(app, node)
    _add_queries(app, node)
    add_mail(app, node)
    add_letters(app, node)
    add_duties(app, node)
    add_pauses(app, node)
    add_turns(app, node)
    add_budgets(app, node)
    return app


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

    @app.get("/query/fleet", response_model_exclude_none=True, tags=["query"], responses=problems(s503=unavailable))
    async def fleet() -> FleetSnapshot:
        """Nodes and seats as the leases tell them: every node answers alike."""
        return await node.fleet()

    @app.get("/query/troubles", tags=["query"])
    async def troubles() -> TroublesSnapshot:
        """What is the matter with seats, by handle, as the nodes that hold them say, which `answered` names."""
        return await node.troubles()

    @app.get(
        "/query/seats/{handle}",
        response_model_exclude_none=True,
        tags=["query"],
        responses=problems(s404="the company has no such seat", s503=unavailable),
    )
    async def seat(handle: Handle) -> SeatDetail:
        """One seat and who holds it."""
        snapshot = await node.fleet()
        found = next((each for each in snapshot.seats if each.handle == handle), None)
        if found is None:
            raise Refusal(404, "unknown_seat", f"The company has no seat {handle!r}.")
        is_placeable = all(each.handle != handle for each in snapshot.unplaceable)
        return SeatDetail(seat=found, is_placeable=is_placeable)
