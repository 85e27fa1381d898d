"""The routes of dead letters."""

from typing import Annotated

from fastapi import FastAPI, Path, Query

from crewlet.node.mailstatus import DroppedLetter, LetterDetail, Letters, ReplayedLetter
from crewlet.web.mail import problems, refuse_while_draining
from crewlet.web.ports import WebNode
from crewlet.web.shapes import ReplayIn

LetterId = Annotated[str, Path(description="a dead letter's id", max_length=40)]
_UNANSWERED = "the broker does not answer"
_NONE = "there is no such dead letter"


def add_letters(app: FastAPI, node: WebNode) -> None:
    """Add them to an app."""

    @app.get(
        "/dlq",
        response_model_exclude_none=True,
        tags=["dead letters"],
        responses=problems(
            s404="the company has no such seat, and there is no letter of it",
            s422="a parameter is not usable",
            s503=_UNANSWERED,
        ),
    )
    async def list_letters(
        seat: Annotated[str | None, Query(description="only of this seat, also one that was removed")] = None,
        after: Annotated[str | None, Query(description="the `next` of the page before")] = None,
        limit: Annotated[int, Query(description="how many at most", ge=1, le=200)] = 50,
    ) -> Letters:
        """Mail that used up its deliveries, oldest first."""
        return await node.commands.letters.list(seat, after=after, limit=limit)

    @app.get(
        "/dlq/{letter_id}",
        response_model_exclude_none=True,
        tags=["dead letters"],
        responses=problems(s404=_NONE, s422="that is not the id of a dead letter", s503=_UNANSWERED),
    )
    async def show_letter(letter_id: LetterId) -> LetterDetail:
        """One dead letter with its history and text."""
        return await node.commands.letters.show(letter_id)

    @app.post(
        "/dlq/{letter_id}/replay",
        status_code=202,
        tags=["dead letters"],
        responses=problems(
            s404=f"{_NONE}, or its seat has left the company",
            s409="the mail is no event, or that of an earlier replay is found nowhere and may have arrived",
            s415="the body is not JSON",
            s422="that is not the id of a dead letter",
            s503=f"draining, or {_UNANSWERED}; a repeat is safe",
        ),
    )
    async def replay_letter(letter_id: LetterId, order: ReplayIn) -> ReplayedLetter:
        """Put a dead letter's mail back into its inbox under a new budget: once, however often this is called."""
        refuse_while_draining(node)
        return await node.commands.letters.replay(letter_id, again=order.again)

    @app.delete(
        "/dlq/{letter_id}",
        tags=["dead letters"],
        responses=problems(s404=_NONE, s422="that is not the id of a dead letter", s503=_UNANSWERED),
    )
    async def drop_letter(letter_id: LetterId) -> DroppedLetter:
        """Delete a dead letter for good."""
        return await node.commands.letters.drop(letter_id)
