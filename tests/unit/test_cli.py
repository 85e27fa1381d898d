"""The command line without a node: arguments, files, exit codes, and one sentence for each thing that is wrong."""

import errno
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from crewlet import __version__
from crewlet.cli import main
from crewlet.cli.app import COMMANDS, load
from crewlet.company.document import load_company
from crewlet.node.settings import load_settings
from crewlet.supervisor.plan import PLAN_ENV, UpPlan

Capture = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def _own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)
    for name in ("CREWLET_URL", "CREWLET_NODE_ID", "CREWLET_API_TOKEN", PLAN_ENV):
        monkeypatch.delenv(name, raising=False)


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has loaded after running some code."""
    program = f"import sys\n{code}\nprint('\\n'.join(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.split())


def test_up_loads_nothing_but_the_standard_library_and_the_supervisor() -> None:
    code = (
        "import crewlet.cli, crewlet.supervisor.parent as parent\n"
        "parent.main = lambda argv: 42\n"
        "assert crewlet.cli.main(['up', '--config', 'x']) == 42"
    )
    loaded = loaded_by(code)
    ours = {name.split(".")[1] for name in loaded if name.startswith("crewlet.")}
    assert ours == {"cli", "supervisor", "kit"}
    assert not {name.split(".")[0] for name in loaded} & {
        "typer",
        "yaml",
        "pydantic",
        "structlog",
        "msgspec",
        "nats",
        "rich",
    }


SLOW = {
    "anthropic", "apsw", "cronsim", "fastapi", "jinja2", "mcp", "msgspec", "nats", "openai", "opentelemetry",
    "prometheus_client", "psutil", "pydantic", "pydantic_ai", "rich", "sse_starlette", "starlette", "structlog",
    "uvicorn", "uvloop", "yaml",
}  # fmt: skip


@pytest.mark.parametrize(
    ("command", "needed"),
    [
        (["--help"], set[str]()),
        # The command line's library brings pydantic as soon as it reads an option.
        (["--version"], {"pydantic"}),
        (["seat", "list"], {"yaml", "pydantic"}),
        (["status"], {"yaml", "pydantic"}),
        (["validate"], {"yaml", "pydantic", "msgspec", "cronsim"}),
        (["plan", "--nodes", "a,b"], {"yaml", "pydantic", "msgspec", "cronsim"}),
        (["up-plan"], {"yaml", "pydantic", "msgspec", "cronsim"}),
    ],
)
def test_a_command_loads_only_what_it_works_with(command: list[str], needed: set[str]) -> None:
    assert main(["init"]) == 0
    loaded = loaded_by(f"from crewlet.cli import main; main({command!r})")
    assert "typer" in loaded and {name.split(".")[0] for name in loaded} & SLOW <= needed
    others = {f"crewlet.cli.{module}" for name, (module, _) in COMMANDS.items() if name not in command}
    assert loaded & others <= {"crewlet.cli.version", "crewlet.cli.tail", "crewlet.cli.up"}


def test_a_node_loads_no_framework_that_its_company_and_settings_do_not_ask_for() -> None:
    loaded = loaded_by("import crewlet.cli.node, crewlet.wiring")
    assert "nats" in loaded
    unwanted = {"pydantic_ai", "mcp", "openai", "anthropic", "jsonschema", "fastapi", "starlette", "uvicorn"}
    assert not {name.split(".")[0] for name in loaded} & unwanted


def test_every_command_is_listed_whole_and_loads(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    listed = capfd.readouterr().out
    for name, (_, line) in COMMANDS.items():
        assert f"  {name}" in listed and line in listed
        assert load(name).name in (name, "") and main([name, "--help"]) == 0
        out = capfd.readouterr().out
        assert f"Usage: crewlet {name} " in out and "..." not in out.partition("Commands:")[2]


@pytest.mark.parametrize("module", ["crewlet", "crewlet.cli"])
def test_the_module_runs_as_a_program(module: str) -> None:
    command = [sys.executable, "-m", module, "version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert (done.stdout, done.stderr) == (f"crewlet {__version__}\n", "")


@pytest.mark.parametrize("args", [["version"], ["--version"]])
def test_the_version_is_printed(args: list[str], capsys: Capture) -> None:
    assert main(args) == 0
    assert capsys.readouterr().out == f"crewlet {__version__}\n"


@pytest.mark.parametrize(
    "args",
    [
        ["nope"],
        ["status", "--nope"],
        ["status", "-o", "xml"],
        ["seat", "send"],
        ["seat", "send", "a"],
        ["seat", "send", "a", ""],
        ["seat", "send", "a", "text", "--file", "f"],
        ["node", "lst"],
    ],
)
def test_wrong_usage_is_2_and_goes_to_standard_error(args: list[str], capsys: Capture) -> None:
    assert main(args) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("crewlet: ") and err.count("\n") == 1
    assert err.endswith("-h` shows how it is used.\n")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["statu"], "There is no command 'statu'; did you mean 'status'? `crewlet -h`"),
        (["seat", "lst"], "There is no command 'lst'; did you mean 'list'? `crewlet seat -h`"),
        (["seat", "pause", "a", "--for", "x"], "There is no option --for; `crewlet seat pause -h`"),
        (["status", "--ulr", "x"], "There is no option --ulr; did you mean '--url'? `crewlet status -h`"),
        (["status", "extra", "more"], "There is one word too many: 'extra more'; `crewlet status -h`"),
        (["status", "-o", "xml"], "--output: 'xml' is neither table nor json; `crewlet status -h`"),
        (["status", "-c"], "-c needs a value; `"),
        (["seat", "pause", "a", "--stop-running=3"], "--stop-running takes no value; `"),
        (["seat", "mail"], "HANDLE is missing; `crewlet seat mail -h`"),
        (["plan"], "--nodes is missing; `crewlet plan -h`"),
    ],
)
def test_wrong_usage_is_told_in_words_of_our_own(args: list[str], says: str, capsys: Capture) -> None:
    assert main(args) == 2
    assert capsys.readouterr().err.startswith(f"crewlet: {says}")


def test_wrong_usage_is_told_to_programs_too(capsys: Capture) -> None:
    assert main(["status", "-o", "json", "extra"]) == 2
    assert json.loads(capsys.readouterr().out)["error"] == "usage"


def test_the_plans_usage_is_that_of_up(capsys: Capture) -> None:
    assert main(["up-plan", "--nope"]) == 2
    assert capsys.readouterr().err.endswith("`crewlet up -h` shows how it is used.\n")


@pytest.mark.parametrize(
    "args", [["--help"], ["seat", "-h"], ["node", "--help"], ["up-plan", "--help"], ["demo", "-h"]]
)
def test_help_is_0_and_goes_to_standard_output(args: list[str], capsys: Capture) -> None:
    assert main(args) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: ") and err == ""


def test_init_writes_files_that_are_valid_as_they_are(tmp_path: Path, capsys: Capture) -> None:
    assert main(["init", "made/here"]) == 0
    folder = tmp_path / "made" / "here"
    assert "crewlet up" in capsys.readouterr().out
    settings = load_settings(folder / "crewlet.yaml", environ={})
    company = load_company(settings.company)
    assert settings.coordination.type == "local"
    assert [seat.handle for seat in company.seats] == ["greeter", "counter"]
    assert main(["validate", "-c", str(folder / "crewlet.yaml")]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("bodies", "counted"), [(["one two", "three"], "3 words"), (["one"], "1 word"), ([], "0 words")]
)
def test_the_program_that_init_writes_speaks_the_protocol(bodies: list[str], counted: str) -> None:
    assert main(["init"]) == 0
    turn = {"v": 1, "seat": "counter", "mail": [{"body": body} for body in bodies]}
    done = subprocess.run(
        [sys.executable, "count_words.py"],
        input=json.dumps(turn) + "\n",
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert lines[-1] == {"outcome": "delivered", "detail": counted}


@pytest.mark.parametrize("name", ["crewlet.yaml", "company.yaml", "count_words.py"])
def test_init_overwrites_nothing_and_writes_nothing_beside_it(name: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / name).write_text("mine")
    assert main(["init"]) == 78
    assert capsys.readouterr().err == (
        f"crewlet: {name}: the file is there already, and nothing was written; remove it, or name another folder.\n"
    )
    assert [path.name for path in tmp_path.iterdir()] == [name] and (tmp_path / name).read_text() == "mine"


@pytest.mark.parametrize(
    ("named", "in_the_way"),
    [
        ("plain", "plain: it is not a folder"),
        ("plain/below", "plain: it is not a folder"),
        ("dangling", "dangling: a link that leads nowhere"),
        ("/proc/company", "/proc/company: no such file or directory"),
        ("x" * 300, f"{'x' * 300}: file name too long"),
    ],
)
def test_init_needs_a_folder_and_says_what_is_in_the_way(
    named: str, in_the_way: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "plain").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert main(["init", named]) == 78
    assert capsys.readouterr().err == (
        f"crewlet: the folder {named} cannot be used: {in_the_way}; name one that this user may write to.\n"
    )
    assert (tmp_path / "plain").read_text() == "mine"


def test_init_on_a_full_disk_fails_and_leaves_no_part_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    opened: Callable[..., Any] = Path.open

    def full(path: Path, *args: Any, **kwargs: Any) -> Any:
        if args == ("x",) and path.name == "company.yaml":
            raise OSError(errno.ENOSPC, "No space left on device", str(path))
        return opened(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", full)
        assert main(["init", "made"]) == 1
    sentence = "The files cannot be written: made/company.yaml: no space left on device; make room."
    assert capsys.readouterr().err == f"crewlet: {sentence}\n"
    assert main(["init", "made"]) == 0


def test_mail_that_is_left_behind_in_an_embedded_broker_is_warned_of(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "company.yaml").write_text("name: Desk\n")
    settings = "node: {id: a}\ncoordination: {type: embedded-kv}\nstream: {type: nats, url: 'nats://127.0.0.1:4222'}\n"
    (tmp_path / "crewlet.yaml").write_text(settings)
    assert main(["validate"]) == 0
    assert capsys.readouterr().err == ""
    (tmp_path / ".crewlet" / "broker" / "jetstream").mkdir(parents=True)
    assert main(["validate"]) == 0
    assert "has the mail, ledger and dead letters of an embedded broker" in capsys.readouterr().err


def test_validate_tells_what_it_read_as_json(tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crewlet.yaml").write_text("node: {labels: {zone: eu}}")
    (tmp_path / "company.yaml").write_text(
        "name: Desk\nroles:\n  - handle: idle\n  - handle: lost\n    placement: {labels: {zone: us}}\n"
        "    runner: {type: command, command: no-such-program-here}\n"
        "  - handle: gone\n    runner: {type: command, command: sh, cwd: nowhere}\n"
        "  - handle: unset\n    runner: {type: command, command: sh, env: {KEY: '${NOPE}'}}\n"
        "  - handle: agent\n    runner: {type: python, target: 'json:loads', env: {KEY: '${NOPE}'}}\n    tools:\n"
        "      servers:\n        a: {command: sh, env: {KEY: '${NOPE}'}}\n        b: {command: no-such-server}\n"
        "        c: {url: 'https://tools.example/mcp', headers: {Authorization: 'Bearer ${NOPE}'}}\n"
    )
    monkeypatch.setenv("PATH", "/bin")
    assert main(["validate", "-o", "json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["ok"], result["company"], result["seats"], result["node"]) == (True, "Desk", 5, "node-0")
    assert result["warnings"] == [
        "seat 'idle' has no steps to run: its mail is finished without any work.",
        "seat 'lost' is not ready on this machine: no-such-program-here was not found on the path /bin.",
        "seat 'lost' is placed on zone=us, which this only node is not: nobody runs it.",
        f"seat 'gone' is not ready on this machine: the working folder {tmp_path}/nowhere is missing or not a folder.",
        "seat 'unset' is not ready on this machine: its env needs the variable NOPE, which is not set.",
        "seat 'agent' is not ready on this machine: its env needs the variable NOPE, which is not set.",
        "seat 'agent' is not ready on this machine: its tool server a needs the variable NOPE, which is not set.",
        "seat 'agent' is not ready on this machine: its tool server b cannot be started:"
        " no-such-server was not found on the path /bin.",
        "seat 'agent' is not ready on this machine: its tool server c needs the variable NOPE, which is not set.",
    ]


def test_validate_looks_for_programs_on_the_path_that_is_meant(
    tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "crewlet.yaml").write_text("")
    (tmp_path / "company.yaml").write_text(
        "name: Desk\nroles:\n  - handle: one\n"
        "    runner: {type: command, command: sh, env: {PATH: '/opt/none:${PATH}'}}\n"
    )
    monkeypatch.setenv("PATH", "/bin")
    assert main(["validate"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("command", [["validate"], ["up-plan"], ["node"]])
def test_a_refused_file_is_78_and_one_sentence(command: list[str], tmp_path: Path, capsys: Capture) -> None:
    assert main(command) == 78
    assert capsys.readouterr().err == (
        "crewlet: crewlet.yaml: the file does not exist; write one, or let `crewlet init` do it.\n"
    )
    (tmp_path / "crewlet.yaml").write_text("company: people.yaml")
    (tmp_path / "people.yaml").write_text("name: x\nroles:\n  - handle: A\n")
    assert main(command) == 78
    out, err = capsys.readouterr()
    assert out == "" and err.startswith("crewlet: people.yaml:3: roles[0].handle: 'A' cannot be a handle; ")
    assert err.count("\n") == 1


def test_the_plan_goes_to_the_descriptor_it_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "crewlet.yaml").write_text(
        "node: {id: n.1, data_dir: d}\ncoordination: {type: embedded-kv, lease_ttl_seconds: 9}\n"
        "stream: {port: 4222, token: t, sync: always,\n"
        "  cluster: {port: 6001, peers: ['localhost:6002', 'localhost:6003']}}"
    )
    (tmp_path / "company.yaml").write_text("name: x")
    read_end, write_end = os.pipe()
    monkeypatch.setenv(PLAN_ENV, str(write_end))
    assert main(["up-plan"]) == 0
    with open(read_end) as pipe:
        plan = UpPlan.from_json(pipe.read())
    assert (plan.data_dir, plan.lease_ttl_s) == (tmp_path / "d", 9.0)
    assert plan.node_argv[-3:] == ("node", "--config", str(tmp_path / "crewlet.yaml"))
    broker = plan.broker
    assert broker is not None and broker.cluster is not None
    assert (broker.name, broker.store_dir, broker.port, broker.token) == ("n~1", tmp_path / "d" / "broker", 4222, "t")
    assert (broker.sync_interval, broker.cluster.peers) == ("always", ("localhost:6002", "localhost:6003"))


def test_a_plan_for_an_external_broker_has_none_and_for_one_node_no_deadline(tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "company.yaml").write_text("name: x")
    (tmp_path / "crewlet.yaml").write_text("coordination: {type: embedded-kv}\nstream: {type: nats, url: nats://b}")
    assert main(["up-plan"]) == 0
    assert UpPlan.from_json(capsys.readouterr().out).broker is None
    (tmp_path / "crewlet.yaml").write_text("")
    assert main(["up-plan"]) == 0
    assert UpPlan.from_json(capsys.readouterr().out).lease_ttl_s is None


@pytest.mark.parametrize("command", [["status"], ["node", "list"], ["seat", "list"], ["seat", "send", "a", "text"]])
class TestWithoutANode:
    def test_no_settings_here_is_78(self, command: list[str], capsys: Capture) -> None:
        assert main(command) == 78
        assert capsys.readouterr().err == (
            "crewlet: crewlet.yaml: the file does not exist; "
            "name a settings file with --config, or a node with --url.\n"
        )

    def test_no_running_node_is_1(self, command: list[str], tmp_path: Path, capsys: Capture) -> None:
        (tmp_path / "crewlet.yaml").write_text("")
        assert main(command) == 1
        assert capsys.readouterr().err == (
            "crewlet: No node has run with crewlet.yaml yet; start one with `crewlet up`.\n"
        )

    def test_the_address_of_a_node_that_died_is_not_used(
        self, command: list[str], tmp_path: Path, capsys: Capture
    ) -> None:
        gone = subprocess.Popen([sys.executable, "-c", ""])
        gone.wait()
        (tmp_path / "crewlet.yaml").write_text("")
        run = tmp_path / ".crewlet" / "run"
        run.mkdir(parents=True)
        (run / "node.json").write_text(json.dumps({"url": "http://127.0.0.1:1", "pid": gone.pid, "node_id": "n"}))
        assert main(command) == 1
        assert "No node has run with crewlet.yaml" in capsys.readouterr().err

    def test_a_silent_address_is_1_and_named(self, command: list[str], capsys: Capture) -> None:
        assert main([*command, "--url", "http://127.0.0.1:1"]) == 1
        assert capsys.readouterr().err == "crewlet: No node answers at http://127.0.0.1:1 (Connection refused).\n"

    @pytest.mark.parametrize(
        "url", ["http://ada:sesame@127.0.0.1:1", "http://127.0.0.1:1/?token=sesame", "ftp://:sesame@x", "h:1#sesame"]
    )
    def test_a_secret_in_an_address_is_refused_and_not_repeated(
        self, command: list[str], url: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert main([*command, "--url", url]) == 78
        monkeypatch.setenv("CREWLET_URL", url)
        assert main(command) == 78
        told = capsys.readouterr()
        assert "sesame" not in told.out + told.err
        assert "a user, password or query is no part of a node's address" in told.err

    @pytest.mark.parametrize(
        "url", ["ftp://x", "http://exa mple:80", "http://a\nb", "http://\udcff", f"http://{'x' * 70}", "http://a/ä"]
    )
    def test_what_is_no_address_is_78(self, command: list[str], url: str, capsys: Capture) -> None:
        assert main([*command, "--url", url]) == 78
        assert capsys.readouterr().err == (
            f"crewlet: --url: {url!r} is not the address of a node; write http://host:port.\n"
        )


@pytest.mark.parametrize(
    ("words", "offered"),
    [("crewlet se", {"seat"}), ("crewlet seat pa", {"pause"}), ("crewlet seat send --w", {"--wait"})],
)
def test_a_shell_is_told_how_a_word_may_go_on_also_of_commands_that_are_loaded_late(
    words: str, offered: set[str]
) -> None:
    told = {"_CREWLET_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1)}
    crewlet = Path(sys.executable).with_name("crewlet")
    run = subprocess.run([crewlet], check=True, env={**os.environ, **told}, capture_output=True, text=True, timeout=60)
    assert set(run.stdout.split()) == offered
