"""Reading `crewlet.yaml` into `Settings`, with every refusal that the file alone allows."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final, Literal, cast

from crewlet.company.rules import NODE_ID_REMEDY, ROLES, is_node_id, read_labels, read_node_id
from crewlet.kit.fields import Block, Field
from crewlet.kit.refusal import ConfigRefused, Refusals
from crewlet.kit.yamlfile import MapNode, parse, read_text, resolve_references
from crewlet.node.settings_model import (
    ApiSettings,
    ClusterSettings,
    CoordinationSettings,
    Level,
    LogFileSettings,
    LogForm,
    LoggingSettings,
    MailSettings,
    NodeSettings,
    Settings,
    StreamSettings,
    TlsSettings,
    node_file,
)
from crewlet.node.settings_stream import is_loopback, read_secret, read_stream

__all__ = [
    "DEFAULT_NODE_ID",
    "NODE_ID_ENV",
    "ApiSettings",
    "ClusterSettings",
    "CoordinationSettings",
    "LogFileSettings",
    "LoggingSettings",
    "MailSettings",
    "NodeSettings",
    "Settings",
    "StreamSettings",
    "TlsSettings",
    "load_data_dir",
    "load_settings",
    "node_file",
    "parse_settings",
]

DEFAULT_NODE_ID: Final = "node-0"
NODE_ID_ENV: Final = "CREWLET_NODE_ID"
DEFAULT_DATA_DIR: Final = ".crewlet"
DEFAULT_COMPANY: Final = "company.yaml"
MAX_CONCURRENT_CEILING: Final = 10_000
LEASE_TTL_RANGE_S: Final = (3, 3600)
STARTUP_RANGE_S: Final = (1, 3600)
GRACE_RANGE_S: Final = (1, 90 * 24 * 3600)
LOG_SIZE_RANGE_MB: Final = (1, 100_000)
LOG_BACKUPS_RANGE: Final = (0, 100)

_NO_DISKS: Final = ("proc", "sys", "dev")

_KEYS: Final = ("node", "coordination", "stream", "api", "mail", "logging", "company", "startup_timeout_s")
_NODE_KEYS: Final = ("id", "roles", "labels", "max_concurrent", "data_dir")
_MISSING: Final = "write one, or let `crewlet init` do it"


def load_settings(path: Path, *, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a file.

    Args:
        environ: what `${NAME}` and `CREWLET_NODE_ID` are read from; None is this process's environment.

    Raises:
        ConfigRefused: with file, line, field and remedy.
    """
    return parse_settings(read_text(path, remedy=_MISSING), path, environ=environ)


def parse_settings(text: str, path: Path, *, environ: Mapping[str, str] | None = None) -> Settings:
    """The settings of a text, as if it stood in the file `path`.

    Raises:
        ConfigRefused: with file, line, field and remedy; ManyRefused where more is wrong.
    """
    variables = os.environ if environ is None else environ
    source = str(path)
    refusals = Refusals()
    resolved = resolve_references(parse(text, source), source, variables)
    document = Block.of_document(resolved, source, _KEYS, refusals)
    folder = path.absolute().parent
    no_node = NodeSettings(id=DEFAULT_NODE_ID, data_dir=folder / DEFAULT_DATA_DIR)
    node = document.field.read(lambda _: _read_node(document.get("node"), folder, variables), no_node)
    count = len(refusals)
    coordination = document.read("coordination", _read_coordination, CoordinationSettings())
    is_known = len(refusals) == count
    stream = document.field.read(
        lambda _: read_stream(
            document, folder, node.data_dir, lambda: _refuse_local(document, coordination) if is_known else None
        ),
        StreamSettings(),
    )
    if stream.cluster is not None:
        document.field.read(lambda _: _require_own_id(document, variables), None)
    company = document.get("company")
    settings = Settings(
        path=path.absolute(),
        node=node,
        coordination=coordination,
        stream=stream,
        api=document.read("api", _read_api, ApiSettings()),
        logging=document.read("logging", lambda field: _read_logging(field, folder), LoggingSettings()),
        company=document.field.read(lambda _: _path(company, folder, DEFAULT_COMPANY), folder / DEFAULT_COMPANY),
        company_at=company.where if company else source,
        startup_timeout_s=document.read("startup_timeout_s", lambda field: field.number(*STARTUP_RANGE_S), 120.0),
        mail=document.read("mail", _read_mail, MailSettings()),
    )
    document.field.read(lambda _: _refuse_one_port_twice(document, settings), None)
    refusals.raise_any()
    _refuse_forgetful_broker(document, settings)
    return settings


def _refuse_one_port_twice(document: Block, settings: Settings) -> None:
    """Two listeners of one node, the second of which could not start."""
    taken: dict[int, str] = {}
    cluster = settings.stream.cluster
    for section, port in (
        ("stream.port", settings.stream.port),
        ("stream.cluster.port", cluster.port if cluster is not None else 0),
        ("api.port", settings.api.port),
    ):
        if not isinstance(port, int) or port == 0:
            continue
        if port in taken:
            top, key, *_ = section.split(".")
            problem = f"{port} is the port of {taken[port]} too"
            replace(_nearest(document, top, key), path=section).refuse(problem, "give each its own")
        taken[port] = section


def load_data_dir(path: Path, *, environ: Mapping[str, str] | None = None) -> Path:
    """The data directory of a file, whatever else the file says: enough to find the node that runs with it.

    Raises:
        ConfigRefused: no such file, no YAML, or an unusable `node.data_dir`.
    """
    source = str(path)
    node = parse(read_text(path, remedy=_MISSING), source).values.get("node")
    if not isinstance(node, MapNode) or "data_dir" not in node.values:
        return path.absolute().parent / DEFAULT_DATA_DIR
    only = MapNode({"data_dir": node.values["data_dir"]}, node.key_lines, node.line)
    resolved = resolve_references(only, source, os.environ if environ is None else environ)
    return _path(
        Block.of_document(resolved, source, _NODE_KEYS).get("data_dir"), path.absolute().parent, DEFAULT_DATA_DIR
    )


def _read_node(field: Field | None, folder: Path, variables: Mapping[str, str]) -> NodeSettings:
    if field is None:
        return NodeSettings(id=_id_from(variables), data_dir=folder / DEFAULT_DATA_DIR)
    block = field.block(_NODE_KEYS)
    own_id = block.get("id")
    return NodeSettings(
        id=own_id.read(read_node_id, "") if own_id else _id_from(variables),
        data_dir=block.read("data_dir", lambda field: _read_data_dir(field, folder), folder / DEFAULT_DATA_DIR),
        roles=block.read("roles", _read_roles, ROLES),
        labels=block.read("labels", read_labels, {}),
        max_concurrent=block.read("max_concurrent", lambda field: field.integer(0, MAX_CONCURRENT_CEILING), 0) or 32,
    )


def _read_data_dir(field: Field, folder: Path) -> Path:
    path = _path(field, folder, DEFAULT_DATA_DIR)
    if path.parts[1:2] and path.parts[1] in _NO_DISKS:
        field.refuse(f"{path} is no place for files: the system makes up what is in /{path.parts[1]}", "name a folder")
    return path


def _id_from(variables: Mapping[str, str]) -> str:
    found = variables.get(NODE_ID_ENV, "").strip()
    if found and not is_node_id(found):
        raise ConfigRefused(f"{found!r} cannot be a node id", where=NODE_ID_ENV, remedy=NODE_ID_REMEDY)
    return found or DEFAULT_NODE_ID


def _read_roles(field: Field) -> tuple[str, ...]:
    roles = [item.choice(ROLES) for item in field.items()]
    if not roles:
        field.refuse("a node without a role does nothing", f"name some of {', '.join(ROLES)}, or leave `roles` out")
    return tuple(sorted(set(roles)))


def _read_coordination(field: Field) -> CoordinationSettings:
    block = field.block(("type", "lease_ttl_seconds"))
    kind = block.read("type", lambda field: field.choice(("local", "embedded-kv")), "local")
    return CoordinationSettings(
        type=cast(Literal["local", "embedded-kv"], kind),
        lease_ttl_seconds=block.read("lease_ttl_seconds", lambda field: field.number(*LEASE_TTL_RANGE_S), 45.0),
    )


def _refuse_local(document: Block, coordination: CoordinationSettings) -> None:
    """Called when the stream is shared: leases in one process would let every node own every seat."""
    if coordination.type == "local":
        problem = "local leases cannot be seen by the other nodes of a shared stream"
        section = "coordination" if document.get("coordination") else "stream"
        place = _nearest(document, section, "type")
        replace(place, path="coordination.type").refuse(problem, "set it to embedded-kv")


def _refuse_forgetful_broker(document: Block, settings: Settings) -> None:
    """Epochs never fall. The counters of shared leases are on the broker, and one in memory forgets them as it ends."""
    stream = settings.stream
    if settings.coordination.type == "embedded-kv" and stream.type == "embedded" and stream.store_dir is None:
        problem = (
            "a broker in memory forgets the epochs of leases at each restart, and coordination.type is embedded-kv"
        )
        _nearest(document, "stream", "store_dir").refuse(problem, "write a folder, or set coordination.type to local")


def _require_own_id(document: Block, variables: Mapping[str, str]) -> None:
    node = document.get("node")
    has_id = node is not None and node.block(_NODE_KEYS).get("id") is not None
    if not has_id and not variables.get(NODE_ID_ENV, "").strip():
        remedy = f"write one that no other member has, or set {NODE_ID_ENV}"
        _nearest(document, "node", "id").refuse("a member of a cluster needs an id of its own", remedy)


def _nearest(document: Block, section: str, key: str) -> Field:
    """The field `section.key`, or where it would have to be written."""
    parent = document.get(section)
    path = f"{section}.{key}"
    if parent is None or not isinstance(parent.node, MapNode):
        return Field(document.node, document.field.source, path, parent.line if parent else document.node.line)
    return Field(parent.node, parent.source, path, parent.node.key_lines.get(key, parent.line))


def _read_api(field: Field) -> ApiSettings:
    block = field.block(("host", "port", "token"))
    host_field, port_field, token_field = block.get("host"), block.get("port"), block.get("token")
    host = host_field.line_of_text() if host_field else "127.0.0.1"
    token = read_secret(token_field) if token_field else None
    if host_field is not None and token is None and not is_loopback(host):
        host_field.refuse(f"{host!r} can be reached from other machines", "set api.token too, or write 127.0.0.1")
    port = port_field.port(0) if port_field else None
    return ApiSettings(host=host, port="auto" if port is None else port, token=token)


def _read_mail(field: Field) -> MailSettings:
    grace = field.block(("removed_seat_grace_seconds",)).get("removed_seat_grace_seconds")
    return MailSettings(float(grace.integer(*GRACE_RANGE_S))) if grace else MailSettings()


def _read_logging(field: Field, folder: Path) -> LoggingSettings:
    block = field.block(("level", "format", "stderr", "file"))
    level: Level = block.read("level", _read_level, "info")
    form: LogForm = block.read("format", _read_form, "json")
    file = block.read("file", lambda field: _read_log_file(field, folder, level, form), None)
    stderr = block.read("stderr", lambda field: field.choice(("true", "false")) == "true", True)
    if not stderr and block.get("file") is None:
        block.at("stderr").refuse("without standard error the log goes nowhere", "write logging.file too")
    return LoggingSettings(level, form, stderr, file)


def _read_log_file(field: Field, folder: Path, level: Level, form: LogForm) -> LogFileSettings:
    block = field.block(("path", "level", "format", "max_size_mb", "max_backups"))
    path = block.require("path", "write the file that takes the log")
    return LogFileSettings(
        path=_path(path, folder, ""),
        level=block.read("level", _read_level, level),
        format=block.read("format", _read_form, form),
        max_size_mb=block.read("max_size_mb", lambda field: field.integer(*LOG_SIZE_RANGE_MB), 100),
        max_backups=block.read("max_backups", lambda field: field.integer(*LOG_BACKUPS_RANGE), 5),
    )


def _read_level(field: Field) -> Level:
    return cast(Level, field.choice(("debug", "info", "warning", "error")))


def _read_form(field: Field) -> LogForm:
    return cast(LogForm, field.choice(("json", "console")))


def _path(field: Field | None, folder: Path, default: str) -> Path:
    if field is None:
        return folder / default
    text = field.line_of_text()
    return Path(os.path.normpath(folder / Path(text).expanduser()))
