"""Link check: every relative link and anchor of a document, against the documents folder in `DOCS_ROOT`."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

from desk import Outcome, Turn, choose, serve
from markup import Link, Markup
from papers import LINKS, Document, Finding, Findings

MARKDOWN = {".md", ".markdown"}


def work(turn: Turn) -> Outcome:
    root = os.environ.get("DOCS_ROOT", "")
    lines: list[str] = []
    for mail in turn.mail:
        document = Document.read(mail)
        findings = check(document, Path(root) if root else None)
        turn.dwell(0.8)
        turn.send(choose("EDITOR_SEATS", document.path), findings.body(), subject=document.path)
        lines.append(f"{document.path}: {len(findings.findings)} of {findings.facts['links']} links broken")
    return Outcome("delivered", "; ".join(lines))


def check(document: Document, root: Path | None) -> Findings:
    """Judge the links of a document. Without a documents folder only links inside the document can be judged."""
    markup = Markup.parse(document.text)
    findings = [
        Finding(line, "undefined-reference", f"[{label}] is used as a reference and defined nowhere")
        for line, label in markup.undefined
    ]
    outside = unchecked = 0
    for link in markup.links:
        if link.is_external:
            outside += 1
        elif root is None and not link.target.startswith("#"):
            unchecked += 1
        else:
            findings += _judge(link, markup, document.path, root)
    facts = {
        "links": str(len(markup.links)),
        "to other sites (not followed)": str(outside),
        "headings": str(len(markup.headings)),
    }
    if unchecked:
        facts["to files (no DOCS_ROOT, not checked)"] = str(unchecked)
    return Findings(LINKS, document.path, document.key, facts, sorted(findings))


def _judge(link: Link, markup: Markup, path: str, root: Path | None) -> Iterator[Finding]:
    target, _, fragment = link.target.partition("#")
    target = unquote(target.partition("?")[0])
    fragment = unquote(fragment)
    if not target:
        yield from _anchor(link, fragment, markup)
        return
    assert root is not None
    # A leading slash is the root of the documents, as on a code host.
    file = Path(
        os.path.normpath(root / target.lstrip("/") if target.startswith("/") else root / Path(path).parent / target)
    )
    if not file.is_relative_to(os.path.normpath(root)):
        yield Finding(link.line, "leaves-the-documents", f"`{link.target}` leads out of the documents folder")
    elif not file.exists():
        yield Finding(link.line, "missing-file", f"`{link.target}`: there is no such file")
    elif fragment and (file / "README.md" if file.is_dir() else file).suffix.lower() in MARKDOWN:
        page = file / "README.md" if file.is_dir() else file
        if page.is_file():
            yield from _anchor(link, fragment, Markup.parse(page.read_text("utf-8", errors="replace")))


def _anchor(link: Link, fragment: str, page: Markup) -> Iterator[Finding]:
    if fragment in ("", "top") or fragment in page.anchors:
        return
    from difflib import get_close_matches  # costs as much to load as the rest of the program

    near = get_close_matches(fragment.lower(), page.anchors, n=1)
    hint = f"; the nearest is `#{near[0]}`" if near else ""
    yield Finding(link.line, "missing-anchor", f"`{link.target}`: no heading has this anchor{hint}")


if __name__ == "__main__":
    sys.exit(serve(work))
