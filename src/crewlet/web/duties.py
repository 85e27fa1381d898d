"""The routes of the company's duties and schedules."""

from typing import Annotated

from fastapi import FastAPI, Path, Query

from crewlet.node.dutystatus import DutiesSnapshot, TickSnapshot
from crewlet.node.scheduledesk import FiresSnapshot, SchedulesSnapshot
from crewlet.web.mail import problems
from crewlet.web.ports import WebNode

DutyName = Annotated[str, Path(description="a duty's name", max_length=63)]
ScheduleName = Annotated[str, Path(description="a schedule's name", max_length=63)]


def add_duties(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""
    unavailable = "the leases of the duties cannot be read"
    refusals = problems(s404="there is no such duty", s409="this node does no duties, or is stopping")

    @app.get("/query/duties", response_model_exclude_none=True, tags=["query"], responses=problems(s503=unavailable))
    async def duties() -> DutiesSnapshot:
        """The duties of the company and who does them."""
        return await node.commands.duties.list()

    @app.post("/duties/{name}/run", response_model_exclude_none=True, tags=["duties"], responses=refusals)
    async def run_duty(name: DutyName) -> TickSnapshot:
        """Do one tick of a duty on this node now, unless another node does the duty."""
        return await node.commands.duties.run(name)

    unread = problems(s503="the records of the schedules cannot be read")

    @app.get("/query/schedules", response_model_exclude_none=True, tags=["query"], responses=unread)
    async def schedules() -> SchedulesSnapshot:
        """The schedules of the company, when each is due next, and what became of the last time."""
        return await node.commands.schedules.list()

    known = problems(s404="there is no such schedule", s503="the records of the schedules cannot be read")

    @app.get("/query/schedules/{name}", response_model_exclude_none=True, tags=["query"], responses=known)
    async def schedule(
        name: ScheduleName, limit: Annotated[int, Query(ge=1, le=1000, description="how many at most")] = 50
    ) -> FiresSnapshot:
        """What became of each instant at which a schedule was due in the last two days, newest first."""
        return await node.commands.schedules.history(name, limit=limit)
