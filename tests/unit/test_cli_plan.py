"""`crewlet plan`: a fleet on the command line, tables and JSON, and one sentence for each thing that is wrong."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from crewlet.cli import main
from crewlet.cli.app import app
from crewlet.cli.nodespec import read_nodes
from crewlet.kit.refusal import ConfigRefused
from crewlet.seats.noderow import ROLES, NodeRow

Capture = pytest.CaptureFixture[str]

DESK = """name: Desk
roles:
  - {handle: lead}
  - {handle: writer}
  - {handle: editor}
  - {handle: eu-1, placement: {labels: {zone: eu}}}
  - {handle: eu-2, placement: {labels: {zone: eu}}}
  - {handle: us-1, placement: {labels: {zone: us}}}
"""
FLEET = "a{zone=eu},b,c"


@pytest.fixture(autouse=True)
def _desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "company.yaml").write_text(DESK)


def planned(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["plan", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def planned_facts(*arguments: str) -> dict[str, Any]:
    return json.loads(planned(*arguments, "-o", "json"))


def big(folder: Path, seats: int, placement: str = "") -> None:
    lines = [f"  - {{handle: s{n}{placement.format(n=n)}}}" for n in range(seats)]
    (folder / "big.yaml").write_text("\n".join(["name: Big", "roles:", *lines]))


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ("a", [NodeRow("a")]),
        (" a , b\nc ", [NodeRow("a"), NodeRow("b"), NodeRow("c")]),
        ("a{zone=eu,gpu=}", [NodeRow("a", labels={"gpu": "", "zone": "eu"})]),
        ("a{},b{ x = 1=2 , }", [NodeRow("a"), NodeRow("b", labels={"x": "1=2"})]),
        ("n.1_x-y[ingress, workers]{k=v}", [NodeRow("n.1_x-y", frozenset({"ingress", "workers"}), {"k": "v"})]),
        ("a{k=v}[seats]", [NodeRow("a", frozenset({"seats"}), {"k": "v"})]),
    ],
)
def test_a_fleet_is_read_from_one_text(text: str, rows: list[NodeRow]) -> None:
    assert list(read_nodes(text)) == rows
    assert all(row.roles <= set(ROLES) for row in rows)


@pytest.mark.parametrize(
    ("text", "position", "problem"),
    [
        ("", 1, "there is no node"),
        ("  ", 1, "there is no node"),
        (",a", 1, "a node's id is missing before ','"),
        ("a,,b", 3, "a node's id is missing before ','"),
        ("a, ", 2, "a node's id is missing after the last comma"),
        ("a,{zone=eu}", 3, "a node's id is missing before '{'"),
        ("a b;c", 3, "'b;c' cannot be a node id"),
        ("a,b, a", 6, "the node 'a' is here twice"),
        ("a{zone", 2, "the labels of 'a' have no closing '}'"),
        ("a[seats,b", 2, "the roles of 'a' have no closing ']'"),
        ("a{x=1, zone}", 8, "the label 'zone' has no value"),
        ("a{x=1,x=2}", 7, "the label 'x' is here twice"),
        ("a{=1}", 3, "'' cannot be a label key"),
        ("a{x y=1}", 3, "'x y' cannot be a label key"),
        (f"a{{x={'v' * 257}}}", 3, "this label value is too long or has control characters"),
        ("a{x=\udcff}", 3, "this label value is too long or has control characters"),
        ("a{\udcff=1}", 3, "'\\udcff' cannot be a label key"),
        ("\udcff", 1, "'\\udcff' cannot be a node id"),
        ("a{x=1}{y=2}", 7, "the labels of 'a' are here twice"),
        ("a{x=1}b", 7, "'b' is not expected after the node 'a'"),
        ("a{x=1}}", 7, "'}' is not expected after the node 'a'"),
        ("a[seats,seat]", 9, "'seat' is no role"),
        ("a[]", 3, "a node without a role does nothing"),
    ],
)
def test_what_is_no_fleet_is_refused_with_its_position(text: str, position: int, problem: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read_nodes(text)
    assert (refused.value.where, refused.value.problem) == (f"--nodes: character {position}", problem)
    assert refused.value.remedy


def test_the_table_says_who_holds_what_what_is_nobodys_and_what_each_loss_moves() -> None:
    assert planned("company.yaml", "--nodes", FLEET) == (
        "NODE  LABELS   SEATS  AT MOST  IF IT IS LOST        HOLDS\n"
        "a     zone=eu  3      3        1 to b; 2 to nobody  eu-1, eu-2, lead\n"
        "b     -        1      1        1 to a               writer\n"
        "c     -        1      1        1 to a               editor\n"
        "\n"
        "PLACEMENT  SEATS  NODES  EACH AT MOST\n"
        "zone=us    1      0      0\n"
        "zone=eu    2      1      2\n"
        "anywhere   3      3      1\n"
        "\n"
        "UNPLACEABLE  PLACEMENT  WHY                          SEATS\n"
        "1            zone=us    no node is labelled zone=us  us-1\n"
    )


def test_one_loss_is_told_in_detail() -> None:
    assert planned("--nodes", FLEET, "--lose", "a") == (
        "NODE  SEATS  TAKES  THEN HOLDS\n"
        "b     1      1      2\n"
        "c     1      0      1\n"
        "\n"
        "SEAT  FROM  TO\n"
        "lead  a     b\n"
        "\n"
        "After a crash they run again within the lease TTL and 10 s.\n"
        "\n"
        "STRANDED  PLACEMENT  WHY                          SEATS\n"
        "2         zone=eu    no node is labelled zone=eu  eu-1, eu-2\n"
        "\n"
        "UNPLACEABLE BEFORE  PLACEMENT  WHY                          SEATS\n"
        "1                   zone=us    no node is labelled zone=us  us-1\n"
    )


def test_json_has_everything() -> None:
    facts = planned_facts("--nodes", "a{zone=eu},b[ingress]")
    assert facts == {
        "company": "Desk",
        "nodes": [
            {
                "id": "a",
                "labels": {"zone": "eu"},
                "roles": sorted(ROLES),
                "at_most": 5,
                "seats": ["eu-1", "eu-2", "lead", "writer", "editor"],
            },
            {"id": "b", "labels": {}, "roles": ["ingress"], "at_most": 0, "seats": []},
        ],
        "placements": [
            {"placement": "zone=us", "seats": 1, "nodes": 0, "each": 0},
            {"placement": "zone=eu", "seats": 2, "nodes": 1, "each": 2},
            {"placement": "anywhere", "seats": 3, "nodes": 1, "each": 3},
        ],
        "unplaceable": [{"handle": "us-1", "placement": "zone=us", "why": "no node is labelled zone=us"}],
        "losses": [
            {
                "nodes": ["a"],
                "moves": {},
                "stranded": [
                    {"handle": handle, "placement": placement, "why": "no node takes seats"}
                    for handle, placement in (
                        ("eu-1", "zone=eu"),
                        ("eu-2", "zone=eu"),
                        ("lead", "anywhere"),
                        ("writer", "anywhere"),
                        ("editor", "anywhere"),
                    )
                ],
                "after_lease_s": 0.0,
            },
            {"nodes": ["b"], "moves": {}, "stranded": [], "after_lease_s": 0.0},
        ],
    }


def test_nodes_that_are_lost_together_are_one_loss() -> None:
    (loss,) = planned_facts("--nodes", FLEET, "--lose", "c", "--lose", "b", "--lose", "c")["losses"]
    assert (loss["nodes"], loss["moves"], loss["stranded"]) == (["b", "c"], {"writer": "a", "editor": "a"}, [])
    (loss,) = planned_facts("--nodes", FLEET, "--lose", "a", "--lose", "b", "--lose", "c")["losses"]
    assert {each["why"] for each in loss["stranded"]} == {"no node is left"}


def test_a_large_company_is_summarised_and_named_whole_when_asked(tmp_path: Path) -> None:
    big(tmp_path, 1000, ", placement: {{labels: {{k{n}: v}}}}")
    nodes = "n0,n1{" + ",".join(f"k{n}=v" for n in range(500)) + "}"
    short = planned("big.yaml", "--nodes", nodes)
    assert len(short.splitlines()) < 60 and max(map(len, short.splitlines())) < 200
    assert "... and 980 more (--wide or -o json shows them)" in short
    wide = planned("big.yaml", "--nodes", nodes, "--wide")
    assert {line.split()[0] for line in wide.splitlines() if line.startswith("s") and line[1:2].isdigit()} == {
        f"s{n}" for n in range(1000)
    }
    assert "more" not in wide.split("PLACEMENT", 1)[1]
    assert len(planned_facts("big.yaml", "--nodes", nodes)["unplaceable"]) == 500
    loss = planned("big.yaml", "--nodes", f"{nodes},n2{{k1=v,k2=v}}", "--lose", "n1")
    assert len(loss.splitlines()) < 80 and "more (--wide or -o json shows them)" in loss


def test_the_wide_table_says_where_each_seat_goes_when_its_node_is_lost() -> None:
    lines = planned("--nodes", FLEET, "--wide").splitlines()
    table = lines[lines.index("") :]
    assert ["lead", "anywhere", "a", "b"] in [line.split() for line in table]
    assert ["eu-1", "zone=eu", "a", "-"] in [line.split() for line in table]
    assert ["us-1", "zone=us", "-", "-"] in [line.split() for line in table]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["--nodes", "a,,b"], 78, "--nodes: character 3: a node's id is missing before ','; "),
        (["--nodes", "a", "--lose", "b"], 78, "--lose: there is no node 'b' among --nodes; the nodes are a."),
        (["no.yaml", "--nodes", "a"], 78, "no.yaml: the file does not exist; "),
        (["bad.yaml", "--nodes", "a"], 78, "bad.yaml:3: roles[0].handle: 'A' cannot be a handle; "),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    arguments: list[str], code: int, sentence: str, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\nroles:\n  - handle: A\n")
    assert main(["plan", *arguments]) == code
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"crewlet: {sentence}") and err.count("\n") == 1


def test_a_plan_without_nodes_is_wrong_usage(capsys: Capture) -> None:
    assert main(["plan", "company.yaml"]) == 2
    assert capsys.readouterr().err.startswith("crewlet: --nodes is missing; ")


def test_a_real_process_plans_without_a_broker_and_without_loading_one(tmp_path: Path) -> None:
    program = (
        "import sys\nfrom crewlet.cli import main\ncode = main(sys.argv[1:])\n"
        "heavy = {'nats', 'fastapi', 'uvicorn', 'structlog', 'uvloop', 'rich'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}), file=sys.stderr)\nsys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "company.yaml", "--nodes", FLEET, "-o", "json"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=tmp_path,
    )
    assert [node["seats"] for node in json.loads(done.stdout)["nodes"]] == [
        ["eu-1", "eu-2", "lead"],
        ["writer"],
        ["editor"],
    ]
    assert done.stderr == "[]\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["company.yaml"]
