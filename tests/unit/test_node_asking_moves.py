"""Questions among seats that move, are paused, ask on, or ask each other in a circle: whole nodes, in virtual time."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from node_rig import Fleet

from crewlet.company.model import Seat
from crewlet.mail.channel import UNANSWERED
from crewlet.mail.pauses import PAUSES_BUCKET, Pauses, Wish
from crewlet.testing.virtual import in_virtual_time
from crewlet.turns.turn import Runner, Turn, TurnResult

Part = Callable[[Turn], Awaitable[None]]


@dataclass
class Cast:
    """Each seat plays its part. `heard` is what came to whom, in order."""

    parts: dict[str, Part]
    heard: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])
    kind: str = "cast"

    async def run(self, turn: Turn) -> TurnResult:
        for mail in turn.mail:
            self.heard.append((turn.seat.handle, mail.body))
        await self.parts[turn.seat.handle](turn)
        return TurnResult("delivered")

    def of(self, handle: str) -> list[str]:
        return [body for each, body in self.heard if each == handle]


async def _call(turn: Turn, tool: str, **arguments: Any) -> None:
    assert turn.tools is not None
    answer = await turn.tools.call(tool, arguments)
    assert not answer.is_error, answer


def _asks(to: str, question: str) -> Part:
    """Asks about whatever comes, and answers what it was asked with what it is told."""

    async def part(turn: Turn) -> None:
        (mail,) = turn.mail
        if mail.type != "a2a_message":
            await _call(turn, "ask", to=to, question=question)
        elif mail.payload.get("upon"):
            await _call(turn, "answer", text=f"{mail.body}, says {to}")

    return part


async def _answers(turn: Turn) -> None:
    await _call(turn, "answer", text=f"{turn.mail[0].body} 42")


class Theatre(Fleet):
    """A fleet that plays."""

    cast: Cast

    def runner(self, seat: Seat, node: str) -> Runner:
        return self.cast


def _theatre(**parts: Part) -> Theatre:
    fleet = Theatre(list(parts), roles=frozenset({"seats", "workers"}))
    fleet.cast = Cast(parts)
    return fleet


async def _held(fleet: Theatre) -> None:
    await fleet.until(lambda: all(fleet.holder(handle) for handle in fleet.seats), "all are held")


@in_virtual_time
async def test_a_question_that_needs_another_colleague_is_answered_when_that_one_has() -> None:
    fleet = _theatre(alice=_asks("bob", "b?"), bob=_asks("carol", "c?"), carol=_answers)
    await fleet.node("n1")
    await _held(fleet)
    await fleet.send("alice", "m1")
    await fleet.until(lambda: len(fleet.cast.of("alice")) == 2, "the answer is there")
    assert fleet.cast.of("alice")[1] == "c? 42, says carol"
    assert fleet.cast.of("bob") == ["b?", "c? 42"]
    await fleet.close()


@in_virtual_time
async def test_two_seats_that_ask_each_other_about_one_thing_both_get_their_answer() -> None:
    async def alice(turn: Turn) -> None:
        match turn.mail[0].type:
            case "a2a_request":
                await _call(turn, "answer", text="yes")
            case "a2a_message":
                pass
            case _:
                await _call(turn, "ask", to="bob", question="may I?")

    fleet = _theatre(alice=alice, bob=_asks("alice", "do you want to?"))
    await fleet.node("n1")
    await _held(fleet)
    await fleet.send("alice", "m1")
    await fleet.until(lambda: len(fleet.cast.of("alice")) == 3, "the answer is there")
    assert fleet.cast.of("alice")[1:] == ["do you want to?", "yes, says alice"]
    assert fleet.cast.of("bob") == ["may I?", "yes"]
    await fleet.close()


@in_virtual_time
async def test_what_nobody_answers_further_down_lets_the_one_between_answer_all_the_same() -> None:
    async def silent(turn: Turn) -> None: ...

    async def bob(turn: Turn) -> None:
        if turn.mail[0].type == "a2a_message":
            await _call(turn, "answer", text="carol is away")
        else:
            await _call(turn, "ask", to="carol", question="c?")

    fleet = _theatre(alice=_asks("bob", "b?"), bob=bob, carol=silent)
    await fleet.node("n1")
    await _held(fleet)
    await fleet.send("alice", "m1")
    await fleet.until(lambda: len(fleet.cast.of("alice")) == 2, "something is there", bound_s=3 * 3600)
    assert UNANSWERED in fleet.cast.of("bob")
    assert fleet.cast.of("alice")[1] == "carol is away"
    await fleet.close()


@pytest.mark.parametrize("who", ["alice", "bob"])
def test_an_answer_finds_its_asker_and_a_question_its_seat_on_whatever_node_they_are_by_then(who: str) -> None:
    @in_virtual_time
    async def case() -> None:
        async def bob(turn: Turn) -> None:
            if who == "alice":
                await people.pause(["alice"], Wish("p"))
                await fleet.clock.sleep(5)
            await _answers(turn)

        fleet = _theatre(alice=_asks("bob", "b?"), bob=bob)
        await fleet.node("n1")
        await _held(fleet)
        people = Pauses(await fleet.store.open(PAUSES_BUCKET))
        waiting = "bob" if who == "bob" else "alice"
        if who == "bob":
            await people.pause([waiting], Wish("p"))
        await fleet.send("alice", "m1")
        await fleet.until(lambda: fleet.cast.of("alice"), "it is asked")
        if who == "alice":
            await fleet.until(lambda: fleet.cast.of("bob"), "it is being answered")
            await fleet.clock.sleep(10)
        await fleet.node("n2")
        await fleet.stop("n1")
        await fleet.until(lambda: fleet.holder("alice") == fleet.holder("bob") == "n2", "both have moved")
        await fleet.clock.sleep(300)
        assert len(fleet.cast.of("alice")) == 1
        await people.resume({waiting: "p"})
        await fleet.until(lambda: len(fleet.cast.of("alice")) > 1, "the answer is there")
        await fleet.clock.sleep(300)
        assert fleet.cast.heard == [("alice", "m1"), ("bob", "b?"), ("alice", "b? 42")]
        await fleet.close()

    case()


@in_virtual_time
async def test_a_seat_that_is_paused_for_too_long_is_not_woken_by_what_was_given_up_meanwhile() -> None:
    fleet = _theatre(alice=_asks("bob", "b?"), bob=_answers)
    await fleet.node("n1")
    await _held(fleet)
    people = Pauses(await fleet.store.open(PAUSES_BUCKET))
    await people.pause(["bob"], Wish("p"))
    await fleet.send("alice", "m1")
    await fleet.until(lambda: len(fleet.cast.of("alice")) == 2, "it is given up", bound_s=2 * 3600)
    assert fleet.cast.of("alice")[1] == UNANSWERED
    await people.resume({"bob": "p"})
    await fleet.clock.sleep(300)
    assert fleet.cast.of("bob") == []
    await fleet.close()


@in_virtual_time
async def test_questions_back_and_forth_end_at_the_depth_of_delegation_and_the_last_asker_is_told_at_once() -> None:
    told: list[str] = []

    async def on(turn: Turn) -> None:
        to = "bob" if turn.seat.handle == "alice" else "alice"
        assert turn.tools is not None
        answer = await turn.tools.call("ask", {"to": to, "question": f"and {turn.mail[0].body}?"})
        if answer.is_error:
            told.append(f"{turn.seat.handle}: {answer.text}")

    fleet = _theatre(alice=on, bob=on)
    node = await fleet.node("n1")
    await _held(fleet)
    await fleet.send("alice", "m1")
    await fleet.until(lambda: told, "it ended")
    assert [handle for handle, _ in fleet.cast.heard] == ["alice", "bob", "alice", "bob"]
    assert told[0].startswith("bob: this work was passed on 3 times")
    assert node.health().last_error is None
    await fleet.close()
