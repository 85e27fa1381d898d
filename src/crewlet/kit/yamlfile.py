"""YAML that remembers where each value stands, for files that people write.

Decides what such a file may be: one UTF-8 document of mappings, lists and plain values, bounded in size, in depth and
in what its aliases expand to, without duplicate keys, tags or merge keys. What the values must be is the reader's to
say (`kit.fields`). A plain value keeps its spelling: nothing turns `no` into false or `22:22` into a number on the way.
"""

import gc
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, cast

import yaml

from crewlet.kit.references import NotAReference, UnsetVariable, substitute
from crewlet.kit.refusal import ConfigRefused

MAX_BYTES: Final = 16 * 1024 * 1024
"""Some 50,000 seats of a few lines each."""
MAX_VALUES: Final = 2_000_000
"""More than such a file can have without aliases: what they expand to is bounded too."""
MAX_DEPTH: Final = 24

_PLAIN = (None, "")
_TEXT_TAG = "tag:yaml.org,2002:str"
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value: its text as written, and whether it stood without quotes. `line` counts from 1."""

    text: str
    is_plain: bool
    line: int

    @property
    def is_null(self) -> bool:
        return self.is_plain and self.text in ("", "~", "null", "Null", "NULL")


@dataclass(frozen=True, slots=True)
class ListNode:
    """A list."""

    items: "tuple[Node, ...]"
    line: int


@dataclass(frozen=True, slots=True)
class MapNode:
    """A mapping. `key_lines` has the line of every key."""

    values: "dict[str, Node]"
    key_lines: dict[str, int]
    line: int


Node = Scalar | ListNode | MapNode


def read_text(path: Path, *, remedy: str = "") -> str:
    """The text of a file.

    Raises:
        ConfigRefused: it is missing, unreadable, too large or not UTF-8. `remedy` is said when it is missing.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise ConfigRefused("the file does not exist", where=where, remedy=remedy) from None
    except IsADirectoryError:
        raise ConfigRefused("this is a folder, not a file", where=where, remedy="name a file") from None
    except OSError as error:
        problem = f"the file cannot be read ({error.strerror or error})"
        raise ConfigRefused(problem, where=where, remedy="make it readable for this user") from error
    if len(data) > MAX_BYTES:
        raise ConfigRefused(f"the file is larger than {MAX_BYTES // 1024 // 1024} MiB", where=where)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigRefused("this line is not UTF-8 text", where=f"{where}:{line}", remedy="save it as UTF-8") from None


def parse(text: str, source: str) -> MapNode:
    """The document in a text. An empty one is an empty mapping.

    Args:
        source: names the text in refusals, usually its path.

    Raises:
        ConfigRefused: it is not such a document.
    """
    if len(text) > MAX_BYTES:
        raise ConfigRefused(f"the text is larger than {MAX_BYTES // 1024 // 1024} MiB", where=source)
    try:
        with _without_collections():
            node = _Builder(source, iter(yaml.parse(text, Loader=_LOADER))).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{source}:{mark.line + 1}" if mark else source
        raise ConfigRefused(
            f"this is not YAML ({error.problem})", where=where, remedy=_yaml_remedy(error, text)
        ) from None
    except yaml.YAMLError as error:
        line = _first_unprintable_line(text)
        where = f"{source}:{line}" if line else source
        problem = "there is a control character" if line else f"this is not YAML ({error})"
        raise ConfigRefused(problem, where=where, remedy="remove it" if line else "") from None
    if isinstance(node, MapNode):
        return node
    if node is None or (isinstance(node, Scalar) and node.is_null):
        return MapNode({}, {}, 1)
    raise ConfigRefused(
        "the document must be a mapping", where=f"{source}:{node.line}", remedy="write `key: value` lines"
    )


def resolve_references(node: MapNode, source: str, variables: Mapping[str, str]) -> MapNode:
    """The same document with each `${NAME}` in a value replaced by that variable; `$${` stands for a literal `${`.

    Keys are left alone. What a variable holds is never read as YAML.

    Raises:
        ConfigRefused: a variable that is not set, or a reference that is not `${NAME}`.
    """

    def resolved(each: Node) -> Node:
        match each:
            case Scalar():
                text = _substitute(each, source, variables)
                return each if text == each.text else Scalar(text, is_plain=False, line=each.line)
            case ListNode():
                return replace(each, items=tuple(resolved(item) for item in each.items))
            case MapNode():
                return replace(each, values={key: resolved(value) for key, value in each.values.items()})

    return replace(node, values={key: resolved(value) for key, value in node.values.items()})


def _substitute(scalar: Scalar, source: str, variables: Mapping[str, str]) -> str:
    where = f"{source}:{scalar.line}"
    try:
        return substitute(scalar.text, variables.get)
    except NotAReference as wrong:
        remedy = "write ${NAME} with letters, digits and underscores, or $${ for a literal ${"
        raise ConfigRefused(f"{str(wrong)!r} is not a reference to a variable", where=where, remedy=remedy) from None
    except UnsetVariable as unset:
        problem = f"the environment variable {unset} is not set"
        raise ConfigRefused(problem, where=where, remedy="set it, or write the value here") from None


@dataclass(slots=True)
class _Builder:
    """Turns parser events into nodes. Aliases are expanded by reference and counted at their full size."""

    source: str
    events: Iterator[Any]
    anchors: "dict[str, tuple[Node, int] | None]" = field(default_factory=dict[str, "tuple[Node, int] | None"])
    count: int = 0

    def refuse(self, line: int, problem: str, remedy: str = "") -> ConfigRefused:
        return ConfigRefused(problem, where=f"{self.source}:{line}", remedy=remedy)

    def document(self) -> Node | None:
        node: Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    raise self.refuse(_line(event), "a second document begins here", "keep one document in a file")
            elif isinstance(event, yaml.NodeEvent):
                node = self.node(event, 0)
        return node

    def node(self, event: Any, depth: int) -> Node:
        line = event.start_mark.line + 1
        kind = cast("type[Any]", type(event))
        if kind is yaml.AliasEvent:
            return self.alias(str(event.anchor), line)
        if depth > MAX_DEPTH:
            raise self.refuse(line, f"values are nested more than {MAX_DEPTH} deep", "flatten them")
        anchor: str | None = event.anchor
        if anchor is not None:
            self.anchors[anchor] = None
        before = self.count
        self.add(1, line)
        tag: str | None = event.tag
        if tag is not None:
            self.check_tag(tag, line)
        node: Node
        if kind is yaml.ScalarEvent:
            node = Scalar(event.value, event.style in _PLAIN and tag != _TEXT_TAG, line)
        elif kind is yaml.SequenceStartEvent:
            node = self.sequence(line, depth)
        else:
            node = self.mapping(line, depth)
        if anchor is not None:
            self.anchors[anchor] = (node, self.count - before)
        return node

    def add(self, count: int, line: int) -> None:
        self.count += count
        if self.count > MAX_VALUES:
            raise self.refuse(line, f"the document has more than {MAX_VALUES} values, aliases expanded", "shorten it")

    def alias(self, name: str, line: int) -> Node:
        if name not in self.anchors:
            raise self.refuse(line, f"the alias *{name} names no anchor above it", f"define it with &{name}")
        known = self.anchors[name]
        if known is None:
            raise self.refuse(line, f"the alias *{name} contains itself", "write the value out")
        node, size = known
        self.add(size, line)
        return node

    def check_tag(self, tag: str, line: int) -> None:
        if tag not in ("!", _TEXT_TAG):
            raise self.refuse(line, f"the tag {tag!r} is not supported", "write the plain value")

    def sequence(self, line: int, depth: int) -> ListNode:
        items: list[Node] = []
        for event in self.events:
            if type(event) is yaml.SequenceEndEvent:
                break
            items.append(self.node(event, depth + 1))
        return ListNode(tuple(items), line)

    def mapping(self, line: int, depth: int) -> MapNode:
        values: dict[str, Node] = {}
        key_lines: dict[str, int] = {}
        for event in self.events:
            if type(event) is yaml.MappingEndEvent:
                break
            if type(event) is yaml.ScalarEvent and event.anchor is None and event.tag is None:
                # As `node` would have it: most values of a large document are such keys.
                at, text, is_plain = _line(event), event.value, event.style in _PLAIN
                self.add(1, at)
            else:
                key = self.node(event, depth + 1)
                if not isinstance(key, Scalar):
                    raise self.refuse(_line(event), "a key must be a plain word", "quote it if it is meant as text")
                at, text, is_plain = key.line, key.text, key.is_plain
            if text == "<<" and is_plain:
                raise self.refuse(at, "merge keys (<<) are not supported", "write the keys out")
            if text in values:
                problem = f"the key {text!r} is here twice (first on line {key_lines[text]})"
                raise self.refuse(at, problem, "keep one of them")
            key_lines[text] = at
            values[text] = self.node(next(self.events), depth + 1)
        return MapNode(values, key_lines, line)


@contextmanager
def _without_collections() -> Generator[None]:
    """What is built here has no cycles, and looking for some again and again would take as long as building it."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _line(event: Any) -> int:
    return int(event.start_mark.line) + 1


def _yaml_remedy(error: yaml.MarkedYAMLError, text: str) -> str:
    problem = error.problem or ""
    lines = text.splitlines()
    line = lines[error.problem_mark.line] if error.problem_mark and error.problem_mark.line < len(lines) else ""
    if "${" in line and "{" in line.replace("${", ""):
        return 'put quotes around "${NAME}" inside braces'
    if "cannot start any token" in problem:
        return "indent with spaces, not tabs" if "\t" in line else "put quotes around the value"
    if "mapping values are not allowed" in problem:
        return "check the indentation, and quote a value that contains `: `"
    return "check the indentation, quotes and brackets here"


def _first_unprintable_line(text: str) -> int | None:
    match = yaml.reader.Reader.NON_PRINTABLE.search(text)
    return text.count("\n", 0, match.start()) + 1 if match else None
