"""Intake: takes a Markdown document in and has its links and its prose checked.

The body of the mail is the document, its subject the path relative to the documents folder.
"""

import sys

from desk import Mail, Outcome, Turn, choose, serve
from papers import Document, safe_path


def work(turn: Turn) -> Outcome:
    taken: list[str] = []
    for mail in turn.mail:
        document = receive(mail)
        if document is None:
            continue
        turn.progress(f"{document.path}: {len(document.text.splitlines())} lines")
        # Any checker will do, so the message's id spreads the load; the choice is the same when the turn runs again.
        turn.send(choose("LINK_SEATS", mail.id), document.body(), subject=document.path)
        turn.dwell(0.5)
        turn.send(choose("PROSE_SEATS", mail.id), document.body(), subject=document.path)
        taken.append(document.path)
    if not taken:
        return Outcome("no_action", "the document is empty")
    return Outcome("delivered", f"{', '.join(taken)} is being checked")


def receive(mail: Mail) -> Document | None:
    """The document in a message, or None when there is nothing in it. One without a path gets its key for a name."""
    text = mail.body.replace("\r\n", "\n").removeprefix("\ufeff")
    if not text.strip():
        return None
    if not mail.subject.strip():
        return Document(f"untitled-{Document('', text).key[:8]}.md", text)
    return Document(safe_path(mail.subject), text)


if __name__ == "__main__":
    sys.exit(serve(work))
