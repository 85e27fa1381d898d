"""The dead letters of the mail twin."""

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from crewlet.mail.deadletters import place_of, read_letter, subjects_of
from crewlet.mail.patterns import matcher
from crewlet.ports.deadletters import DeadLetter, LetterPage
from crewlet.ports.mail import Subscription
from crewlet.testing.twins.mailbroker import TwinBroker


class Ask(Protocol):
    """Has an effect at the broker, or raises Unavailable."""

    def __call__(self, name: str, effect: Callable[[], Any]) -> Awaitable[Any]: ...


class TwinDeadLetters:
    """See `crewlet.ports.deadletters.DeadLetters` for the promises."""

    def __init__(self, broker: TwinBroker, ask: Ask) -> None:
        self._broker = broker
        self._ask = ask

    async def page(self, topic: str, *, after: str | None = None, limit: int = 50) -> LetterPage:
        matches = matcher(topic)
        place = 0 if after is None else place_of(after)
        found = [each for each in await self._all() if matches(each.subscription.topic) and place_of(each.id) > place]
        letters = found[: max(1, limit)]
        return LetterPage(letters, letters[-1].id if len(found) > len(letters) else None)

    async def get(self, letter_id: str) -> DeadLetter | None:
        place_of(letter_id)
        return next((each for each in await self._all() if each.id == letter_id), None)

    async def latest(self, subscription: Subscription, message_id: str) -> DeadLetter | None:
        head = f"{subjects_of(subscription, message_id)}."
        found = await self._all(lambda subject: subject.startswith(head))
        return found[-1] if found else None

    async def remove(self, letter_id: str) -> bool:
        if await self.get(letter_id) is None:
            return False
        await self._ask("drop_letter", lambda: self._broker.exhume(place_of(letter_id)))
        return True

    async def _all(self, wanted: Callable[[str], bool] = lambda _: True) -> list[DeadLetter]:
        kept = await self._ask("read_letters", lambda: self._broker.dead_letters)
        return [
            read_letter(each.sequence, each.topic, each.headers, each.data, each.published_at)
            for each in kept
            if wanted(each.topic)
        ]
