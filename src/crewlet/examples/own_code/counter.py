"""A seat in a plain function: it counts the words of its mail and answers whoever wrote."""

from crewlet.agent import Outcome, Refused, SyncTurn


def run(turn: SyncTurn) -> Outcome:
    total = 0
    for mail in turn.mail:
        words = len(mail.body.split())
        total += words
        turn.progress(f"{_counted(words)} from {mail.source}")
        if mail.writer is not None:  # people and programs have no inbox
            try:
                turn.send(mail.writer, _counted(words))
            except Refused as refused:
                return Outcome("failed", str(refused))
    return Outcome("delivered", _counted(total))


def _counted(words: int) -> str:
    return "1 word" if words == 1 else f"{words} words"
