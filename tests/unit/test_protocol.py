"""Protocol v1, line by line."""

import json
import math

import pytest

from crewlet.company.model import Seat
from crewlet.mail.envelope import Envelope
from crewlet.ports.term import Term
from crewlet.ports.tools import ToolAnswer, ToolInfo
from crewlet.seats.fence import SeatFence
from crewlet.testing.virtual import VirtualClock
from crewlet.turns.runners import protocol
from crewlet.turns.runners.protocol import (
    BadLine,
    BrokenLine,
    CallLine,
    CheckLine,
    OutcomeLine,
    RaisedLine,
    ReadyLine,
    SendLine,
    UsageLine,
    VersionLine,
    parse,
    parse_worker,
)
from crewlet.turns.turn import OutgoingMail, Turn, TurnResult


def _read(text: str) -> protocol.Line:
    return parse(text.encode(), conversation="c1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"v": 1}', VersionLine(1)),
        ('{"v": 2}', VersionLine(2)),
        ('{"check": {}}', CheckLine()),
        ('{"call": {"tool": "clock"}}', CallLine("clock", {})),
        ('{"call": {"tool": "add", "arguments": {"a": [1, null]}}}', CallLine("add", {"a": [1, None]})),
        ('{"usage": {"model": "m", "input_tokens": 3}}', UsageLine("m", 3, 0)),
        ('{"send": {"to": "bob", "body": "x"}}', SendLine(OutgoingMail("bob", "x", conversation="c1"))),
        (
            '{"send": {"to": "bob", "body": "x", "conversation": ""}, "later": 1}',
            SendLine(OutgoingMail("bob", "x", conversation="")),
        ),
        ('{"outcome": "blocked", "detail": "no key"}', OutcomeLine(TurnResult("blocked", "no key"))),
    ],
)
def test_each_message_is_read_as_what_it_is(text: str, line: protocol.Line) -> None:
    assert _read(text) == line


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "not JSON"),
        ("\xff", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("null", "not a JSON object"),
        ("{}", "not exactly one of"),
        ('{"check": {}, "v": 1}', "not exactly one of"),
        ('{"check": true}', "check"),
        ('{"v": "1"}', "v"),
        ('{"call": {"tool": "t", "arguments": []}}', "arguments"),
        ('{"call": {"arguments": {}}}', "tool"),
        ('{"usage": {"model": "m", "input_tokens": -1}}', "input_tokens"),
        ('{"usage": {"model": "m", "output_tokens": 1e400}}', "usage"),
        ('{"outcome": "suspended"}', "suspended"),
        ('{"ready": {"v": 1}}', "not exactly one of"),
        ('{"raised": {"detail": "x"}}', "not exactly one of"),
    ],
)
def test_what_is_no_message_of_a_program_is_named_and_shown(text: str, says: str) -> None:
    line = parse(text.encode("latin-1"), conversation="")
    assert isinstance(line, BadLine)
    assert says in line.reason
    assert len(line.reason) < 700


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ('{"outcome": "great"}', "outcome is 'great', which is not one of delivered, no_action, blocked and failed"),
        ('{"outcome": 7}', "outcome is a whole number, not a text"),
        ('{"send": {"to": "a"}}', "send.body is missing"),
        ('{"send": 7}', "send is a whole number, not an object"),
        ('{"send": {"to": null, "body": "x"}}', "send.to is null, not a text"),
        ('{"answered": ""}', "answered has fewer than 1 characters"),
        ('{"answered": "%s"}' % ("x" * 201), "answered has more than 200 characters"),
        ('{"call": {"tool": "t", "arguments": []}}', "call.arguments is a list, not an object"),
        ('{"usage": {"model": "m", "input_tokens": -1}}', "usage.input_tokens is less than 0"),
        ('{"usage": {"model": "m", "input_tokens": 1.5}}', "usage.input_tokens is a number, not a whole number"),
        ('{"usage": {"model": "m", "input_tokens": 1000000000001}}', "usage.input_tokens is more than 1000000000000"),
        (
            '{"usage": {"model": "m", "input_tokens": 18446744073709551616}}',
            "usage.input_tokens is more than 1000000000000",
        ),
        ('{"progress": "\\ud800"}', r"one half of a surrogate pair (\ud800 to \udfff without the other) is no text"),
        ('{"v": NaN}', "a number is not finite or too large to be read"),
        ('{"v": 1e400}', "a number is not finite or too large to be read"),
        ('{"v": 1,}', "not JSON"),
        ('{"progress": "\xff"}', "not JSON, and not UTF-8 text either"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_in_words_of_the_protocol(text: str, sentence: str) -> None:
    line = parse(text.encode("latin-1"), conversation="")
    assert isinstance(line, BadLine)
    assert line.reason.startswith(f"{sentence}: ")


def test_a_worker_says_a_little_more_than_a_program() -> None:
    assert parse_worker(b'{"ready": {"v": 1}}') == ReadyLine()
    assert parse_worker(b'{"broken": {"detail": "no module"}}') == BrokenLine("no module")
    assert parse_worker(b'{"raised": {"detail": "ValueError"}}') == RaisedLine("ValueError")
    assert parse_worker(b'{"check": {}}') == CheckLine()


class _OneTool:
    infos = (ToolInfo("clock", "tells the time", {"type": "object"}, server="s"),)

    async def call(self, name: str, arguments: object) -> ToolAnswer:
        raise AssertionError((name, arguments))


def _turn(good_until: float) -> Turn:
    fence = SeatFence(Term("seat:alice", "n:1", 7), VirtualClock(), good_until)
    mail = [Envelope(id="e1", type="external_notification", timestamp="2030-01-01T00:00:00Z", source="person")]

    async def send(mail: OutgoingMail) -> str:
        raise AssertionError(mail)

    told = (lambda text: None, lambda text: None)  # pyright: ignore[reportUnknownLambdaType, reportUnknownVariableType]
    return Turn("t1", "w1", Seat("alice"), mail, fence, send, *told, tools=_OneTool())  # pyright: ignore[reportUnknownArgumentType]


def test_a_turn_begins_with_the_version_the_term_and_the_tools() -> None:
    start = json.loads(protocol.start_line(_turn(12.5)))
    assert start["v"] == 1
    assert start["tools"] == [{"name": "clock", "description": "tells the time", "schema": {"type": "object"}}]
    assert start["term"] == {"resource": "seat:alice", "owner": "n:1", "epoch": 7, "good_until": 12.5}


def test_the_answers_are_single_lines_and_a_term_that_cannot_be_lost_has_no_end() -> None:
    assert json.loads(protocol.term_line(_turn(math.inf).fence))["term"]["good_until"] is None
    line = protocol.result_line(ToolAnswer("two\nlines", is_error=True))
    assert b"\n" not in line
    assert json.loads(line) == {"result": {"text": "two\nlines", "is_error": True}}
