"""crewlet.yaml: what it gives, and one exact sentence for each thing that is wrong with it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from crewlet.kit.refusal import ConfigRefused
from crewlet.node.settings import (
    ApiSettings,
    ClusterSettings,
    CoordinationSettings,
    LogFileSettings,
    LoggingSettings,
    NodeSettings,
    Settings,
    StreamSettings,
    TlsSettings,
    load_data_dir,
    load_settings,
    parse_settings,
)

FILE = Path("/etc/crewlet/crewlet.yaml")


def read(text: str, environ: Mapping[str, str] | None = None, path: Path = FILE) -> Settings:
    return parse_settings(text, path, environ=environ or {})


def test_an_empty_file_is_one_node_on_one_machine() -> None:
    assert read("") == Settings(
        path=FILE,
        node=NodeSettings(id="node-0", data_dir=Path("/etc/crewlet/.crewlet")),
        coordination=CoordinationSettings("local", 45.0),
        stream=StreamSettings(type="embedded", store_dir=Path("/etc/crewlet/.crewlet/broker"), port=0, replicas=1),
        api=ApiSettings("127.0.0.1", "auto", None),
        logging=LoggingSettings("info", "json"),
        company=Path("/etc/crewlet/company.yaml"),
        startup_timeout_s=120.0,
    )


def test_the_grace_of_a_removed_seats_mail_is_a_day_unless_it_says_otherwise() -> None:
    assert read("").mail.removed_seat_grace_seconds == 24 * 3600
    assert read("mail: {removed_seat_grace_seconds: 90}").mail.removed_seat_grace_seconds == 90
    assert read("mail:").mail.removed_seat_grace_seconds == 24 * 3600


def test_a_log_file_has_the_level_and_form_of_standard_error_unless_it_says_otherwise() -> None:
    assert read("logging: {file: {path: log/crewlet.log}}").logging == LoggingSettings(
        "info", "json", stderr=True, file=LogFileSettings(Path("/etc/crewlet/log/crewlet.log"), "info", "json", 100, 5)
    )
    text = (
        "logging:\n  level: warning\n  format: console\n  stderr: false\n"
        "  file: {path: /var/log/crewlet.log, level: debug, format: json, max_size_mb: 1, max_backups: 0}"
    )
    assert read(text).logging == LoggingSettings(
        "warning", "console", stderr=False, file=LogFileSettings(Path("/var/log/crewlet.log"), "debug", "json", 1, 0)
    )


CLUSTER = """\
node: {id: one, roles: [seats, ingress], labels: {" zone ": " eu "}, max_concurrent: 4, data_dir: ../data}
coordination: {type: embedded-kv, lease_ttl_seconds: 10}
stream:
  port: 4222
  sync: always
  cluster:
    name: desk
    port: 6001
    peers: [nats://127.0.0.1:6001, nats://127.0.0.1:6002, "127.0.0.1:6003"]
api: {host: 0.0.0.0, port: 8080, token: "${TOKEN}"}
logging: {level: debug, format: console}
company: ../company/company.yaml
startup_timeout_s: 60
"""


def test_a_member_of_a_cluster_reads_as_written() -> None:
    assert read(CLUSTER, {"TOKEN": "s3cret"}) == Settings(
        path=FILE,
        node=NodeSettings("one", Path("/etc/data"), ("ingress", "seats"), {"zone": "eu"}, 4),
        coordination=CoordinationSettings("embedded-kv", 10.0),
        stream=StreamSettings(
            store_dir=Path("/etc/data/broker"),
            port=4222,
            replicas=3,
            sync="always",
            cluster=ClusterSettings(
                "desk", 6001, ("127.0.0.1:6001", "127.0.0.1:6002", "127.0.0.1:6003"), host="127.0.0.1"
            ),
        ),
        api=ApiSettings("0.0.0.0", 8080, "s3cret"),
        logging=LoggingSettings("debug", "console"),
        company=Path("/etc/company/company.yaml"),
        startup_timeout_s=60.0,
    )


def test_an_external_broker_reads_as_written(tmp_path: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem", "n.creds"):
        (tmp_path / name).touch()
    text = (
        "coordination: {type: embedded-kv}\n"
        "stream: {type: nats, url: tls://broker:4222, replicas: 3, credentials: n.creds,\n"
        "  tls: {ca: ca.pem, cert: cert.pem, key: key.pem}}"
    )
    assert read(text, path=tmp_path / "crewlet.yaml").stream == StreamSettings(
        type="nats",
        url="tls://broker:4222",
        replicas=3,
        credentials=str(tmp_path / "n.creds"),
        tls=TlsSettings(str(tmp_path / "ca.pem"), str(tmp_path / "cert.pem"), str(tmp_path / "key.pem")),
    )


def test_the_nodes_id_comes_from_the_file_then_the_environment_then_the_default() -> None:
    environ = {"CREWLET_NODE_ID": "from-env", "NAME": "named"}
    assert read("node: {id: in-file}", environ).node.id == "in-file"
    assert read("node:\n  id: ${NAME}", environ).node.id == "named"
    assert read("node: {max_concurrent: 0}", environ).node.id == "from-env"
    assert read("", {"CREWLET_NODE_ID": ""}).node.id == "node-0"


def test_no_turn_limit_means_the_default_limit() -> None:
    assert read("node: {max_concurrent: 0}").node.max_concurrent == 32


def test_an_empty_store_directory_keeps_the_mail_in_memory() -> None:
    assert read('stream: {store_dir: ""}').stream.store_dir is None


@pytest.mark.parametrize("peers", ["6001, 6002, 6003", "6002, 6003"])
def test_a_cluster_has_three_members_whether_or_not_this_one_lists_itself(peers: str) -> None:
    listed = ", ".join(f"nats://localhost:{port}" for port in peers.split(", "))
    text = f"{FLEET}stream: {{cluster: {{port: 6001, peers: [{listed}]}}}}"
    assert read(text).stream.replicas == 3


def test_members_on_other_machines_are_listened_for_on_every_address() -> None:
    text = (
        f"{FLEET}stream: {{cluster: {{port: 6222, secret: s, peers: [nats://b.example:6222, nats://c.example:6222]}}}}"
    )
    cluster = read(text).stream.cluster
    assert cluster is not None and (cluster.host, cluster.secret) == ("0.0.0.0", "s")


FLEET = "node: {id: one}\ncoordination: {type: embedded-kv}\n"
LOCAL = "local leases cannot be seen by the other nodes of a shared stream; set it to embedded-kv."
TWO = "two members have no quorum without each other; use three members, or one without a cluster."
NODE_ID = "use 1 to 64 letters, digits, dots, underscores and hyphens, beginning with a letter or digit."


def cluster(text: str, head: str = FLEET) -> str:
    return f"{head}stream:\n  cluster:\n    port: 6001\n{text}"


REFUSED = {
    "unknown block": ("stor: {}", "c.yaml:1: stor: this key is not known; the nearest known one is 'stream'."),
    "unknown key": ("node:\n  idd: a", "c.yaml:2: node.idd: this key is not known; the nearest known one is 'id'."),
    "node id": ("node: {id: -a}", f"c.yaml:1: node.id: '-a' cannot be a node id; {NODE_ID}"),
    "long node id": (f"node: {{id: {'a' * 65}}}", f"c.yaml:1: node.id: '{'a' * 65}' cannot be a node id; {NODE_ID}"),
    "node id in a cluster": (
        cluster("    peers: ['localhost:6002', 'localhost:6003']", "coordination: {type: embedded-kv}\n"),
        "c.yaml:1: node.id: a member of a cluster needs an id of its own; "
        "write one that no other member has, or set CREWLET_NODE_ID.",
    ),
    "unknown role": ("node: {roles: [seat]}", "c.yaml:1: node.roles[0]: 'seat' is not known here; write 'seats'."),
    "no role": (
        "node: {roles: []}",
        "c.yaml:1: node.roles: a node without a role does nothing; "
        "name some of data, ingress, seats, workers, or leave `roles` out.",
    ),
    "label key": (
        f"node: {{labels: {{{'k' * 64}: v}}}}",
        f"c.yaml:1: node.labels.{'k' * 64}: '{'k' * 64}' cannot be a label key; use 1 to 63 bytes without spaces.",
    ),
    "labels equal once trimmed": (
        "node:\n  labels:\n    a: 1\n    'a ': 2",
        "c.yaml:4: node.labels.a : the label 'a' is here twice (first on line 3); keep one of them.",
    ),
    "turns": (
        "node: {max_concurrent: -1}",
        "c.yaml:1: node.max_concurrent: '-1' is not a whole number from 0 to 10000; write such a number.",
    ),
    "coordination": (
        "coordination: {type: raft}",
        "c.yaml:1: coordination.type: 'raft' is not known here; write one of local, embedded-kv.",
    ),
    "short lease": (
        "coordination: {lease_ttl_seconds: 2.9}",
        "c.yaml:1: coordination.lease_ttl_seconds: '2.9' is not a number from 3 to 3600; write such a number.",
    ),
    "a grace without an end": (
        "mail: {removed_seat_grace_seconds: 0}",
        "c.yaml:1: mail.removed_seat_grace_seconds: '0' is not a whole number from 1 to 7776000; write such a number.",
    ),
    "local beside an external stream": (
        "coordination:\n  type: local\nstream: {type: nats, url: nats://b}",
        f"c.yaml:2: coordination.type: {LOCAL}",
    ),
    "local by default beside an external stream": (
        "node: {id: a}\nstream: {type: nats, url: nats://b}",
        f"c.yaml:2: coordination.type: {LOCAL}",
    ),
    "local beside a cluster": (
        cluster("    peers: ['localhost:6002', 'localhost:6003']", "coordination: {lease_ttl_seconds: 9}\n"),
        f"c.yaml:1: coordination.type: {LOCAL}",
    ),
    "two members": (cluster("    peers: ['localhost:6002']"), f"c.yaml:6: stream.cluster.peers: {TWO}"),
    "two members, both listed": (
        cluster("    peers: ['localhost:6001', 'localhost:6002']"),
        f"c.yaml:6: stream.cluster.peers: {TWO}",
    ),
    "one member": (
        cluster("    peers: ['localhost:6001']"),
        "c.yaml:6: stream.cluster.peers: a cluster has three members or more; "
        "list the others, or remove stream.cluster.",
    ),
    "no peers": (
        cluster("    name: x"),
        "c.yaml:4: stream.cluster: 'peers' is missing; list the members as nats://host:port.",
    ),
    "peer without a port": (
        cluster("    peers: [nats://a]"),
        "c.yaml:6: stream.cluster.peers[0]: 'nats://a' has no port; write it as nats://host:port.",
    ),
    "peer that is none": (
        cluster("    peers: ['http://a:1']"),
        "c.yaml:6: stream.cluster.peers[0]: 'http://a:1' is not an address; write it as nats://host:port.",
    ),
    "peer with a password": (
        cluster("    peers: ['nats://u:p@a:1']"),
        "c.yaml:6: stream.cluster.peers[0]: a peer's address holds no password; set stream.cluster.secret instead.",
    ),
    "peer twice": (
        cluster("    peers: ['localhost:6002', 'localhost:6003', 'localhost:6003']"),
        "c.yaml:6: stream.cluster.peers: a member is listed twice; list every member once.",
    ),
    "machines without a secret": (
        cluster("    peers: ['b.example:1', 'c.example:1']"),
        "c.yaml:6: stream.cluster.peers: members on other machines must show each other a secret; "
        "set stream.cluster.secret, the same on all.",
    ),
    "epochs in memory": (
        'coordination: {type: embedded-kv}\nstream:\n  store_dir: ""',
        "c.yaml:3: stream.store_dir: a broker in memory forgets the epochs of leases at each restart, and "
        "coordination.type is embedded-kv; write a folder, or set coordination.type to local.",
    ),
    "a member in memory": (
        cluster("    peers: ['localhost:6002', 'localhost:6003']\n  store_dir: ''"),
        "c.yaml:7: stream.store_dir: a member of a cluster must keep its store on disk; write a folder, or remove it.",
    ),
    "copies without peers": (
        "stream: {replicas: 3}",
        "c.yaml:1: stream.replicas: 3 copies need a cluster, and there are no peers; "
        "set stream.cluster.peers, or write 1.",
    ),
    "more copies than members": (
        cluster("    peers: ['localhost:6002', 'localhost:6003']\n  replicas: 5"),
        "c.yaml:7: stream.replicas: 5 copies need as many members, and there are 3; write 3 or less.",
    ),
    "store of an external broker": (
        f"{FLEET}stream: {{type: nats, url: nats://b, store_dir: x}}",
        "c.yaml:3: stream.store_dir: an external broker (stream.type: nats) takes no such key; remove it.",
    ),
    "url of an embedded broker": (
        "stream: {url: nats://b}",
        "c.yaml:1: stream.url: this is for an external broker only; set stream.type to nats, or remove it.",
    ),
    "no url": (
        f"{FLEET}stream: {{type: nats}}",
        "c.yaml:3: stream: 'url' is missing; write `url: nats://host:4222`.",
    ),
    "bad url": (
        f"{FLEET}stream: {{type: nats, url: 'http://b'}}",
        "c.yaml:3: stream.url: 'http://b' is not an address; write it as nats://host:4222.",
    ),
    "token and credentials": (
        f"{FLEET}stream: {{type: nats, url: nats://b, token: t, credentials: c}}",
        "c.yaml:3: stream.credentials: there is a token as well; keep either stream.token or stream.credentials.",
    ),
    "certificate without key": (
        f"{FLEET}stream: {{type: nats, url: nats://b, tls: {{cert: c}}}}",
        "c.yaml:3: stream.tls.cert: there is a certificate without its key; add stream.tls.key, or remove this.",
    ),
    "key without certificate": (
        f"{FLEET}stream: {{type: nats, url: nats://b, tls: {{key: c}}}}",
        "c.yaml:3: stream.tls.key: there is a key without its certificate; add stream.tls.cert, or remove this.",
    ),
    "missing certificate": (
        f"{FLEET}stream: {{type: nats, url: nats://b, tls: {{ca: no.pem}}}}",
        "c.yaml:3: stream.tls.ca: there is no file '/nowhere/no.pem'; name a file that is there.",
    ),
    "broker port": (
        "stream: {port: 0}",
        "c.yaml:1: stream.port: '0' is neither auto nor a port from 1 to 65535; "
        "write auto for a free one, or a number.",
    ),
    "sync": (
        "stream: {sync: often}",
        "c.yaml:1: stream.sync: 'often' is no interval; write one such as 1s or 100ms, or always.",
    ),
    "api for others without a token": (
        "api: {host: 0.0.0.0}",
        "c.yaml:1: api.host: '0.0.0.0' can be reached from other machines; set api.token too, or write 127.0.0.1.",
    ),
    "api port": (
        "api: {port: 70000}",
        "c.yaml:1: api.port: '70000' is neither auto nor a port from 0 to 65535; "
        "write auto for a free one, or a number.",
    ),
    "api token": (
        "api: {token: 'a b'}",
        "c.yaml:1: api.token: this is no usable secret; write visible ASCII characters without spaces.",
    ),
    "log level": ("logging: {level: warn}", "c.yaml:1: logging.level: 'warn' is not known here; write 'warning'."),
    "log nowhere": (
        "logging: {stderr: false}",
        "c.yaml:1: logging.stderr: without standard error the log goes nowhere; write logging.file too.",
    ),
    "log file without a path": (
        "logging: {file: {level: info}}",
        "c.yaml:1: logging.file: 'path' is missing; write the file that takes the log.",
    ),
    "log file too small": (
        "logging: {file: {path: c.log, max_size_mb: 0}}",
        "c.yaml:1: logging.file.max_size_mb: '0' is not a whole number from 1 to 100000; write such a number.",
    ),
    "time-out": (
        "startup_timeout_s: soon",
        "c.yaml:1: startup_timeout_s: 'soon' is not a number from 1 to 3600; write such a number.",
    ),
    "variable": (
        "node:\n  id: ${HOST}",
        "c.yaml:2: the environment variable HOST is not set; set it, or write the value here.",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), REFUSED.values(), ids=REFUSED.keys())
def test_what_is_wrong_with_a_file_is_told_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(text, path=Path("/nowhere/c.yaml"))
    assert str(refused.value).removeprefix("/nowhere/") == sentence


@pytest.mark.proves("TB-06")
@pytest.mark.parametrize("name", [name for name in REFUSED if name.startswith("local")])
def test_local_leases_beside_a_shared_stream_are_refused_and_the_remedy_is_named(name: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        read(REFUSED[name][0])
    assert refused.value.where.endswith("coordination.type") and "embedded-kv" in refused.value.remedy


def test_a_bad_node_id_of_the_environment_is_told_by_its_variable() -> None:
    with pytest.raises(ConfigRefused, match=r"^CREWLET_NODE_ID: 'a b' cannot be a node id; "):
        read("", {"CREWLET_NODE_ID": "a b"})


def test_a_secret_is_never_repeated_in_a_refusal() -> None:
    with pytest.raises(ConfigRefused) as refused:
        read("api: {token: 'hush hush'}")
    assert "hush" not in str(refused.value)


def test_a_missing_file_is_told_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"crewlet.yaml: the file does not exist; write one, or let `crewlet init`"):
        load_settings(tmp_path / "crewlet.yaml", environ={})


def test_a_running_node_is_found_even_when_other_fields_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "crewlet.yaml"
    path.write_text("node: {data_dir: d}\nstream:\n  token: ${NOT_IN_THIS_SHELL}\n")
    assert load_data_dir(path, environ={}) == tmp_path / "d"
    path.write_text("api: {}")
    assert load_data_dir(path, environ={}) == tmp_path / ".crewlet"
