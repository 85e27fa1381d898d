"""The routes that pause and resume seats."""

from typing import Annotated

from fastapi import FastAPI, Path

from crewlet.node.status import SeatPause
from crewlet.web.mail import Handle, IdempotencyKey, problems
from crewlet.web.ports import WebNode
from crewlet.web.shapes import PauseIn, SeatPauseIn, SeatResumeIn, UnitPauses, UnitResumeIn

Unit = Annotated[str, Path(description="a unit's name", min_length=1, max_length=200)]

_BODY = {
    "s415": "the body is not JSON",
    "s422": "a field is missing, unknown or not usable, the end has passed, or another wish had this Idempotency-Key",
    "s503": "nobody said whether it is done; a repeat is safe, of a pause with the same Idempotency-Key",
}


def add_pauses(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""
    once = "more than one Idempotency-Key"
    of_seat = problems(s400=once, s404="the company has no such seat", s409="another's pause stands", **_BODY)
    of_unit = problems(s400=once, s404="the company has no such unit", **_BODY)

    @app.post("/seats/{handle}/pause", response_model_exclude_none=True, tags=["pauses"], responses=of_seat)
    async def pause_seat(handle: Handle, wish: SeatPauseIn, key: IdempotencyKey = None) -> SeatPause:
        """Hold a seat's mail back until it is resumed, on every node and wherever the seat goes."""
        return await node.commands.pausing.pause(handle, wish.wish(key), instead_of=wish.instead_of)

    @app.post("/seats/{handle}/resume", response_model_exclude_none=True, tags=["pauses"], responses=of_seat)
    async def resume_seat(handle: Handle, wish: SeatResumeIn) -> SeatPause:
        """End a seat's pause. One that is not paused stays so."""
        return await node.commands.pausing.resume(handle, by=wish.by, expect=wish.pause)

    @app.post("/units/{unit:path}/pause", response_model_exclude_none=True, tags=["pauses"], responses=of_unit)
    async def pause_unit(unit: Unit, wish: PauseIn, key: IdempotencyKey = None) -> UnitPauses:
        """Pause every seat of a unit and of those inside it; what is paused already stays as it is."""
        return UnitPauses(seats=await node.commands.pausing.pause_unit(unit, wish.wish(key)))

    @app.post("/units/{unit:path}/resume", response_model_exclude_none=True, tags=["pauses"], responses=of_unit)
    async def resume_unit(unit: Unit, wish: UnitResumeIn) -> UnitPauses:
        """End the pauses of a unit's seats, whoever paused them."""
        return UnitPauses(seats=await node.commands.pausing.resume_unit(unit, by=wish.by))
