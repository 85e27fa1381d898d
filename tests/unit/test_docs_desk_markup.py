"""Markdown as the docs desk reads it: anchors as GitHub makes them, links where they stand, no code."""

import docs_desk  # noqa: F401 # pyright: ignore[reportUnusedImport] - puts the programs on the path
import pytest
from markup import Markup, plain, slug


def targets(text: str) -> list[tuple[int, str]]:
    return [(link.line, link.target) for link in Markup.parse(text).links]


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Run it", "run-it"),
        ("What's new in 2.0?", "whats-new-in-20"),
        ("`crewlet up` and _others_", "crewlet-up-and-others"),
        ("snake_case stays", "snake_case-stays"),
        ("A [link](x.md) in it", "a-link-in-it"),
        ("Two  spaces", "two--spaces"),
        ("C++ & C#", "c--c"),
        ("Über ß 日本", "über-ß-日本"),
        ("dash - and -- dashes", "dash---and----dashes"),
        ("**Bold** *italic* ~~old~~", "bold-italic-old"),
        ("Emoji :tada: 🎉", "emoji-tada-"),
    ],
)
def test_a_heading_has_the_anchor_github_gives_it(heading: str, anchor: str) -> None:
    assert slug(heading) == anchor
    assert Markup.parse(f"# {heading}\n").headings[0].anchor == anchor


def test_repeated_headings_are_numbered_around_those_that_are_taken() -> None:
    text = "# a\n\n# a\n\n# a-1\n\n# a\n"
    assert [heading.anchor for heading in Markup.parse(text).headings] == ["a", "a-1", "a-1-1", "a-2"]


def test_headings_of_every_form_are_found_with_their_lines() -> None:
    text = "Top\n===\n\n## Second ##\n\nThird\n---\n\n#no heading\n\n####### seven\n"
    found = [(heading.line, heading.level, heading.text) for heading in Markup.parse(text).headings]
    assert found == [(1, 1, "Top"), (4, 2, "Second"), (6, 2, "Third")]


@pytest.mark.parametrize(
    "code",
    [
        "```\n# no\n[x](y.md)\n```",
        "~~~ text\n# no\n```\n[x](y.md)\n~~~",
        "````\n```\n[x](y.md)\n```\n# no\n````",
        "- item\n\n  ```sh\n  # no [x](y.md)\n  ```",
        "text\n\n    # no [x](y.md)",
        "<!-- # no\n[x](y.md)\n-->",
        "`[x](y.md)` and ``a ` [x](y.md)``",
        '---\ntitle: "[x](y.md)"\n---',
        "```\n[x](y.md)\n# never closed",
    ],
)
def test_code_comments_and_front_matter_have_no_links_and_no_headings(code: str) -> None:
    markup = Markup.parse(code + "\n")
    assert markup.links == []
    assert markup.headings == []


def test_text_after_code_counts_again_with_the_right_line() -> None:
    assert targets("```\ncode\n```\n\n[x](y.md)\n") == [(5, "y.md")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('[a](b.md "title")', ["b.md"]),
        ("[a](<b c.md>)", ["b c.md"]),
        ("[a](b(c).md)", ["b(c).md"]),
        ("![a](b.png)", ["b.png"]),
        ("[![a](b.png)](c.md)", ["b.png", "c.md"]),
        ("[a [b] c](d.md)", ["d.md"]),
        ("[a\nb](c.md)", ["c.md"]),
        ("[a][b]\n\n[b]: c.md", ["c.md"]),
        ("[a][]\n\n[A]: <c.md>", ["c.md"]),
        ("[a]\n\n[a]: c.md 'title'", ["c.md"]),
        ("<https://example.org/>", ["https://example.org/"]),
        ('<a href="b.md">x</a> <img src="c.png">', ["b.md", "c.png"]),
        (r"\[a](b.md)", []),
        ("[ ] task [x]", []),
        ("[^1] and a[i][j]", []),
    ],
)
def test_links_of_every_form_are_found(text: str, found: list[str]) -> None:
    assert sorted(target for _, target in targets(text)) == sorted(found)


def test_a_reference_without_a_definition_is_told() -> None:
    assert Markup.parse("x\n\nsee [this][nowhere].\n").undefined == [(3, "nowhere")]


def test_html_anchors_are_anchors() -> None:
    assert set(Markup.parse('<a name="x"></a>\n\n<div id="y">\n').anchors) == {"x", "y"}


def test_plain_text_is_what_a_reader_sees() -> None:
    assert plain("**A** [link](x) to `__init__` and <b>tags</b>, 2 \\* 3") == "A link to __init__ and tags, 2 * 3"


def test_prose_is_paragraphs_and_items_without_tables_and_definitions() -> None:
    text = "# no\n\nOne\ntwo.\n\n- three\n- [x] four\n\n| a | b |\n|---|---|\n| c | d |\n\n[r]: x.md\n"
    assert [(unit.line, unit.text) for unit in Markup.parse(text).prose] == [
        (3, "One\ntwo."),
        (6, "three"),
        (7, "four"),
    ]


@pytest.mark.parametrize("text", ["", "\n", "#", "[", "](", "```", "<!--", "---", "\0", "|", "[a](", "[[[[[[" * 50])
def test_no_text_is_too_odd_to_read(text: str) -> None:
    Markup.parse(text)
