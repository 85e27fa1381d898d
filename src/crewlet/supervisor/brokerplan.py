"""What a broker is to be, and the configuration file that makes it so."""

import contextlib
import ipaddress
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

MAX_PAYLOAD_BYTES = 8 * 1024 * 1024
_LOG_LIMIT_BYTES = 16 * 1024 * 1024


class BrokerError(Exception):
    """The broker does not run. `str(error)` is for people; the first line says what is wrong and where."""


class ServerNotFound(BrokerError):
    """No nats-server binary is installed."""


class BrokerRefused(BrokerError):
    """The plan itself cannot be used."""


class StoreInUse(BrokerError):
    """Another live broker serves this store directory."""


class PortInUse(BrokerError):
    """Something else listens on a port of the plan."""


class BrokerFailed(BrokerError):
    """It ended, or did not come up in time. The message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """This server's place in a cluster.

    Attributes:
        name: the same for every member.
        port: where this member listens for its peers; they must be able to reach it. Never 0.
        peers: `host:port` of the members' cluster ports; naming this member too does no harm.
        host: the address to listen on for peers.
        secret: what members show each other; required where `host` is not loopback.
    """

    name: str
    port: int
    peers: tuple[str, ...]
    host: str = "127.0.0.1"
    secret: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """What to run.

    Attributes:
        name: the server's name, unique in its cluster.
        store_dir: where streams, configuration, log and lock live; None is a temporary folder, removed by `stop`.
        host: the address clients connect to; any but loopback requires a token.
        port: the clients' port; 0 takes a free one, which a restart keeps.
        token: what clients must show, or None.
        max_payload: the largest message, in bytes.
        max_store: how much its streams and buckets may hold, in bytes; None leaves it to the server, which takes three
            quarters of what is free at its start.
        sync_interval: how much acknowledged mail a power cut may cost: a duration such as `1s`, or `always` for none.
    """

    name: str = "crewlet"
    store_dir: Path | None = None
    host: str = "127.0.0.1"
    port: int = 0
    token: str | None = None
    cluster: ClusterPlan | None = None
    max_payload: int = MAX_PAYLOAD_BYTES
    sync_interval: str = "1s"
    max_store: int | None = None

    def as_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal plan."""
        return {**asdict(self), "store_dir": None if self.store_dir is None else str(self.store_dir)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The plan that `as_json` gave.

        Raises:
            TypeError: an unknown or missing field.
        """
        fields = dict(value)
        if fields.get("store_dir") is not None:
            fields["store_dir"] = Path(fields["store_dir"])
        if fields.get("cluster") is not None:
            cluster: dict[str, Any] = dict(fields["cluster"])
            cluster["peers"] = tuple(cluster["peers"])
            fields["cluster"] = ClusterPlan(**cluster)
        return cls(**fields)


def server_config(plan: BrokerPlan, home: Path, *, port: int, ports: Path, log: Path) -> dict[str, Any]:
    """What the server reads; its configuration language takes JSON as it is.

    Args:
        home: the store directory.
        port: the clients' port, 0 for any.
        ports: the folder where the server writes which ports it took.
    """
    config: dict[str, Any] = {
        "server_name": plan.name,
        "listen": f"{bracketed(plan.host)}:{port or -1}",
        "http": "127.0.0.1:-1",
        "ports_file_dir": str(ports),
        "max_payload": plan.max_payload,
        "jetstream": {"store_dir": str(home), "sync_interval": plan.sync_interval},
        "log_file": str(log),
        "logfile_size_limit": _LOG_LIMIT_BYTES,
        "logfile_max_num": 2,
    }
    if plan.max_store is not None:
        config["jetstream"]["max_file_store"] = plan.max_store
    if plan.token is not None:
        config["authorization"] = {"token": plan.token}
    if plan.cluster is not None:
        config["cluster"] = _cluster_config(plan.cluster)
    return config


def told_ports(home: Path, pid: int | None = None) -> tuple[int, int] | None:
    """The ports for clients and for monitoring that the server of a store directory has told; None before it did.

    Args:
        pid: of which server; None takes the newest.
    """
    try:
        file = next((home / "ports").glob(f"*_{pid or '*'}.ports"), None)
        told: dict[str, list[str]] = {} if file is None else json.loads(file.read_text())
        client, monitor = (int(told[key][0].rpartition(":")[2]) for key in ("nats", "monitoring"))
    except (OSError, ValueError, LookupError):
        return None  # not written yet, or not whole
    return client, monitor


def check(plan: BrokerPlan) -> None:
    """Refuse a plan that no server could run, or that would open the mail to strangers.

    Raises:
        BrokerRefused: says which part, and what to set instead.
    """
    if not re.fullmatch(r"[^\s*>.$]+", plan.name):
        raise BrokerRefused(f"A broker cannot be named {plan.name!r}: use letters, digits and dashes.")
    if not _is_loopback(plan.host) and plan.token is None:
        raise BrokerRefused(f"The broker would listen on {plan.host} without a token; set one, or listen on 127.0.0.1.")
    cluster = plan.cluster
    if cluster is None:
        return
    if not 0 < cluster.port < 65536:
        raise BrokerRefused(f"A cluster member needs a cluster port of 1 to 65535, not {cluster.port}.")
    if not _is_loopback(cluster.host) and cluster.secret is None:
        raise BrokerRefused(f"The broker would take cluster peers on {cluster.host} without a secret; set one.")


def _cluster_config(cluster: ClusterPlan) -> dict[str, Any]:
    login = "" if cluster.secret is None else f"crewlet:{cluster.secret}@"
    config: dict[str, Any] = {
        "name": cluster.name,
        # A node stays with the broker beside it, which so knows whether the node's connection is closed.
        "no_advertise": True,
        "listen": f"{bracketed(cluster.host)}:{cluster.port}",
        "routes": [f"nats-route://{login}{peer}" for peer in cluster.peers],
    }
    if cluster.secret is not None:
        config["authorization"] = {"user": "crewlet", "password": cluster.secret}
    return config


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def reachable(host: str) -> str:
    """The address under which this machine reaches a server that listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def bracketed(host: str) -> str:
    """The host as it stands in an address with a port."""
    return f"[{host}]" if ":" in host else host
