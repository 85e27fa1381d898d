"""Where a turn's answer goes, for a runner that only has a text."""

from crewlet.mail.channel import MAX_ANSWER_CHARS, ChannelClosed
from crewlet.turns.turn import Turn


def writers_of(turn: Turn) -> tuple[str, ...]:
    """Handles of the seats whose mail this turn works, in the order of their first mail, each once."""
    return tuple(
        dict.fromkeys(event.source.removeprefix("seat:") for event in turn.mail if event.source.startswith("seat:"))
    )


def conversation_of(turn: Turn) -> str:
    """The conversation that the turn's mail belongs to. A partition has one at most."""
    return turn.mail[0].conversation


async def answer_questions(turn: Turn, text: str) -> int:
    """Answer what the turn was asked and has done nothing about yet, and say how many questions that were.

    One that an earlier run of this work has answered counts: that answer stands.

    Raises:
        ChannelClosed: some was left, and none of it could be answered.
        Fenced: the fence is closed.
    """
    tools, questions = turn.tools, turn.questions_left()
    if tools is None or not questions:
        return 0
    arguments = [{"text": text[:MAX_ANSWER_CHARS], "channel": channel} for channel in questions]
    answers = [await tools.call("answer", each) for each in arguments]
    answered = len(questions) - len(turn.questions_left())
    if not answered:
        raise ChannelClosed(answers[0].text)
    return answered
