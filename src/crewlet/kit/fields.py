"""Reading located YAML into values: every accessor returns a checked value or refuses with file, line and field.

A `Field` is one value and where it stands; a `Block` is a mapping whose keys are known. A key without a value, or with
null, counts as not given.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from typing import NoReturn, TypeVar

from crewlet.kit.refusal import ConfigRefused, ManyRefused, Refusals
from crewlet.kit.yamlfile import ListNode, MapNode, Node, Scalar

T = TypeVar("T")

_MAX_PORT = 65535

_INTEGER = re.compile(r"[+-]?[0-9]{1,15}")
_NUMBER = re.compile(r"[+-]?([0-9]{1,15}(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")


@dataclass(frozen=True, slots=True)
class Field:
    """One value of a file.

    Attributes:
        node: the value.
        source: the file.
        path: the field in dots, `roles[2].handle`; "" for the whole document.
        line: of the field's key, or of the value in a list.
        refusals: where refusals of the file are kept while the rest is read; None has each end the reading.
    """

    node: Node
    source: str
    path: str
    line: int
    refusals: Refusals | None = None

    @property
    def where(self) -> str:
        place = f"{self.source}:{self.line}"
        return f"{place}: {self.path}" if self.path else place

    def refuse(self, problem: str, remedy: str = "") -> NoReturn:
        """Refuse this field.

        Raises:
            ConfigRefused: always.
        """
        raise ConfigRefused(problem, where=self.where, remedy=remedy)

    def read(self, reader: "Callable[[Field], T]", instead: T) -> T:
        """What a reader makes of the field; `instead` where it refuses, when refusals are kept.

        Raises:
            ConfigRefused: the reader's, when they are not.
        """
        if self.refusals is None:
            return reader(self)
        try:
            return reader(self)
        except ManyRefused:
            raise
        except ConfigRefused as refusal:
            self.refusals.add(refusal)
            return instead

    def block(self, known: Collection[str]) -> "Block":
        """The field as a mapping that has no other keys than these."""
        if not isinstance(self.node, MapNode):
            self.refuse("this must be a mapping", f"write keys below it: {', '.join(sorted(known))}")
        block = Block(self, self.node)
        for key in self.node.values:
            if key not in known:
                near = get_close_matches(key, known, n=1, cutoff=0.6)
                remedy = (
                    f"the nearest known one is {near[0]!r}" if near else f"the keys here are {', '.join(sorted(known))}"
                )
                field = block.at(key)
                field.read(partial(_refuse_key, remedy=remedy), None)
        return block

    def peek(self, key: str) -> "Field | None":
        """The field of a key, or None when it is not given, before it is known which other keys there may be."""
        return Block(self, self.node).get(key) if isinstance(self.node, MapNode) else None

    def items(self) -> "Iterator[Field]":
        """The members of a list."""
        if not isinstance(self.node, ListNode):
            self.refuse("this must be a list", "write each member on its own line after `- `")
        for index, item in enumerate(self.node.items):
            yield Field(item, self.source, f"{self.path}[{index}]", item.line, self.refusals)

    def pairs(self) -> "Iterator[tuple[str, Field]]":
        """The entries of a mapping with free keys, in the file's order."""
        if not isinstance(self.node, MapNode):
            self.refuse("this must be a mapping", "write `key: value` pairs below it")
        block = Block(self, self.node)
        for key in self.node.values:
            yield key, block.at(key)

    def text(self) -> str:
        """The value as text, spelled as in the file."""
        if not isinstance(self.node, Scalar):
            self.refuse("this must be a text", "write one value")
        if self.node.is_null:
            self.refuse("there is no value", 'write one, or "" for an empty text')
        return self.node.text

    def line_of_text(self) -> str:
        """One line of text, trimmed, not empty."""
        text = self.text().strip()
        if not text:
            self.refuse("this is empty", "write a value")
        if not text.isprintable():
            self.refuse("this must be one line without control characters", "write it on one line")
        return text

    def integer(self, low: int, high: int) -> int:
        """A whole number from `low` to `high`."""
        text = self.text().strip()
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= high:
            self.refuse(f"{text!r} is not a whole number from {low} to {high}", "write such a number")
        return int(text)

    def port(self, low: int) -> int | None:
        """A port from `low` on, or None for `auto`: any that is free."""
        text = self.text().strip()
        if text == "auto":
            return None
        if not _INTEGER.fullmatch(text) or not low <= int(text) <= _MAX_PORT:
            remedy = "write auto for a free one, or a number"
            self.refuse(f"{text!r} is neither auto nor a port from {low} to {_MAX_PORT}", remedy)
        return int(text)

    def number(self, low: float, high: float) -> float:
        """A number from `low` to `high`."""
        text = self.text().strip()
        value = float(text) if _NUMBER.fullmatch(text) else math.nan
        if not low <= value <= high:
            self.refuse(f"{text!r} is not a number from {low:g} to {high:g}", "write such a number")
        return value

    def choice(self, words: Collection[str]) -> str:
        """One of these words."""
        text = self.text().strip()
        if text not in words:
            near = get_close_matches(text, words, n=1)
            offer = f"write {near[0]!r}" if near else f"write one of {', '.join(words)}"
            self.refuse(f"{text!r} is not known here", offer)
        return text


@dataclass(frozen=True, slots=True)
class Block:
    """A mapping of a file, read key by key."""

    field: Field
    node: MapNode

    @classmethod
    def of_document(
        cls, node: MapNode, source: str, known: Collection[str], refusals: Refusals | None = None
    ) -> "Block":
        """The whole document as a block. With `refusals` what `read` and `need` meet is kept there."""
        return Field(node, source, "", node.line, refusals).block(known)

    def at(self, key: str) -> Field:
        """The field of a key that is there."""
        path = f"{self.field.path}.{key}" if self.field.path else key
        of = self.field
        return Field(self.node.values[key], of.source, path, self.node.key_lines[key], of.refusals)

    def get(self, key: str) -> Field | None:
        """The field of a key, or None when it is not given."""
        value = self.node.values.get(key)
        if value is None or (isinstance(value, Scalar) and value.is_null):
            return None
        return self.at(key)

    def require(self, key: str, remedy: str) -> Field:
        """The field of a key that must be given."""
        found = self.get(key)
        if found is None:
            if key in self.node.values:
                self.at(key).refuse("there is no value", remedy)
            self.field.refuse(f"{key!r} is missing", remedy)
        return found

    def read(self, key: str, reader: Callable[[Field], T], instead: T) -> T:
        """What a reader makes of the field of a key; `instead` where it is not given, or refused and that is kept."""
        found = self.get(key)
        return instead if found is None else found.read(reader, instead)

    def need(self, key: str, remedy: str, reader: Callable[[Field], T], instead: T) -> T:
        """The same of a field that must be given."""
        return self.field.read(lambda _: reader(self.require(key, remedy)), instead)


def _refuse_key(field: Field, *, remedy: str) -> None:
    field.refuse("this key is not known", remedy)
