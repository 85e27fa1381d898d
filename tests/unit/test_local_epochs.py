"""The file that lets epochs grow across restarts."""

import asyncio
import os
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from crewlet.adapters.local import epochs as epochs_module
from crewlet.adapters.local.cells import LocalCells
from crewlet.adapters.local.epochs import EpochsFile, JournalRecord
from crewlet.kit.refusal import ConfigRefused
from crewlet.ports.cells import BucketSpec, Cells, Done, Unknown
from crewlet.ports.errors import Misuse


class Clock:
    """A clock that stands still unless moved; `elapsed` begins anew with each, as after a boot."""

    def __init__(self) -> None:
        self.elapsed_s = 0.0

    def now(self) -> datetime:
        return datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=self.elapsed_s)

    def elapsed(self) -> float:
        return self.elapsed_s

    async def sleep(self, seconds: float) -> None:
        self.elapsed_s += seconds
        await asyncio.sleep(0)


async def epochs(path: Path) -> Cells:
    """The bucket as a new process finds it."""
    return await LocalCells(Clock(), epochs_file=path).open(BucketSpec("crewlet_epochs"))


async def put(cells: Cells, key: str, value: bytes) -> int:
    entry = await cells.read(key)
    result = await (cells.create(key, value) if entry is None else cells.replace(key, value, expect=entry.revision))
    assert isinstance(result, Done)
    return result.revision


async def content(cells: Cells) -> dict[str, bytes]:
    return {entry.key: entry.value for entry in await cells.list()}


async def test_what_was_answered_is_there_after_a_restart_and_revisions_go_on(tmp_path: Path) -> None:
    path = tmp_path / "data" / "epochs"
    first = await epochs(path)
    await put(first, "seat.a", b"1")
    await put(first, "seat.b", b"\x00\xff\n")
    await put(first, "seat.a", b"2")
    second = await epochs(path)
    assert await content(second) == {"seat.a": b"2", "seat.b": b"\x00\xff\n"}
    assert await second.list() == await first.list()
    assert await put(second, "seat.c", b"1") == 4


async def test_a_removed_key_stays_removed_and_its_revision_is_not_used_again(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    cells = await epochs(path)
    revision = await put(cells, "k", b"1")
    assert await cells.remove("k", expect=revision) == Done(2)
    again = await epochs(path)
    assert await content(again) == {}
    assert (await again.mark()).last_revision == 2
    assert await again.create("k", b"1") == Done(3)


async def test_a_write_torn_at_any_byte_leaves_every_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    cells = await epochs(path)
    await put(cells, "seat.a", b"1")
    before = path.read_bytes()
    await put(cells, "seat.a", b"2")
    after = path.read_bytes()
    assert after.startswith(before)
    for size in [*range(len(before), len(after), 7), len(after) - 1, len(after)]:
        path.write_bytes(after[:size])
        # The closing newline alone may be missing: then the record is whole, and keeping it does no harm.
        expected = b"2" if size >= len(after) - 1 else b"1"
        found = await epochs(path)
        assert await content(found) == {"seat.a": expected}, size
        await put(found, "seat.a", b"3")
        assert await content(await epochs(path)) == {"seat.a": b"3"}


@pytest.mark.parametrize("line", [0, 1, 2])
async def test_a_damaged_line_that_was_answered_is_refused_by_name_and_number(tmp_path: Path, line: int) -> None:
    path = tmp_path / "epochs"
    cells = await epochs(path)
    for value in (b"1", b"2", b"3"):
        await put(cells, "seat.a", value)
    lines = path.read_bytes().split(b"\n")
    lines[line] = lines[line][:-3] + b"???"
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(ConfigRefused) as refusal:
        await epochs(path)
    assert str(path) in str(refusal.value) and "restore" in str(refusal.value)
    assert line == 0 or f"line {line + 1} " in str(refusal.value)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x00" * 100, b"{}\n"])
async def test_a_file_of_another_kind_is_refused_and_left_as_it_is(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "epochs"
    path.write_bytes(content)
    with pytest.raises(ConfigRefused):
        await epochs(path)
    assert path.read_bytes() == content


async def test_a_folder_in_its_place_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match="cannot be read"):
        await epochs(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
async def test_a_file_that_may_not_be_read_or_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    await put(await epochs(path), "k", b"1")
    path.chmod(0)
    with pytest.raises(ConfigRefused, match="cannot be read"):
        await epochs(path)
    path.chmod(stat.S_IRUSR)
    tmp_path.chmod(stat.S_IRUSR | stat.S_IXUSR)
    with pytest.raises(ConfigRefused, match="cannot be written"):
        await epochs(path)


async def test_a_write_that_the_disk_refused_is_unknown_and_the_next_one_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "epochs"
    cells = await epochs(path)
    revision = await put(cells, "k", b"1")
    with monkeypatch.context() as patch:

        def no_space(fd: int) -> None:
            raise OSError(28, "No space left on device")

        patch.setattr(os, "fsync", no_space)
        assert isinstance(await cells.replace("k", b"2", expect=revision), Unknown)
        assert isinstance(await cells.replace("k", b"3", expect=revision), Unknown)
    later = await cells.replace("k", b"4", expect=revision)
    assert isinstance(later, Done) and later.revision > revision + 2
    assert await content(await epochs(path)) == {"k": b"4"}


async def test_a_cancelled_write_leaves_memory_and_file_alike(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    cells = await epochs(path)
    for number in range(20):
        writing = asyncio.ensure_future(put(cells, "k", b"%d" % number))
        for _ in range(number % 4):
            await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait({writing})
        assert writing.cancelled()
        assert await content(await epochs(path)) == await content(cells)


async def test_the_file_stays_small_however_often_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(epochs_module, "SPARE_LINES", 20)
    path = tmp_path / "epochs"
    file = EpochsFile(path)
    file.load()
    for revision in range(1, 101):
        file.append(JournalRecord("k", b"1", revision, datetime(2030, 1, 1, tzinfo=UTC)))
    assert path.read_bytes().count(b"\n") < 30
    assert EpochsFile(path).load()["k"].revision == 100


async def test_only_the_epochs_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "epochs"
    store = LocalCells(Clock(), epochs_file=path)
    leases = await store.open(BucketSpec("crewlet_leases", max_age_s=30))
    await put(leases, "seat.a", b"1")
    assert not path.exists()


async def test_an_age_runs_on_elapsed_time_and_is_never_early() -> None:
    clock = Clock()
    cells = await LocalCells(clock).open(BucketSpec("crewlet_leases", max_age_s=10))
    await put(cells, "k", b"1")
    clock.elapsed_s = 9.999
    assert await content(cells) == {"k": b"1"}
    clock.elapsed_s = 10.0
    assert await content(cells) == {}


@pytest.mark.parametrize(
    ("name", "max_age_s"), [("", None), ("A", None), ("a.b", None), ("a", 0.5), ("a", float("nan"))]
)
async def test_a_bucket_that_cannot_be_is_the_callers_bug(name: str, max_age_s: float | None) -> None:
    with pytest.raises(Misuse):
        await LocalCells(Clock()).open(BucketSpec(name, max_age_s))
