"""Editor: keeps what one checker found until the other has answered too, then writes the report on the document.

One editor has all versions of a document (chosen by its path), so the editor's fencing token guards its report.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path

from desk import Outcome, Turn, serve
from papers import KINDS, LINKS, PROSE, Findings
from store import Store

TITLES = {LINKS: "Links", PROSE: "Prose"}


def work(turn: Turn) -> Outcome:
    store = Store(Path(os.environ.get("DESK_STORE", "desk")), turn.term)
    lines: list[str] = []
    for mail in turn.mail:
        findings = Findings.read(mail)
        kept = store.keep(findings)
        turn.dwell(0.6)
        if missing := [kind for kind in KINDS if kind not in kept]:
            lines.append(f"{findings.path}: waiting for {missing[0]}")
            continue
        store.publish(findings.path, report(kept))
        lines.append(f"{findings.path}: report written")
    return Outcome("delivered", "; ".join(lines))


def report(kept: Mapping[str, Findings]) -> str:
    """The report on one document: nothing in it depends on when or where it was written."""
    path = next(iter(kept.values())).path
    total = sum(len(findings.findings) for findings in kept.values())
    lines = [f"# Report on {path}", "", f"{total or 'No'} finding{'' if total == 1 else 's'}."]
    for kind in KINDS:
        findings = kept[kind]
        lines += ["", f"## {TITLES[kind]}", "", "| | |", "|---|---|"]
        lines += (f"| {name} | {value} |" for name, value in findings.facts.items())
        lines.append("")
        if not findings.findings:
            lines.append("Nothing to mend.")
        for finding in findings.findings:
            place = f"line {finding.line}" if finding.line else "whole document"
            lines.append(f"- {place}, {finding.rule}: {finding.text}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(serve(work))
