"""What one node's file, `crewlet.yaml`, may say. It is read once, at start; a change takes a restart.

Only keys that do something are known. `${NAME}` in a value is that environment variable; `node.id` also comes from
`CREWLET_NODE_ID`. Paths are taken from the file's own folder.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """The node itself.

    Attributes:
        id: distinct in the fleet and stable across restarts.
        data_dir: absolute; the broker's store, epochs, list of brokers, `run/node.json` and the locks live there.
        roles: what it will do for the fleet, sorted.
        labels: what placements select it by.
        max_concurrent: turns that run here at once.
    """

    id: str
    data_dir: Path
    roles: tuple[str, ...] = ("data", "ingress", "seats", "workers")
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    max_concurrent: int = 32


@dataclass(frozen=True, slots=True)
class CoordinationSettings:
    """Where leases live: in this process (`local`) or on the stream's key-value store."""

    type: Literal["local", "embedded-kv"] = "local"
    lease_ttl_seconds: float = 45.0


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """The embedded broker's place in a cluster.

    Attributes:
        name: the same for every member.
        port: where this member listens for the others.
        peers: `host:port` of the members; this one may be among them.
        host: the address that it listens on for them.
        secret: what members show each other; None only where all is loopback.
    """

    name: str
    port: int
    peers: tuple[str, ...]
    host: str
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """Files for TLS to an external broker. `cert` and `key` come together or not at all."""

    ca: str | None = None
    cert: str | None = None
    key: str | None = None


@dataclass(frozen=True, slots=True)
class StreamSettings:
    """The broker.

    Attributes:
        type: `embedded` runs one beside the node; `nats` uses one that is there.
        store_dir: where an embedded broker keeps the mail; None keeps it in memory.
        port: an embedded broker's port for clients; 0 takes a free one.
        replicas: copies of every stream and bucket.
        sync: how much acknowledged mail a power cut may cost an embedded broker, `1s` or `always` (none).
        cluster: an embedded broker's cluster, or None.
        url: an external broker's address; "" when embedded.
        token: what clients show the broker.
        credentials: a credentials file for an external broker.
        tls: for an external broker.
    """

    type: Literal["embedded", "nats"] = "embedded"
    store_dir: Path | None = None
    port: int = 0
    replicas: int = 1
    sync: str = "1s"
    cluster: ClusterSettings | None = None
    url: str = ""
    token: str | None = None
    credentials: str | None = None
    tls: TlsSettings | None = None


@dataclass(frozen=True, slots=True)
class ApiSettings:
    """The HTTP listener. `port` 0 has none, `auto` takes a free one. Without a token only loopback is allowed."""

    host: str = "127.0.0.1"
    port: int | Literal["auto"] = "auto"
    token: str | None = None

    @property
    def address(self) -> tuple[str, int] | None:
        """What to listen on, port 0 for any free one; None without an API."""
        return None if self.port == 0 else (self.host, 0 if self.port == "auto" else self.port)


@dataclass(frozen=True, slots=True)
class MailSettings:
    """The company's mail. `removed_seat_grace_seconds`: how long the mail of a seat that left the company is kept."""

    removed_seat_grace_seconds: float = 24 * 3600.0


Level = Literal["debug", "info", "warning", "error"]
LogForm = Literal["json", "console"]


@dataclass(frozen=True, slots=True)
class LogFileSettings:
    """A file that takes the log.

    Attributes:
        path: absolute.
        level, format: its own; as on standard error without them.
        max_size_mb: how large it grows before it is moved aside.
        max_backups: how many of those are kept.
    """

    path: Path
    level: Level
    format: LogForm
    max_size_mb: int = 100
    max_backups: int = 5


@dataclass(frozen=True, slots=True)
class LoggingSettings:
    """Where the log goes: to standard error unless `stderr` is false, and to a file if there is one."""

    level: Level = "info"
    format: LogForm = "json"
    stderr: bool = True
    file: LogFileSettings | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """A valid settings file.

    Attributes:
        path: the file, absolute.
        company: path of the company document, absolute.
        company_at: where the settings name it, for refusals.
        startup_timeout_s: how long a node waits for its broker, and a cluster for its quorum.
    """

    path: Path
    node: NodeSettings
    coordination: CoordinationSettings
    stream: StreamSettings
    api: ApiSettings
    logging: LoggingSettings
    company: Path
    startup_timeout_s: float = 120.0
    company_at: str = field(default="", compare=False)
    mail: MailSettings = MailSettings()

    @property
    def node_file(self) -> Path:
        """Where a running node tells the command line its address."""
        return node_file(self.node.data_dir)


def node_file(data_dir: Path) -> Path:
    """Where the node of a data directory tells its address."""
    return data_dir / "run" / "node.json"
