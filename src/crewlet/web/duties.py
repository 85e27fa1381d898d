"""The routes of the company's duties."""

from typing import Annotated, Any

from fastapi import FastAPI, Path

from crewlet.node.dutystatus import DutiesSnapshot, TickSnapshot
from crewlet.web.ports import WebNode
from crewlet.web.shapes import ErrorBody

DutyName = Annotated[str, Path(description="a duty's name", max_length=63)]


def add_duties(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""

    @app.get("/query/duties", response_model_exclude_none=True, tags=["query"], responses=_problem(503, "no answer"))
    async def duties() -> DutiesSnapshot:
        """The duties of the company and who does them."""
        return await node.commands.duties.list()

    refusals = {**_problem(404, "there is no such duty"), **_problem(409, "this node does no duties, or is stopping")}

    @app.post("/duties/{name}/run", response_model_exclude_none=True, tags=["duties"], responses=refusals)
    async def run_duty(name: DutyName) -> TickSnapshot:
        """Do one tick of a duty on this node now, unless another node does the duty."""
        return await node.commands.duties.run(name)


def _problem(status: int, why: str) -> dict[int | str, dict[str, Any]]:
    return {status: {"model": ErrorBody, "description": why}}
