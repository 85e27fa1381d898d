"""What every `Signals` promises. Inherit `SignalsContract`, and give a pytest fixture `world` that is a `SignalsWorld`.

A single signal may be lost, so a check says it again until it was heard.
"""

import asyncio
import itertools
from collections.abc import Callable
from typing import Protocol

from crewlet.ports.errors import Misuse
from crewlet.ports.signals import MAX_SIGNAL_BYTES, Signals

LIMIT_S = 30.0
"""How long any single thing may take before a check gives up on it. Never a verdict on speed."""

BAD_NAMES = ("", ".", "a.", ".a", "a..b", "a b", "a*", "a.>", "\u00e4", "a\n", "a" * 201)

_numbers = itertools.count(1)


class SignalsWorld(Protocol):
    """Processes of one company."""

    async def signals(self) -> Signals:
        """Another process's way in."""
        ...


def fresh(base: str) -> str:
    """A name that no other check uses."""
    return f"{base}.n{next(_numbers)}"


async def said_until(say: Callable[[], None], is_so: Callable[[], object]) -> None:
    """Say it again and again until something is so."""
    async with asyncio.timeout(LIMIT_S):
        while not is_so():
            say()
            await asyncio.sleep(0.01)


async def answered(asking: Signals, name: str, data: bytes = b"?", *, enough: int = 1) -> list[bytes]:
    """Ask again and again until so many answers came at once; sorted."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            answers = await asking.ask(name, data, timeout_s=0.5, enough=enough)
            assert len(answers) <= enough
            if len(answers) == enough:
                return sorted(answers)


class SignalsContract:
    """The promises, one check each."""

    async def test_a_broadcast_is_heard_by_all_who_listen_and_by_its_sender_too(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, heard_a, heard_b = fresh("news"), list[bytes](), list[bytes]()
        await a.listen(name, heard_a.append)
        await b.listen(name, heard_b.append)
        await b.listen(name, heard_b.append)
        await said_until(lambda: a.broadcast(name, b"seen"), lambda: heard_a and len(heard_b) >= 2)
        assert {*heard_a, *heard_b} == {b"seen"}

    async def test_a_broadcast_is_heard_under_its_own_name_only(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, heard, others = fresh("news"), list[bytes](), list[bytes]()
        await b.listen(f"{name}.more", others.append)
        await b.listen(fresh("news"), others.append)
        await b.serve(name, _echo)
        await b.listen(name, heard.append)
        await said_until(lambda: a.broadcast(name, b""), lambda: heard)
        assert heard[0] == b"" and others == []

    async def test_what_was_said_before_is_not_heard_later(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, early, late = fresh("news"), list[bytes](), list[bytes]()
        await b.listen(name, early.append)
        await said_until(lambda: a.broadcast(name, b"old"), lambda: early)
        forget = await b.listen(fresh("barrier"), late.append)
        await forget()
        await b.listen(name, late.append)
        await said_until(lambda: a.broadcast(name, b"new"), lambda: late)
        assert late[0] == b"new"

    async def test_a_hearer_never_runs_inside_the_broadcast(self, world: SignalsWorld) -> None:
        a = await world.signals()
        name, is_saying, seen = fresh("news"), [False], list[bool]()
        await a.listen(name, lambda data: seen.append(is_saying[0]))

        def say() -> None:
            is_saying[0] = True
            a.broadcast(name, b"")
            is_saying[0] = False

        await said_until(say, lambda: seen)
        assert not any(seen)

    async def test_a_hearer_that_raises_harms_neither_the_others_nor_what_comes_next(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, broken, heard = fresh("news"), list[bytes](), list[bytes]()

        def breaks(data: bytes) -> None:
            broken.append(data)
            raise RuntimeError("a hearer that breaks")

        await b.listen(name, breaks)
        await b.listen(name, heard.append)
        await said_until(lambda: a.broadcast(name, b"x"), lambda: len(broken) > 2 and len(heard) > 2)

    async def test_who_has_stopped_listening_hears_nothing(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, gone, heard = fresh("news"), list[bytes](), list[bytes]()
        forget = await b.listen(name, gone.append)
        await b.listen(name, heard.append)
        await said_until(lambda: a.broadcast(name, b"1"), lambda: gone)
        await forget()
        await forget()
        count = len(gone)
        heard.clear()
        await said_until(lambda: a.broadcast(name, b"2"), lambda: b"2" in heard)
        assert len(gone) == count

    async def test_nobody_who_listens_and_nobody_who_answers_is_no_error(self, world: SignalsWorld) -> None:
        a = await world.signals()
        a.broadcast(fresh("news"), b"x")
        async with asyncio.timeout(LIMIT_S):
            assert list(await a.ask(fresh("status"), b"?", timeout_s=0.2)) == []

    async def test_a_question_is_answered_by_as_many_as_are_enough(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name = fresh("status")
        await a.serve(name, lambda data: _says(b"a" + data))
        await b.serve(name, lambda data: _says(b"b" + data))
        assert await answered(b, name, b"?", enough=2) == [b"a?", b"b?"]
        (one,) = await answered(b, name, b"!")
        assert one in {b"a!", b"b!"}
        async with asyncio.timeout(LIMIT_S):
            assert sorted(await b.ask(name, b".", timeout_s=0.3, enough=9)) == [b"a.", b"b."]

    async def test_a_question_is_told_from_a_broadcast_of_that_name(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, heard, asked = fresh("both"), list[bytes](), list[bytes]()

        async def answer(data: bytes) -> bytes:
            asked.append(data)
            return b"ok"

        await b.listen(name, heard.append)
        await b.serve(name, answer)
        await said_until(lambda: a.broadcast(name, b"told"), lambda: heard)
        assert await answered(a, name, b"asked") == [b"ok"]
        assert set(heard) == {b"told"} and set(asked) == {b"asked"}

    async def test_an_answer_that_comes_after_its_time_is_dropped(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, asked, may_answer = fresh("status"), list[bytes](), asyncio.Event()

        async def slow(data: bytes) -> bytes:
            asked.append(data)
            if data == b"slow":
                await may_answer.wait()
            return data

        await b.serve(name, slow)
        assert await answered(a, name, b"quick") == [b"quick"]
        async with asyncio.timeout(LIMIT_S):
            while b"slow" not in asked:
                assert list(await a.ask(name, b"slow", timeout_s=0.2)) == []
        may_answer.set()
        assert await answered(a, name, b"next") == [b"next"], "one slow answer holds up no other"

    async def test_silence_and_an_answer_that_raises_are_no_answers(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, asked = fresh("status"), list[bytes]()

        async def answer(data: bytes) -> bytes | None:
            asked.append(data)
            if data == b"break":
                raise RuntimeError("an answer that breaks")
            if data == b"large":
                return bytes(MAX_SIGNAL_BYTES + 1)
            return None if data == b"silence" else b"ok"

        await b.serve(name, answer)
        assert await answered(a, name) == [b"ok"]
        for question in (b"break", b"silence", b"large"):
            async with asyncio.timeout(LIMIT_S):
                while question not in asked:
                    assert list(await a.ask(name, question, timeout_s=0.2)) == []
        assert await answered(a, name) == [b"ok"]

    async def test_who_has_stopped_serving_is_not_asked(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name = fresh("status")
        forget = await b.serve(name, _echo)
        assert await answered(a, name, b"x") == [b"x"]
        await forget()
        await forget()
        async with asyncio.timeout(LIMIT_S):
            assert list(await a.ask(name, b"x", timeout_s=0.2)) == []

    async def test_a_question_that_is_given_up_harms_no_other(self, world: SignalsWorld) -> None:
        a, b = await world.signals(), await world.signals()
        name, asked, stays = fresh("status"), asyncio.Event(), asyncio.Event()

        async def answer(data: bytes) -> bytes:
            if data == b"stay":
                asked.set()
                await stays.wait()
            return data

        await b.serve(name, answer)
        assert await answered(a, name, b"x") == [b"x"]
        asking = asyncio.ensure_future(a.ask(name, b"stay", timeout_s=LIMIT_S))
        async with asyncio.timeout(LIMIT_S):
            await asked.wait()
        asking.cancel()
        await asyncio.wait([asking])
        assert asking.cancelled()
        stays.set()
        assert await answered(a, name, b"y") == [b"y"]

    async def test_the_largest_signal_passes_and_a_larger_one_is_refused_to_its_sender(
        self, world: SignalsWorld
    ) -> None:
        a, b = await world.signals(), await world.signals()
        name, heard, largest = fresh("news"), list[bytes](), bytes(MAX_SIGNAL_BYTES)
        await b.listen(name, heard.append)
        await b.serve(name, _echo)
        await said_until(lambda: a.broadcast(name, largest), lambda: heard)
        assert heard[0] == largest and await answered(a, name, largest) == [largest]
        _refused(lambda: a.broadcast(name, largest + b"x"))
        await _refused_later(a, name, largest + b"x")

    async def test_a_name_that_could_be_a_pattern_or_none_is_refused(self, world: SignalsWorld) -> None:
        a = await world.signals()
        for name in BAD_NAMES:
            _refused(lambda name=name: a.broadcast(name, b""))
            await _refused_later(a, name, b"")
            for entering in (a.listen(name, lambda data: None), a.serve(name, _echo)):
                try:
                    await entering
                except Misuse:
                    continue
                raise AssertionError(f"{name!r} was taken")
        await _refused_later(a, fresh("status"), b"", enough=0)


async def _says(data: bytes) -> bytes:
    return data


async def _echo(data: bytes) -> bytes:
    return data


def _refused(verb: Callable[[], None]) -> None:
    try:
        verb()
    except Misuse:
        return
    raise AssertionError("taken although it is none")


async def _refused_later(signals: Signals, name: str, data: bytes, *, enough: int = 1) -> None:
    try:
        await signals.ask(name, data, timeout_s=0.1, enough=enough)
    except Misuse:
        return
    raise AssertionError(f"{name!r} was taken")
