"""Markdown, as far as links, anchors and prose need it: blocks, headings with the anchors GitHub gives them, links.

Code (fenced, indented, inline), comments and front matter are no text here. Every position is a line, from 1.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

_FENCE = re.compile(r"^ {0,3}(?:>\s?)*(?:[-*+]\s+|\d+[.)]\s+)*\s*(`{3,}|~{3,})(.*)$")
_ATX = re.compile(r"^ {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*$")
_SETEXT = re.compile(r"^ {0,3}(=+|-{2,})[ \t]*$")
_ITEM = re.compile(r"^\s*(?:>\s?)*(?:[-*+]|\d{1,9}[.)])\s+")
_CODE_SPAN = re.compile(r"(?<![`\\])(`+)(?!`)(.+?)(?<!`)\1(?!`)", re.DOTALL)
_DESTINATION = r"\(\s*(<[^<>\n]*>|[^\s()<]*(?:\([^\s()]*\)[^\s()]*)*)(?:\s+(?:\"[^\"]*\"|'[^']*'|\([^()]*\)))?\s*\)"
_LABEL = r"(?<!\\)\[((?:[^\[\]\\]|\\.|\[(?:[^\[\]\\]|\\.)*\])*)\]"
_INLINE_LINK = re.compile(_LABEL + _DESTINATION)
_REFERENCE = re.compile(r"(?<![\w\]\\])" + _LABEL + r"\[((?:[^\[\]\\]|\\.)*)\]")
_SHORTCUT = re.compile(r"(?<![\w\]\\])\[((?:[^\[\]\\]|\\.)+)\](?![\[(:])")
_DEFINITION = re.compile(r"^ {0,3}\[((?:[^\[\]\\]|\\.)+)\]:\s*(<[^<>\n]*>|\S+)", re.MULTILINE)
_HTML_LINK = re.compile(r"<(?:a|img)\b[^>]*?\b(?:href|src)\s*=\s*[\"']([^\"']*)[\"']", re.IGNORECASE)
_HTML_ANCHOR = re.compile(r"<[a-z][a-z0-9]*\b[^>]*?\b(?:id|name)\s*=\s*[\"']([^\"']+)[\"']", re.IGNORECASE)
_AUTOLINK = re.compile(r"<([a-zA-Z][a-zA-Z0-9+.-]{1,31}:[^<>\s]*)>")
_SCHEME = re.compile(r"^(?:[a-zA-Z][a-zA-Z0-9+.-]*:|//)")
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_EMPHASIS = re.compile(r"(\*{1,3}|~~|(?<!\w)_{1,3})(?=\S)(.+?)(?<=\S)(\1)(?!\w)", re.DOTALL)


class Heading(NamedTuple):
    line: int
    level: int
    text: str
    anchor: str


class Link(NamedTuple):
    """`target` is as it was written, without angle brackets."""

    line: int
    target: str

    @property
    def is_external(self) -> bool:
        return _SCHEME.match(self.target) is not None


class Block(NamedTuple):
    """Lines of text that belong together; `line` is the first of them."""

    line: int
    text: str


class Markup(NamedTuple):
    """What a document has. `undefined` are the labels used as references without a definition, with their lines."""

    headings: list[Heading]
    links: list[Link]
    anchors: list[str]
    undefined: list[tuple[int, str]]
    prose: list[Block]

    @classmethod
    def parse(cls, text: str) -> "Markup":
        lines = _visible(text.splitlines())
        headings, rest = _headings(lines)
        blocks = list(_blocks(rest))
        titles = [Block(heading.line, heading.text) for heading in headings]
        definitions = {
            _normal(match[1]): match[2].strip("<>") for block in blocks for match in _DEFINITION.finditer(block.text)
        }
        links: list[Link] = []
        undefined: list[tuple[int, str]] = []
        anchors = [heading.anchor for heading in headings]
        for block in [*titles, *blocks]:
            without_code = _CODE_SPAN.sub(lambda span: re.sub(r"[^\n]", " ", span[0]), block.text)
            anchors += (match[1] for match in _HTML_ANCHOR.finditer(without_code))
            links += _inline_links(Block(block.line, without_code))
            found, missing = _references(Block(block.line, without_code), definitions)
            links += found
            undefined += missing
        prose = [unit for block in blocks if not _is_table(block) for unit in _units(block)]
        return cls(headings, sorted(links), anchors, sorted(undefined), prose)


def plain(text: str) -> str:
    """Text as a reader sees it: links by their label, no markers, no tags. Line breaks stay where they are."""
    text = _INLINE_LINK.sub(lambda match: match[1], text)
    text = _INLINE_LINK.sub(lambda match: match[1], text)  # an image inside a link
    text = _REFERENCE.sub(lambda match: match[1], text)
    text = re.sub(r"(?<!\\)!(?=\[)|(?<!\\)[\[\]]", "", text)
    pieces: list[str] = []
    end = 0
    for span in _CODE_SPAN.finditer(text):  # inside code no character is a marker
        pieces += [_unmarked(text[end : span.start()]), span[2]]
        end = span.end()
    return "".join([*pieces, _unmarked(text[end:])])


def slug(text: str) -> str:
    """The anchor GitHub gives a heading of this text, before it numbers repetitions."""
    return re.sub(r"[^\w\- ]", "", plain(text).strip().lower()).replace(" ", "-")


def _unmarked(text: str) -> str:
    text = _AUTOLINK.sub(lambda match: match[1], text)
    text = _TAG.sub("", text)
    for _ in range(3):  # bold around italic around struck
        text = _EMPHASIS.sub(lambda match: match[2], text)
    return re.sub(r"\\([!-/:-@\[-`{-~])", r"\1", text)


def _visible(lines: list[str]) -> list[str]:
    """The lines, with those of fenced and indented code, comments and front matter emptied."""
    shown: list[str] = []
    fence = ""
    is_comment = is_list = False
    front = len(lines) > 1 and lines[0].rstrip() == "---"
    front = front and any(line.rstrip() in ("---", "...") for line in lines[1:])
    for number, line in enumerate(lines):
        opening = _FENCE.match(line)
        if front:
            shown.append("")
            front = number == 0 or line.rstrip() not in ("---", "...")
        elif fence:
            shown.append("")
            closing = line.strip().lstrip("> ").strip()
            if closing and set(closing) == {fence[0]} and len(closing) >= len(fence):
                fence = ""
        elif opening and not is_comment and not (opening[1][0] == "`" and "`" in opening[2]):
            fence = opening[1]
            shown.append("")
        else:
            text, is_comment = _uncommented(line, is_comment)
            is_after_blank = not shown or not shown[-1].strip()
            if text.strip():
                is_list = bool(_ITEM.match(text)) or (is_list and (text[0].isspace() or not is_after_blank))
            is_code = text.startswith(("    ", "\t")) and not is_list and is_after_blank
            shown.append("" if is_code else text)
    return shown


def _uncommented(line: str, is_inside: bool) -> tuple[str, bool]:
    kept = ""
    while line:
        if is_inside:
            _, mark, line = line.partition("-->")
            is_inside = not mark
        else:
            text, mark, line = line.partition("<!--")
            kept += text
            is_inside = bool(mark)
    return kept, is_inside


def _headings(lines: list[str]) -> tuple[list[Heading], list[str]]:
    headings: list[Heading] = []
    rest = list(lines)
    taken: dict[str, int] = {}

    def add(line: int, level: int, text: str) -> None:
        base = anchor = slug(text)
        while anchor in taken:
            taken[base] += 1
            anchor = f"{base}-{taken[base]}"
        taken[anchor] = 0
        headings.append(Heading(line, level, text, anchor))

    for number, line in enumerate(lines):
        if match := _ATX.match(line):
            add(number + 1, len(match[1]), match[2] or "")
            rest[number] = ""
        elif (
            (match := _SETEXT.match(line)) and number and rest[number - 1].strip() and not _ITEM.match(rest[number - 1])
        ):
            above = rest[number - 1]
            if "|" in above and match[1][0] == "-":
                continue  # a table of one column
            add(number, 1 if match[1][0] == "=" else 2, above.strip())
            rest[number - 1] = rest[number] = ""
    return headings, rest


def _blocks(lines: list[str]) -> Iterator[Block]:
    start = 0
    for number, line in enumerate([*lines, ""]):
        if not line.strip():
            if number > start:
                yield Block(start + 1, "\n".join(lines[start:number]))
            start = number + 1


def _units(block: Block) -> Iterator[Block]:
    """The paragraphs and list items of a block; definitions of references are none."""
    lines = _DEFINITION.sub("", block.text).split("\n")
    start = 0
    for number in range(1, len(lines) + 1):
        if number == len(lines) or _ITEM.match(lines[number]):
            text = "\n".join(re.sub(r"^\s*(?:>\s?)*", "", line) for line in lines[start:number])
            text = re.sub(r"^(?:[-*+]|\d{1,9}[.)])\s+(?:\[[ xX]\]\s+)?", "", text)
            if text.strip():
                yield Block(block.line + start, text)
            start = number


def _is_table(block: Block) -> bool:
    return any(
        re.fullmatch(r"\s*(?:>\s?)*\|?\s*:?-+:?\s*(?:\|\s*:?-+:?\s*)*\|?\s*", line) and "|" in line
        for line in block.text.split("\n")
    )


def _inline_links(block: Block) -> Iterator[Link]:
    for match in _INLINE_LINK.finditer(block.text):
        line = block.line + block.text.count("\n", 0, match.start())
        if target := match[2].strip("<>"):
            yield Link(line, target)
        yield from _inline_links(Block(line, match[1]))
    for pattern in (_HTML_LINK, _AUTOLINK):
        for match in pattern.finditer(block.text):
            yield Link(block.line + block.text.count("\n", 0, match.start()), match[1])


def _references(block: Block, definitions: dict[str, str]) -> tuple[list[Link], list[tuple[int, str]]]:
    found: list[Link] = []
    missing: list[tuple[int, str]] = []
    for match in _REFERENCE.finditer(block.text):
        line = block.line + block.text.count("\n", 0, match.start())
        label = match[2] or match[1]
        if (target := definitions.get(_normal(label))) is not None:
            found.append(Link(line, target))
        elif not label.startswith("^"):
            missing.append((line, label))
    for match in _SHORTCUT.finditer(block.text):
        if (target := definitions.get(_normal(match[1]))) is not None:
            found.append(Link(block.line + block.text.count("\n", 0, match.start()), target))
    return found, missing


def _normal(label: str) -> str:
    return " ".join(label.split()).casefold()
