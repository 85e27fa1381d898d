"""The mail of the demonstration: documents, one after the other, to the intake seats."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from uuid import uuid4

from crewlet.testing.demo import api
from crewlet.testing.demo.documents import Library
from crewlet.testing.demo.fleet import DemoFailed
from crewlet.testing.demo.judge import Send

SEND_EVERY_S = 1.0
"""Each document makes five turns; two busy cores manage about twice as many."""
GIVE_UP_S = 60.0
AGAIN_AFTER_S = 0.2


@dataclass(slots=True)
class Feeder:
    """Sends every document, then again from the first one, until it is told that it is enough.

    Attributes:
        urls: addresses of the nodes that may be asked, at this moment.
        sends: what was acknowledged so far.
        paths: documents that were acknowledged at least once.
    """

    library: Library
    intakes: Sequence[str]
    urls: Callable[[], Sequence[str]]
    sends: list[Send] = field(default_factory=list[Send])
    paths: set[str] = field(default_factory=set[str])

    async def run(self, enough: asyncio.Event) -> None:
        """Send until `enough`, each document at least once.

        Raises:
            DemoFailed: a document was refused, or nobody took it.
        """
        texts = {path: self.library.text(path) for path in self.library.paths}
        for number, (path, seat) in enumerate(zip(cycle(self.library.paths), cycle(self.intakes))):
            if enough.is_set() and number >= len(self.library.paths):
                return
            key = f"demo-{uuid4()}"
            await self._send(seat, path, texts[path], key, first=number)
            self.sends.append(Send(key, by="the demo", to=seat))
            self.paths.add(path)
            await asyncio.sleep(SEND_EVERY_S)

    async def _send(self, seat: str, path: str, text: str, key: str, *, first: int) -> None:
        """Ask one node after the other, under the same key, until one has taken it."""
        why = "no node answers"
        try:
            async with asyncio.timeout(GIVE_UP_S):
                while True:
                    urls = self.urls()
                    for url in islice(cycle(urls), first % max(1, len(urls)), first % max(1, len(urls)) + len(urls)):
                        try:
                            await api.post_mail(url, seat, text, subject=path, key=key)
                        except api.NoAnswer as error:
                            why = str(error)
                        else:
                            return
                    await asyncio.sleep(AGAIN_AFTER_S)
        except api.Refused as refused:
            raise DemoFailed(f"the document {path} was not taken: {refused}") from refused
        except TimeoutError:
            raise DemoFailed(f"nobody took the document {path} in {GIVE_UP_S:g} s: {why}") from None
