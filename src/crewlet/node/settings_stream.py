"""Reading the `stream` block: an embedded broker, alone or in a cluster, or an external one."""

import ipaddress
import os
import re
import socket
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Final, NoReturn
from urllib.parse import SplitResult, urlsplit

from crewlet.kit.fields import Block, Field
from crewlet.node.settings_model import ClusterSettings, StreamSettings, TlsSettings

MAX_REPLICAS: Final = 5
_COMMON: Final = ("type", "replicas", "token")
_EMBEDDED: Final = ("store_dir", "port", "sync", "cluster")
_NATS: Final = ("url", "credentials", "tls")
_SYNC: Final = re.compile(r"always|[1-9][0-9]{0,5}(ms|s|m)")
_CLUSTER_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def read_stream(document: Block, folder: Path, data_dir: Path, check_shared: Callable[[], None]) -> StreamSettings:
    """The broker's settings.

    Args:
        document: the whole file.
        folder: where relative paths are taken from.
        data_dir: where an embedded broker keeps its store unless told otherwise.
        check_shared: called when other nodes share the stream, before its details are looked at.

    Raises:
        ConfigRefused: with file, line, field and remedy.
    """
    field = document.get("stream")
    if field is None:
        return StreamSettings(store_dir=data_dir / "broker")
    block = field.block((*_COMMON, *_EMBEDDED, *_NATS))
    kind = block.get("type")
    if kind is not None and kind.choice(("embedded", "nats")) == "nats":
        _refuse_keys(block, _EMBEDDED, "an external broker (stream.type: nats) takes no such key", "remove it")
        check_shared()
        return _read_external(block, folder)
    _refuse_keys(block, _NATS, "this is for an external broker only", "set stream.type to nats, or remove it")
    if block.get("cluster") is not None:
        check_shared()
    return _read_embedded(block, folder, data_dir)


def _refuse_keys(block: Block, keys: Collection[str], problem: str, remedy: str) -> None:
    for key in keys:
        found = block.get(key)
        if found is not None:
            found.refuse(problem, remedy)


def _read_external(block: Block, folder: Path) -> StreamSettings:
    url_field = block.require("url", "write `url: nats://host:4222`")
    url = url_field.line_of_text()
    _split(url_field, url, ("nats", "tls"), "write it as nats://host:4222")
    token, credentials, tls = block.get("token"), block.get("credentials"), block.get("tls")
    if token is not None and credentials is not None:
        credentials.refuse("there is a token as well", "keep either stream.token or stream.credentials")
    replicas = block.get("replicas")
    return StreamSettings(
        type="nats",
        replicas=replicas.integer(1, MAX_REPLICAS) if replicas else 1,
        url=url,
        token=read_secret(token) if token else None,
        credentials=_file(credentials, folder) if credentials else None,
        tls=_read_tls(tls, folder) if tls else None,
    )


def _read_tls(field: Field, folder: Path) -> TlsSettings:
    block = field.block(("ca", "cert", "key"))
    ca, cert, key = block.get("ca"), block.get("cert"), block.get("key")
    if cert is not None and key is None:
        cert.refuse("there is a certificate without its key", "add stream.tls.key, or remove this")
    if key is not None and cert is None:
        key.refuse("there is a key without its certificate", "add stream.tls.cert, or remove this")
    return TlsSettings(
        ca=_file(ca, folder) if ca else None,
        cert=_file(cert, folder) if cert else None,
        key=_file(key, folder) if key else None,
    )


def _read_embedded(block: Block, folder: Path, data_dir: Path) -> StreamSettings:
    cluster_field, store_field, port, sync, token = (
        block.get(key) for key in ("cluster", "store_dir", "port", "sync", "token")
    )
    cluster = _read_cluster(cluster_field) if cluster_field else None
    store_dir: Path | None = data_dir / "broker"
    if store_field is not None:
        text = store_field.text().strip()
        store_dir = Path(os.path.normpath(folder / Path(text).expanduser())) if text else None
        if store_dir is None and cluster is not None:
            store_field.refuse("a member of a cluster must keep its store on disk", "write a folder, or remove it")
    if sync is not None and not _SYNC.fullmatch(sync.text().strip()):
        sync.refuse(f"{sync.text().strip()!r} is no interval", "write one such as 1s or 100ms, or always")
    return StreamSettings(
        store_dir=store_dir,
        port=(port.port(1) or 0) if port else 0,
        replicas=_read_replicas(block.get("replicas"), cluster),
        sync=sync.text().strip() if sync else "1s",
        cluster=cluster,
        token=read_secret(token) if token else None,
    )


def _read_replicas(field: Field | None, cluster: ClusterSettings | None) -> int:
    members = 1 if cluster is None else _members(cluster)
    if field is None:
        return min(3, members)
    replicas = field.integer(1, MAX_REPLICAS)
    if cluster is None and replicas > 1:
        field.refuse(
            f"{replicas} copies need a cluster, and there are no peers", "set stream.cluster.peers, or write 1"
        )
    if replicas > members:
        field.refuse(f"{replicas} copies need as many members, and there are {members}", f"write {members} or less")
    return replicas


def _read_cluster(field: Field) -> ClusterSettings:
    block = field.block(("name", "host", "port", "peers", "secret"))
    name_field, host_field, secret_field = block.get("name"), block.get("host"), block.get("secret")
    peers_field = block.require("peers", "list the members as nats://host:port")
    peers = tuple(_read_peer(item) for item in peers_field.items())
    port = block.require("port", "write the port on which this member listens for the others").integer(1, 65535)
    is_local = all(is_loopback(peer.rpartition(":")[0].strip("[]")) for peer in peers)
    host = host_field.line_of_text() if host_field else "127.0.0.1" if is_local else "0.0.0.0"
    name = name_field.line_of_text() if name_field else "crewlet"
    if name_field is not None and not _CLUSTER_NAME.fullmatch(name):
        name_field.refuse(f"{name!r} cannot be the name of a cluster", "use letters, digits, dots and hyphens")
    secret = read_secret(secret_field) if secret_field else None
    cluster = ClusterSettings(name=name, port=port, peers=peers, host=host, secret=secret)
    if len(set(peers)) != len(peers):
        peers_field.refuse("a member is listed twice", "list every member once")
    if _members(cluster) < 3:
        _refuse_size(peers_field, _members(cluster))
    if secret is None and not is_loopback(host):
        problem = "members on other machines must show each other a secret"
        (host_field or peers_field).refuse(problem, "set stream.cluster.secret, the same on all")
    return cluster


def _refuse_size(field: Field, members: int) -> NoReturn:
    if members == 2:
        field.refuse("two members have no quorum without each other", "use three members, or one without a cluster")
    field.refuse("a cluster has three members or more", "list the others, or remove stream.cluster")


def _read_peer(field: Field) -> str:
    """`host:port` of one member."""
    text = field.line_of_text()
    remedy = "write it as nats://host:port"
    url = text if "://" in text else f"nats://{text}"
    parts = _split(field, url, ("nats", "nats-route"), remedy)
    if "@" in parts.netloc:
        field.refuse("a peer's address holds no password", "set stream.cluster.secret instead")
    if parts.port is None:
        field.refuse(f"{text!r} has no port", remedy)
    host = parts.hostname or ""
    return f"[{host}]:{parts.port}" if ":" in host else f"{host}:{parts.port}"


def _split(field: Field, url: str, schemes: Collection[str], remedy: str) -> SplitResult:
    shown = repr(url) if "@" not in url else "this"
    try:
        parts = urlsplit(url)
        port_is_good = parts.port is None or parts.port > 0
    except ValueError:
        field.refuse(f"{shown} is not an address", remedy)
    if parts.scheme not in schemes or not parts.hostname or not port_is_good or parts.path.strip("/") or parts.query:
        field.refuse(f"{shown} is not an address", remedy)
    return parts


def _members(cluster: ClusterSettings) -> int:
    """How many members there are, this one counted once whether or not it lists itself."""
    own_hosts = _own_hosts() if any(_is_foreign(peer) for peer in cluster.peers) else {"localhost"}
    own_hosts.add(cluster.host)

    def is_self(peer: str) -> bool:
        host, _, port = peer.rpartition(":")
        host = host.strip("[]")
        return int(port) == cluster.port and (is_loopback(host) or host in own_hosts)

    return 1 + sum(not is_self(peer) for peer in cluster.peers)


def _is_foreign(peer: str) -> bool:
    return not is_loopback(peer.rpartition(":")[0].strip("[]"))


def _own_hosts() -> set[str]:
    import psutil

    name = socket.gethostname().lower()
    addresses = {each.address for interface in psutil.net_if_addrs().values() for each in interface}
    return {name, name.partition(".")[0], *addresses}


def is_loopback(host: str) -> bool:
    """Whether an address or name is this machine's loopback."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def read_secret(field: Field) -> str:
    """A token or secret: visible ASCII. It is not repeated in the refusal."""
    text = field.text().strip()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        field.refuse("this is no usable secret", "write visible ASCII characters without spaces")
    return text


def _file(field: Field, folder: Path) -> str:
    path = Path(os.path.normpath(folder / Path(field.line_of_text()).expanduser()))
    if not path.is_file():
        field.refuse(f"there is no file {str(path)!r}", "name a file that is there")
    return str(path)
