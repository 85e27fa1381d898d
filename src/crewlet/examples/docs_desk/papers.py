"""What the seats of the desk write to each other: a document to check, and the findings on it."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from desk import Blocked, Mail

LINKS = "links"
PROSE = "prose"
KINDS = (LINKS, PROSE)


class Document(NamedTuple):
    """A Markdown document.

    `path` is relative to the documents folder, with `/`; `key` names this text of it, so that findings on another
    version of the same document are never merged with these.
    """

    path: str
    text: str

    @property
    def key(self) -> str:
        return hashlib.sha256(f"{self.path}\0{self.text}".encode()).hexdigest()[:20]

    def body(self) -> str:
        return json.dumps({"document": self.path, "text": self.text}, ensure_ascii=False)

    @classmethod
    def read(cls, mail: Mail) -> "Document":
        """The document in a message of an intake seat.

        Raises:
            Blocked: it is something else.
        """
        fields = _object(mail)
        return cls(_text(fields, "document"), _text(fields, "text"))


class Finding(NamedTuple):
    """One thing to look at. `line` counts from 1; 0 is the document as a whole."""

    line: int
    rule: str
    text: str


class Findings(NamedTuple):
    """What one checker found: `facts` are its measurements by name, in the order to show them."""

    kind: str
    path: str
    key: str
    facts: Mapping[str, str]
    findings: Sequence[Finding]

    def body(self) -> str:
        findings = [finding._asdict() for finding in self.findings]
        return json.dumps({**self._asdict(), "facts": dict(self.facts), "findings": findings}, ensure_ascii=False)

    @classmethod
    def read(cls, mail: Mail) -> "Findings":
        """The findings in a message of a checking seat.

        Raises:
            Blocked: it is something else.
        """
        return cls.parse(_object(mail))

    @classmethod
    def parse(cls, fields: Mapping[str, Any]) -> "Findings":
        kind = _text(fields, "kind")
        if kind not in KINDS:
            raise Blocked(f"findings of an unknown kind: {kind!r}")
        findings = [Finding(int(item["line"]), str(item["rule"]), str(item["text"])) for item in fields["findings"]]
        facts = {str(name): str(value) for name, value in fields["facts"].items()}
        return cls(kind, safe_path(_text(fields, "path")), _text(fields, "key"), facts, findings)


def safe_path(subject: str) -> str:
    """A document's path as it may be used below a folder.

    Raises:
        Blocked: it is empty, absolute or leads out of the folder.
    """
    path = PurePosixPath(subject.strip())
    if not path.name or path.is_absolute() or ".." in path.parts or "\0" in subject:
        raise Blocked(f"the subject must be the document's relative path, not {subject!r}")
    return str(path)


def _object(mail: Mail) -> dict[str, Any]:
    try:
        fields = json.loads(mail.body)
    except ValueError:
        fields = None
    if not isinstance(fields, dict):
        raise Blocked(f"message {mail.id} from {mail.source or 'nobody'} is not from a seat of this desk")
    return fields  # pyright: ignore[reportUnknownVariableType]


def _text(fields: Mapping[str, Any], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise Blocked(f"the message has no {name}")
    return value
