"""Names of tools, and secrets kept out of what servers say."""

import re

from hypothesis import example, given
from hypothesis import strategies as st

from crewlet.adapters.mcp.names import tool_name
from crewlet.adapters.mcp.redact import Redaction
from crewlet.company.tools import SERVER_NAME_GRAMMAR

_SERVERS = st.from_regex(SERVER_NAME_GRAMMAR, fullmatch=True)


@given(_SERVERS, st.text(max_size=200))
@example("a" * 24, "b" * 128)
def test_every_name_fits_every_provider(server: str, tool: str) -> None:
    assert re.fullmatch(r"[A-Za-z0-9_-]{1,64}", tool_name(server, tool))


@given(st.tuples(_SERVERS, st.text(max_size=90)), st.tuples(_SERVERS, st.text(max_size=90)))
@example(("a", "b__c"), ("a", "b  c"))
@example(("a", "x" * 70), ("a", "x" * 71))
@example(("a", "-b"), ("a-", "b"))
def test_two_tools_never_have_one_name(one: tuple[str, str], other: tuple[str, str]) -> None:
    first = tool_name(*one)
    second = tool_name(*other, taken=(first,) if one[0] == other[0] else ())
    assert first != second or one == other


def test_a_plain_name_stands_as_it_is_behind_its_servers() -> None:
    assert tool_name("files", "read_file") == "files__read_file"
    assert tool_name("files", "read file").startswith("files__read_file-")
    assert tool_name("files", "read file") != tool_name("files", "read.file")


def test_secrets_are_replaced_the_longest_first_and_short_texts_are_none() -> None:
    redact = Redaction({"token-1", "Bearer token-1", "abc"})
    assert redact("Bearer token-1, token-1, abc") == "[redacted], [redacted], abc"


def test_secrets_are_replaced_wherever_they_stand_in_a_schema() -> None:
    schema = {"type": "object", "properties": {"key": {"default": "token-1"}, "token-1": {"enum": ["a token-1", 7]}}}
    assert Redaction({"token-1"}).within(schema) == {
        "type": "object",
        "properties": {"key": {"default": "[redacted]"}, "[redacted]": {"enum": ["a [redacted]", 7]}},
    }


def test_a_name_that_another_tool_has_made_fit_is_made_another() -> None:
    fit = tool_name("files", "read file")
    taken = [fit]
    for _ in range(3):
        taken.append(tool_name("files", fit.removeprefix("files__"), taken))
        taken.append(tool_name("files", "read file", taken))
    assert len(set(taken)) == len(taken) == 7


def test_the_end_of_an_output_shows_no_part_of_a_secret_that_its_cut_went_through() -> None:
    redact = Redaction({"hunter2-hunter2"})
    assert redact.tail("ter2 was refused", is_cut=True) == "was refused"
    assert redact.tail("hunter2 was refused", is_cut=True) == "was refused"
    assert redact.tail("2 items", is_cut=False) == "2 items"
    assert len(redact.tail("x" * 10_000, is_cut=True)) == 500
