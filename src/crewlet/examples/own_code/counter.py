"""A seat in a plain function: it counts the words of its mail and answers whoever wrote."""

from crewlet.agent import Outcome, Refused, SyncTurn


def run(turn: SyncTurn) -> Outcome:
    counted = 0
    for mail in turn.mail:
        words = len(mail.body.split())
        counted += words
        turn.progress(f"{words} words from {mail.source}")
        if mail.writer is not None:  # people and programs have no inbox
            try:
                turn.send(mail.writer, f"{words} words")
            except Refused as refused:
                return Outcome("failed", str(refused))
    return Outcome("delivered", f"{counted} words")
