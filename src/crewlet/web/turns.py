"""The routes of turns and of what they spend."""

from typing import Annotated

from fastapi import FastAPI, Path, Query

from crewlet.node.historydesk import MAX_TAIL
from crewlet.node.turnstatus import BudgetSnapshot, SeatTail, TurnDetail
from crewlet.web.mail import Handle, problems
from crewlet.web.ports import WebNode
from crewlet.web.shapes import BudgetIn, BudgetList

TurnId = Annotated[str, Path(description="a turn's id, or the beginning of it", min_length=4, max_length=100)]


def add_turns(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""

    @app.get(
        "/seats/{handle}/turns",
        response_model_exclude_none=True,
        tags=["turns"],
        responses=problems(
            s404="neither the company nor this node's history knows the seat",
            s422="a parameter is not usable",
            s503="the node's history cannot be read",
        ),
    )
    async def seat_turns(
        handle: Handle,
        after: Annotated[int, Query(ge=0, le=2**62, description="only turns after this one")] = 0,
        limit: Annotated[int, Query(ge=1, le=MAX_TAIL, description="how many at most")] = 20,
    ) -> SeatTail:
        """The newest turns that a seat ran on this node, oldest first, the running one among them."""
        return await node.commands.history.tail(handle, after=after, limit=limit)

    @app.get(
        "/turns/{turn_id}",
        response_model_exclude_none=True,
        tags=["turns"],
        responses=problems(
            s404="this node remembers no such turn",
            s422="the id is not usable",
            s503="the node's history cannot be read",
        ),
    )
    async def turn(turn_id: TurnId) -> TurnDetail:
        """One turn with its rounds and calls."""
        return await node.commands.history.turn(turn_id)


def add_budgets(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""
    silent = "the counters do not answer; a repeat is safe"
    of_seat = problems(s404="the company has no such seat", s503=silent)
    changing = problems(s404="the company has no such seat", s415="the body is not JSON", s422="no budget", s503=silent)
    of_company = problems(s415="the body is not JSON", s422="no budget", s503=silent)

    @app.get("/budgets", response_model_exclude_none=True, tags=["budgets"], responses=problems(s503=silent))
    async def budgets() -> BudgetList:
        """The company, and every seat that has spent something or has a cap."""
        return BudgetList(budgets=await node.commands.budgets.list())

    @app.get("/seats/{handle}/budget", response_model_exclude_none=True, tags=["budgets"], responses=of_seat)
    async def seat_budget(handle: Handle) -> BudgetSnapshot:
        """What a seat has spent, and may spend."""
        return await node.commands.budgets.show(handle)

    @app.post("/seats/{handle}/budget", response_model_exclude_none=True, tags=["budgets"], responses=changing)
    async def set_seat_budget(handle: Handle, wish: BudgetIn) -> BudgetSnapshot:
        """Put caps in place of the company document's, or go back to those."""
        return await node.commands.budgets.set(handle, wish.caps())

    @app.post("/seats/{handle}/budget/reset", response_model_exclude_none=True, tags=["budgets"], responses=changing)
    async def reset_seat_budget(handle: Handle) -> BudgetSnapshot:
        """Begin every window of a seat at nothing."""
        return await node.commands.budgets.reset(handle)

    @app.post("/budget", response_model_exclude_none=True, tags=["budgets"], responses=of_company)
    async def set_company_budget(wish: BudgetIn) -> BudgetSnapshot:
        """Put caps in place of the company document's, or go back to those."""
        return await node.commands.budgets.set(None, wish.caps())

    @app.post("/budget/reset", response_model_exclude_none=True, tags=["budgets"], responses=of_company)
    async def reset_company_budget() -> BudgetSnapshot:
        """Begin every window of the company at nothing."""
        return await node.commands.budgets.reset(None)
