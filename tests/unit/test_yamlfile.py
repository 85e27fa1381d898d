"""YAML that people write: located, bounded, and nothing in it can run or explode."""

import gc
from contextlib import suppress

import pytest

from crewlet.kit.refusal import ConfigRefused
from crewlet.kit.yamlfile import MAX_BYTES, ListNode, MapNode, Scalar, parse, resolve_references


def refusal(text: str) -> str:
    with pytest.raises(ConfigRefused) as refused:
        parse(text, "f.yaml")
    return str(refused.value)


def test_every_key_and_value_knows_its_line() -> None:
    node = parse("a: 1\n\nb:\n  c:\n    - x\n    - y\n", "f.yaml")
    assert node.key_lines == {"a": 1, "b": 3}
    inner = node.values["b"]
    assert isinstance(inner, MapNode) and inner.key_lines == {"c": 4}
    assert inner.values["c"] == ListNode((Scalar("x", True, 5), Scalar("y", True, 6)), 5)


def test_an_empty_document_is_an_empty_mapping() -> None:
    assert parse("", "f.yaml").values == parse("# only a comment\n", "f.yaml").values == {}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\n---\nb: 2", "f.yaml:2: a second document begins here; keep one document in a file."),
        ("a: 1\nb: 2\na: 3", "f.yaml:3: the key 'a' is here twice (first on line 1); keep one of them."),
        (
            "a: !!python/name:os.system x",
            "f.yaml:1: the tag 'tag:yaml.org,2002:python/name:os.system' is not supported; write the plain value.",
        ),
        ("a: !x y", "f.yaml:1: the tag '!x' is not supported; write the plain value."),
        ("a: &x [*x]", "f.yaml:1: the alias *x contains itself; write the value out."),
        ("a: *x", "f.yaml:1: the alias *x names no anchor above it; define it with &x."),
        ("b: &b {c: d}\na:\n  <<: *b", "f.yaml:3: merge keys (<<) are not supported; write the keys out."),
        ("? [a]\n: b", "f.yaml:1: a key must be a plain word; quote it if it is meant as text."),
        (
            "a: b: c",
            "f.yaml:1: this is not YAML (mapping values are not allowed in this context); "
            "check the indentation, and quote a value that contains `: `.",
        ),
        (
            "a: @b",
            "f.yaml:1: this is not YAML (found character that cannot start any token); put quotes around the value.",
        ),
        (
            "a: {b: ${C}}",
            "f.yaml:1: this is not YAML (did not find expected ',' or '}'); "
            'put quotes around "${NAME}" inside braces.',
        ),
        ("a: 1\nb: \x07", "f.yaml:2: there is a control character; remove it."),
        ("a: " + "{a: " * 30, "f.yaml:1: values are nested more than 24 deep; flatten them."),
    ],
)
def test_what_is_not_a_plain_document_is_told_with_its_line(text: str, sentence: str) -> None:
    assert refusal(text) == sentence


def test_aliases_cannot_expand_without_bound() -> None:
    bomb = "a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n"
    bomb += "".join(f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12))
    assert "more than 2000000 values, aliases expanded" in refusal(bomb)


def test_a_text_that_is_too_large_is_not_even_parsed() -> None:
    assert refusal("a" * (MAX_BYTES + 1)) == "f.yaml: the text is larger than 16 MiB."


def test_nesting_that_would_exhaust_the_stack_is_refused() -> None:
    assert "f.yaml:1: " in refusal("[" * 200_000)


def test_references_are_replaced_in_values_and_their_content_is_never_yaml() -> None:
    node = parse("a: ${X}\nb: ['<${X}>', '$${X}']\nc: {d: $X}", "f.yaml")
    resolved = resolve_references(node, "f.yaml", {"X": "{e: 1}\n"})
    assert resolved.values["a"] == Scalar("{e: 1}\n", False, 1)
    assert resolved.values["b"] == ListNode((Scalar("<{e: 1}\n>", False, 2), Scalar("${X}", False, 2)), 2)
    assert resolved.values["c"] == node.values["c"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: ${NOPE}", "f.yaml:1: the environment variable NOPE is not set; set it, or write the value here."),
        (
            "a: ${1X}",
            "f.yaml:1: '${1X}' is not a reference to a variable; "
            "write ${NAME} with letters, digits and underscores, or $${ for a literal ${.",
        ),
        (
            "a: '${X'",
            "f.yaml:1: '${X' is not a reference to a variable; "
            "write ${NAME} with letters, digits and underscores, or $${ for a literal ${.",
        ),
    ],
)
def test_a_reference_that_cannot_be_resolved_is_told(text: str, sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        resolve_references(parse(text, "f.yaml"), "f.yaml", {"X": "y"})
    assert str(refused.value) == sentence


def test_a_reference_to_an_empty_variable_is_an_empty_text_and_not_null() -> None:
    value = resolve_references(parse("a: ${X}", "f.yaml"), "f.yaml", {"X": ""}).values["a"]
    assert isinstance(value, Scalar) and value.text == "" and not value.is_null


def test_a_document_of_ten_thousand_seats_of_twenty_values_is_taken_whole() -> None:
    role = "  - {handle: seat-%d, a: 1, b: 2, c: 3, d: 4, e: 5, f: [6, 7, 8, 9, 10]}\n"
    text = "roles:\n" + "".join(role % number for number in range(10_000))
    roles = parse(text, "f.yaml").values["roles"]
    assert isinstance(roles, ListNode) and len(roles.items) == 10_000
    last = roles.items[-1]
    assert isinstance(last, MapNode) and last.values["handle"] == Scalar("seat-9999", is_plain=True, line=10_001)
    assert last.key_lines == dict.fromkeys(last.values, 10_001)


def test_collections_go_on_after_a_document_was_read_or_refused() -> None:
    for text in ("a: 1", "a: ["):
        with suppress(ConfigRefused):
            parse(text, "f.yaml")
        assert gc.isenabled()
