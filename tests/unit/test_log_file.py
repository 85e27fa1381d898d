"""The log in a file, beside standard error or in its place."""

import errno
import io
import json
import logging
import os
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from crewlet.adapters.system.logfile import LogFile
from crewlet.adapters.system.logs import FileLog, Form, configure_logs


@pytest.fixture(autouse=True)
def settings_are_put_back() -> Iterator[None]:
    before, root = structlog.get_config(), logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()
    yield
    structlog.configure(**before)
    root.handlers[:] = handlers
    root.setLevel(level)


def file_log(path: Path, level: str = "info", form: Form = "json") -> FileLog:
    return FileLog(LogFile(path, max_bytes=1_000_000, max_backups=1), level, form)


class FullDisk(io.StringIO):
    def write(self, s: str, /) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")


class NoRoom(LogFile):
    def __init__(self, path: Path) -> None:
        super().__init__(path, max_bytes=1_000_000, max_backups=1)
        self._file.close()
        self._file = FullDisk()


def events(text: str) -> list[str]:
    return [json.loads(line)["event"] for line in text.splitlines()]


def test_an_event_goes_to_both_each_by_its_own_level_and_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "crewlet.log"
    configure_logs(level="warning", form="console", file=file_log(path, "debug"))
    log = structlog.get_logger()
    log.debug("quiet", seat="a")
    log.warning("loud", seat="a")
    assert events(path.read_text()) == ["quiet", "loud"]
    said = capsys.readouterr().err
    assert "loud" in said and "quiet" not in said and "{" not in said


def test_what_only_standard_error_is_to_have_is_not_in_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "crewlet.log"
    configure_logs(level="debug", file=file_log(path, "error"))
    structlog.get_logger().info("quiet")
    assert path.read_text() == "" and events(capsys.readouterr().err) == ["quiet"]


def test_without_standard_error_the_file_has_all_of_it_traceback_and_libraries_included(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "crewlet.log"
    logging.getLogger().handlers.clear()  # pytest's own, which keep libraries from being listened to
    configure_logs(stderr=False, file=file_log(path))
    try:
        raise RuntimeError("boom")
    except RuntimeError:
        structlog.get_logger().exception("broke")
    logging.getLogger("a.library").warning("it is %s", "odd")
    broke, said = [json.loads(line) for line in path.read_text().splitlines()]
    assert broke["event"] == "broke" and "RuntimeError: boom" in broke["exception"]
    assert (said["event"], said["library"], said["said"]) == ("library_said", "a.library", "it is odd")
    assert capsys.readouterr().err == ""


def test_what_a_library_says_is_one_line_of_json_on_standard_error_too(capsys: pytest.CaptureFixture[str]) -> None:
    logging.getLogger().handlers.clear()  # pytest's own, which keep libraries from being listened to
    configure_logs()
    try:
        raise ValueError("oops")
    except ValueError:
        logging.getLogger("a.library").exception("it broke")
    (said,) = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert (said["event"], said["level"], said["said"]) == ("library_said", "error", "it broke")
    assert "ValueError: oops" in said["exception"]


def test_a_full_file_is_moved_aside_and_so_many_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "crewlet.log"
    file = LogFile(path, max_bytes=10, max_backups=2)
    for number in range(5):
        file.write(f"line {number}\n")
    file.close()
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == {
        "crewlet.log": "line 4\n",
        "crewlet.log.1": "line 3\n",
        "crewlet.log.2": "line 2\n",
    }
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_was_there_is_gone_on_with_and_one_without_backups_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "crewlet.log"
    path.write_text("before\n")
    file = LogFile(path, max_bytes=12, max_backups=0)
    file.write("more\n")
    assert path.read_text() == "before\nmore\n"
    file.write("anew\n")
    assert path.read_text() == "anew\n" and list(tmp_path.iterdir()) == [path]
    file.close()


def test_a_file_that_somebody_else_moved_emptied_or_deleted_is_followed(tmp_path: Path) -> None:
    path, moved = tmp_path / "crewlet.log", tmp_path / "crewlet.log-20300131"
    file = LogFile(path, max_bytes=20, max_backups=1)
    file.write("line 0\n")
    path.rename(moved)
    file.write("line 1\n")
    assert (moved.read_text(), path.read_text()) == ("line 0\n", "line 1\n")
    assert path.stat().st_mode & 0o777 == 0o600
    path.rename(moved)
    path.write_text("by another\n")
    file.write("line 2\n")
    assert path.read_text() == "by another\nline 2\n"
    os.truncate(path, 0)
    file.write("line 3\n")
    assert path.read_text() == "line 3\n" and not (tmp_path / "crewlet.log.1").exists()
    path.unlink()
    file.write("line 4\n")
    assert path.read_text() == "line 4\n"
    file.close()


def test_a_file_that_cannot_be_moved_aside_is_said_once_and_written_again_as_soon_as_it_can(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, in_the_way = tmp_path / "crewlet.log", tmp_path / "crewlet.log.1"
    file = LogFile(path, max_bytes=10, max_backups=1)
    file.write("line 0\n")
    in_the_way.mkdir()
    (in_the_way / "something").touch()
    file.write("line 1\n")
    file.write("line 2\n")
    assert capsys.readouterr().err.count(f"the log file {path} cannot be written") == 1
    (in_the_way / "something").unlink()
    in_the_way.rmdir()
    file.write("line 3\n")
    assert (path.read_text(), in_the_way.read_text()) == ("line 3\n", "line 0\n")
    file.close()


@pytest.mark.parametrize("has_file", [True, False])
def test_neither_a_full_disk_nor_a_reader_that_is_gone_breaks_whoever_logs(
    has_file: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stderr", FullDisk())
    configure_logs(file=FileLog(NoRoom(tmp_path / "crewlet.log"), "info", "json") if has_file else None)
    for level in ("debug", "info", "warning", "error", "critical", "exception"):
        getattr(structlog.get_logger(), level)("said")


def test_a_device_is_never_moved_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[Path] = []

    def replace(source: Path, target: Path) -> None:
        moved.append(source)

    monkeypatch.setattr(Path, "replace", replace)
    file = LogFile(Path("/dev/null"), max_bytes=10, max_backups=1)
    for _ in range(3):
        file.write("a line\n")
    file.close()
    assert moved == []


def test_a_file_that_could_never_be_moved_aside_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def access(path: Path, mode: int) -> bool:
        return path != tmp_path

    monkeypatch.setattr(os, "access", access)
    with pytest.raises(PermissionError, match="move it aside"):
        LogFile(tmp_path / "crewlet.log", max_bytes=10, max_backups=1)


def test_lines_of_many_threads_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "crewlet.log"
    file = LogFile(path, max_bytes=1000, max_backups=100)

    def write(name: str) -> None:
        for number in range(200):
            file.write(f"{name} {number}\n")

    threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file.close()
    lines = [line for each in tmp_path.iterdir() for line in each.read_text().splitlines()]
    assert sorted(lines) == sorted(f"{name} {number}" for name in "abcd" for number in range(200))


def test_a_library_whose_words_do_not_fit_is_not_broken_by_the_log(tmp_path: Path) -> None:
    path = tmp_path / "crewlet.log"
    logging.getLogger().handlers.clear()
    configure_logs(stderr=False, file=file_log(path))
    logging.getLogger("a.library").warning("it is %d", "odd")
    assert json.loads(path.read_text())["said"] == "it is %d ('odd',)"
