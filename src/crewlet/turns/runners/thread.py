"""What a turn's mail says about where answers go: pure."""

from crewlet.turns.turn import Turn


def writers_of(turn: Turn) -> tuple[str, ...]:
    """Handles of the seats whose mail this turn works, in the order of their first mail, each once."""
    return tuple(
        dict.fromkeys(event.source.removeprefix("seat:") for event in turn.mail if event.source.startswith("seat:"))
    )


def conversation_of(turn: Turn) -> str:
    """The conversation that the turn's mail belongs to. A partition has one at most."""
    return turn.mail[0].conversation
