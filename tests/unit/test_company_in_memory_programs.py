"""Programs of `command` seats in a company in memory: real processes, for whose words virtual time waits."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from crewlet.testing import InMemoryCompany, NotIdle

pytestmark = pytest.mark.usefixtures("warnings_only")

START = "read -r start; "
DONE = """echo '{"outcome": "delivered", "detail": "done"}'"""

Make = Callable[[str], InMemoryCompany]


@pytest.fixture
def of_script(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    def make(script: str) -> InMemoryCompany:
        (tmp_path / "seat.sh").write_text(script)
        (tmp_path / "company.yaml").write_text(
            "name: A\nroles:\n  - {handle: a, runner: {type: command, command: [sh, seat.sh], timeout_s: 60}}\n"
            "  - {handle: b}\n"
        )
        company = InMemoryCompany(tmp_path / "company.yaml")
        request.addfinalizer(company.close)
        return company

    return make


def test_a_program_that_is_silent_runs_into_its_virtual_time_limit(
    of_script: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("crewlet.testing.inmemory.realprogram._PATIENCE_S", 0.2)
    company = of_script("exec sleep 1000")
    mail = company.send("a", "hi")
    company.run_until(lambda: mail.runs and mail.runs[0].outcome)
    assert (mail.runs[0].outcome, mail.detail) == ("broke", "program_timed_out: no outcome within 60 s")
    assert company.now_s > 60


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (f"{START} echo oh no >&2; exit 3", "program_failed: it exited with code 3; it said: oh no"),
        (
            f"{START} printf 'Traceback\\n  x()\\nError: no\\n' >&2; exit 1",
            "said: Error: no (before that: Traceback x())",
        ),
        (f"{START} exit 0", "program_without_outcome: it exited without an outcome"),
        (f"{START} echo nonsense", "program_bad_line"),
        ("exit 0", "program_without_outcome: it exited without an outcome"),
    ],
)
def test_a_program_that_breaks_is_named_as_on_a_node(of_script: Make, script: str, why: str) -> None:
    company = of_script(script)
    mail = company.send("a", "hi")
    company.run_until(lambda: mail.runs and mail.runs[0].outcome)
    assert why in mail.detail


def test_a_node_that_dies_takes_its_program_with_it_and_the_next_run_sends_the_same_mail(
    of_script: Make, tmp_path: Path
) -> None:
    send = """echo '{"send": {"to": "b", "body": "x"}}'; read -r sent; """
    company = of_script(f"{START} echo $$ >> pids; {send} {send} {DONE}")
    company.crash_at("a", send=2)
    mail = company.send("a", "hi")
    company.run_until_idle()
    company.assert_ran_once(mail)
    assert len(company.mail_to("b")) == 2
    first, second = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    assert first != second
    for pid in (first, second):
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_a_program_that_is_not_there_is_told(of_script: Make, tmp_path: Path) -> None:
    of_script("")
    (tmp_path / "company.yaml").write_text(
        "name: A\nroles:\n  - {handle: a, runner: {type: command, command: [nobody-has-this]}}\n"
    )
    with InMemoryCompany(tmp_path / "company.yaml") as company:
        mail = company.send("a", "hi")
        with pytest.raises(NotIdle, match="agent_not_ready; nobody-has-this was not found on the path"):
            company.run_until_idle()
        assert not mail.runs
