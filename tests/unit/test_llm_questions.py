"""A model that was asked something, over real HTTP against a scripted server: what it says last is its answer."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from dispatch_desk import Desk, delivery, event
from llm_desk import at

from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.system.clock import SystemClock
from crewlet.adapters.system.entropy import SystemEntropy
from crewlet.company.model import LlmRunner, Seat
from crewlet.mail.channel import Channel
from crewlet.mail.channels import CHANNELS_BUCKET, Channels
from crewlet.ports.mail import Ack, Delivery
from crewlet.testing.modelserver import Answer, Call, Say, model_server
from crewlet.turns.runners.llm import LlmTurns

NOTES = Say(calls=[Call("note", {"text": "bob asks again"})])
SEVEN = Say("It says seven.")


def _submits(outcome: str) -> Say:
    done = {"outcome": outcome, "summary": "Not for me.", "evidence": ["the mail"]}
    return Say(calls=[Call("submit_work", done)])


def _answers(text: str, channel: str = "") -> Say:
    return Say(calls=[Call("answer", {"text": text, **({"channel": channel} if channel else {})})])


def _asks(to: str) -> Say:
    return Say(calls=[Call("ask", {"to": to, "question": "what does it say?"})])


def _question(channel: str = "0a-1") -> Delivery:
    return delivery(
        event(f"r-{channel}", type="a2a_request", source="seat:bob", payload={"channel": channel}, conversation="c"),
        sequence=len(channel),
    )


@asynccontextmanager
async def _asked(answers: Sequence[Answer], *channels: str) -> AsyncGenerator[tuple[Desk, Channels]]:
    """The seat alice, whose model answers so, and open questions of bob's."""
    async with model_server(answers) as server:
        desk = Desk()
        desk.seat = Seat("alice", runner=LlmRunner(at(server.url)))
        turns = LlmTurns(desk.seat, clock=SystemClock(), entropy=SystemEntropy(), variable=lambda _: None)
        desk.runner = cast("Any", turns)
        desk.channels = Channels(await LocalCells(desk.clock).open(CHANNELS_BUCKET))
        for channel in channels or ("0a-1",):
            await desk.channels.open(channel, Channel("bob", "alice", "how?"))
        await desk.open()
        yield desk, desk.channels


async def _states(channels: Channels, *names: str) -> list[str]:
    found = [await channels.find(name) for name in names]
    return [each.channel.state for each in found if each is not None]


def _mails(desk: Desk) -> list[tuple[str, str, str]]:
    return [(mail.type, mail.to, mail.body) for mail in desk.mail.published]


@pytest.mark.parametrize("before", [(), (NOTES,)], ids=["at once", "after a tool"])
async def test_the_last_words_of_a_model_are_the_answer_of_the_question_whatever_it_did_before(
    before: Sequence[Say],
) -> None:
    async with _asked([*before, SEVEN]) as (desk, channels):
        assert await desk.handle_mail(_question()) == Ack()
        assert _mails(desk) == [("a2a_message", "bob", "It says seven.")]
        assert await _states(channels, "0a-1") == ["answered"]


async def test_a_model_that_has_answered_says_no_more_in_its_last_words() -> None:
    async with _asked([_answers("seven"), Say("I have told bob.")]) as (desk, _):
        assert await desk.handle_mail(_question()) == Ack()
        assert _mails(desk) == [("a2a_message", "bob", "seven")]
        completion = await desk.completion("r-0a-1")
        assert completion is not None and (completion.outcome, completion.detail) == ("delivered", "I have told bob.")


async def test_of_two_questions_the_last_words_answer_the_one_that_is_left() -> None:
    script = [_answers("seven", "0a-1"), Say("And that one is eight.")]
    async with _asked(script, "0a-1", "0a-22") as (desk, channels):
        assert await desk.handle_mail(_question("0a-1"), _question("0a-22")) == Ack()
        assert [body for *_, body in _mails(desk)] == ["seven", "And that one is eight."]
        assert await _states(channels, "0a-1", "0a-22") == ["answered", "answered"]


async def test_a_model_that_has_asked_a_colleague_leaves_the_question_open_until_it_knows() -> None:
    async with _asked([_asks("carol"), Say("I have asked carol."), SEVEN]) as (desk, channels):
        assert await desk.handle_mail(_question()) == Ack()
        (asked,) = desk.mail.published
        assert (asked.type, asked.to) == ("a2a_request", "carol")
        assert await _states(channels, "0a-1") == ["open"]
        word = event(
            "w1",
            type="a2a_message",
            source="seat:carol",
            payload={"channel": asked.payload["channel"], "upon": ["0a-1"]},
        )
        assert await desk.handle_mail(delivery(word)) == Ack()
        assert _mails(desk)[1:] == [("a2a_message", "bob", "It says seven.")]
        assert await _states(channels, "0a-1") == ["answered"]


@pytest.mark.parametrize("outcome", ["no_action", "blocked", "delivered"])
async def test_a_model_that_submits_its_work_declines_the_question(outcome: str) -> None:
    async with _asked([NOTES, _submits(outcome)]) as (desk, channels):
        assert await desk.handle_mail(_question()) == Ack()
        assert desk.mail.published == []
        assert await _states(channels, "0a-1") == ["open"]


async def test_a_re_run_that_words_its_answer_differently_is_through_and_the_first_answer_counts() -> None:
    async with _asked([SEVEN, Say("Seven, it says.")]) as (desk, _):
        assert await desk.handle_mail(_question()) == Ack()
        await desk.open()  # as where the ledger's record did not get through
        assert await desk.handle_mail(_question()) == Ack()
        assert [body for *_, body in _mails(desk)] == ["It says seven."]
        completion = await desk.completion("r-0a-1")
        assert completion is not None and completion.outcome == "delivered"


async def test_a_model_that_used_its_tools_and_is_asked_nothing_mails_nobody_its_last_words() -> None:
    async with _asked([NOTES, SEVEN]) as (desk, _):
        assert await desk.handle_mail(delivery(event("m1", source="seat:bob"))) == Ack()
        assert desk.mail.published == []
