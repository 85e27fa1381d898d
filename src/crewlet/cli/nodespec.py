"""Reading a fleet that is written on a command line: `a{zone=eu,gpu=1},b[workers],c`.

Nodes stand apart by commas or blanks. After a node's id come its labels in braces and, where it does not do everything,
its roles in brackets, in either order. Names and labels obey the rules of `crewlet.yaml`.
"""

import re
from typing import Final, NoReturn

from crewlet.company.rules import (
    NODE_ID_REMEDY,
    ROLES,
    is_label_value,
    is_node_id,
    label_key_remedy,
)
from crewlet.kit.refusal import ConfigRefused
from crewlet.seats.noderow import NodeRow

_EXAMPLE: Final = 'write for instance "a{zone=eu},b,c"'
_BETWEEN: Final = re.compile(r"\s*(,\s*)?")
_NAME: Final = re.compile(r"[^\s,{}\[\]]+")
_CLOSING: Final = {"{": "}", "[": "]"}
_WORDS: Final = {"{": "the labels", "[": "the roles"}


def read_nodes(text: str, option: str = "--nodes") -> tuple[NodeRow, ...]:
    """The nodes of a text.

    Args:
        option: names the text in refusals.

    Raises:
        ConfigRefused: with option, position (characters, from 1) and remedy.
    """
    return _Reader(text, option).nodes()


class _Reader:
    """The text and how far it has been read."""

    def __init__(self, text: str, option: str) -> None:
        self._text = text
        self._option = option
        self._at = 0

    def nodes(self) -> tuple[NodeRow, ...]:
        rows: dict[str, NodeRow] = {}
        self._at = len(self._text) - len(self._text.lstrip())
        while self._at < len(self._text):
            begun = self._at
            row = self._node()
            if row.node_id in rows:
                self._refuse(begun, f"the node {row.node_id!r} is here twice", "give each an id of its own")
            rows[row.node_id] = row
            self._skip_comma()
        if not rows:
            self._refuse(0, "there is no node", _EXAMPLE)
        return tuple(rows.values())

    def _skip_comma(self) -> None:
        match = _BETWEEN.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        if match[1] and self._at == len(self._text):
            self._refuse(match.start(1), "a node's id is missing after the last comma", _EXAMPLE)

    def _node(self) -> NodeRow:
        begun = self._at
        match = _NAME.match(self._text, begun)
        if match is None:
            self._refuse(begun, f"a node's id is missing before {self._text[begun]!r}", _EXAMPLE)
        self._at = match.end()
        if not is_node_id(match[0]):
            self._refuse(begun, f"{match[0]!r} cannot be a node id", NODE_ID_REMEDY)
        labels: dict[str, str] = {}
        roles: frozenset[str] | None = None
        seen: set[str] = set()
        while (opening := self._text[self._at : self._at + 1]) in _CLOSING:
            if opening in seen:
                self._refuse(self._at, f"{_WORDS[opening]} of {match[0]!r} are here twice", "put them together")
            seen.add(opening)
            parts = self._enclosed(opening, match[0])
            if opening == "{":
                labels = self._labels(parts)
            else:
                roles = self._roles(parts)
        rest = self._text[self._at : self._at + 1]
        if rest and not rest.isspace() and rest != ",":
            self._refuse(self._at, f"{rest!r} is not expected after the node {match[0]!r}", "put a comma before it")
        return NodeRow(match[0], frozenset(ROLES) if roles is None else roles, labels)

    def _enclosed(self, opening: str, node_id: str) -> list[tuple[int, str]]:
        """What stands between the brackets here, apart by commas, each with its position; blanks around it are cut."""
        begun, closing = self._at, _CLOSING[opening]
        end = self._text.find(closing, begun)
        if end < 0:
            problem = f"{_WORDS[opening]} of {node_id!r} have no closing {closing!r}"
            self._refuse(begun, problem, f"write {closing} after the last one")
        self._at = end + 1
        parts: list[tuple[int, str]] = []
        at = begun + 1
        for part in self._text[at:end].split(","):
            if part.strip():
                parts.append((at + len(part) - len(part.lstrip()), part.strip()))
            at += len(part) + 1
        return parts

    def _labels(self, parts: list[tuple[int, str]]) -> dict[str, str]:
        labels: dict[str, str] = {}
        for at, part in parts:
            key, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals:
                self._refuse(at, f"the label {part!r} has no value", "write key=value, or key= for an empty one")
            if remedy := label_key_remedy(key):
                self._refuse(at, f"{key!r} cannot be a label key", remedy)
            if key in labels:
                self._refuse(at, f"the label {key!r} is here twice", "keep one of them")
            if not is_label_value(value):
                self._refuse(at, "this label value is too long or has control characters", "write a short plain text")
            labels[key] = value
        return dict(sorted(labels.items()))

    def _roles(self, parts: list[tuple[int, str]]) -> frozenset[str]:
        for at, part in parts:
            if part not in ROLES:
                self._refuse(at, f"{part!r} is no role", f"write some of {', '.join(ROLES)}")
        if not parts:
            problem = "a node without a role does nothing"
            self._refuse(self._at - 1, problem, f"name some of {', '.join(ROLES)}, or leave the brackets out")
        return frozenset(part for _, part in parts)

    def _refuse(self, at: int, problem: str, remedy: str) -> NoReturn:
        raise ConfigRefused(problem, where=f"{self._option}: character {at + 1}", remedy=remedy)
