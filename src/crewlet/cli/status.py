"""`crewlet status`: one node and its fleet at a glance."""

import sys
from collections.abc import Mapping
from typing import Any

import typer

from crewlet.cli import FAILED
from crewlet.cli.client import NodeClient, NodeRefused
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, Output, OutputOption, UrlOption
from crewlet.cli.pauses import pause_words
from crewlet.cli.printing import clean, instant, print_facts, print_json
from crewlet.cli.run import tell

_NOT_READY = "agent_not_ready"


def status(config: ConfigOption = DEFAULT_CONFIG, url: UrlOption = None, output: OutputOption = Output.table) -> None:
    """Show a node's health and the fleet around it. Fails when what it shows may be old, or something is damaged."""
    client = NodeClient.find(url, config)
    health = client.get("/health")
    fleet, refusal = _fleet(client)
    problem = str(refusal) if refusal is not None and not health.get("store_faults") else problem_of(health)
    if output is Output.json:
        print_json({"url": client.url, "health": health, "fleet": fleet, **({"problem": problem} if problem else {})})
    else:
        print_facts({**_of_node(client, health, refusal), **(_of_fleet(fleet) if fleet is not None else {})})
    if fleet is not None and fleet.get("other_documents"):
        print(f"crewlet: {_differing(fleet)}", file=sys.stderr)
    if problem:
        raise typer.Exit(tell(problem, FAILED))


def _fleet(client: NodeClient) -> tuple[Any, NodeRefused | None]:
    try:
        return client.get("/query/fleet"), None
    except NodeRefused as refusal:
        return None, refusal


def _of_node(client: NodeClient, health: Mapping[str, Any], refusal: NodeRefused | None) -> dict[str, object]:
    return {
        "node": health["node"],
        "status": _condition(health, refusal),
        "broker": health["queue"],
        "presence": clean(error) if (error := health.get("presence_error")) else None,
        "url": client.url,
        "version": health["version"],
        "since": instant(health["started_at"]),
        "turns running": health["in_flight"],
        "seats here": ", ".join(health["seats"]) or "none",
        "stalled": f"{lag_s:.0f}s" if (lag_s := health.get("stall_lag_seconds")) is not None else None,
        "unproven": _ages(health.get("unproven_seconds")),
        **_seats_in_trouble(health),
    }


def _of_fleet(fleet: Mapping[str, Any]) -> dict[str, object]:
    held = sum(1 for seat in fleet["seats"] if seat.get("node"))
    paused = "; ".join(
        f"{seat['handle']}: {pause_words(seat['pause'])}" for seat in fleet["seats"] if seat.get("pause")
    )
    return {
        "company": fleet["company"],
        "live nodes": ", ".join(row["id"] for row in fleet["nodes"]) or "none",
        "seats held": f"{held} of {len(fleet['seats'])}",
        "paused": paused if fleet["pauses_known"] else "not known: nobody answered",
        "unplaceable": ", ".join(f"{each['handle']} ({each['placement']})" for each in fleet["unplaceable"]),
        "other documents": ", ".join(fleet.get("other_documents", ())),
        "held by nobody": ", ".join(fleet["disputed"]) if fleet.get("disputed") else None,
        "roles unmanned": ", ".join(fleet["unmanned_roles"]),
    }


def _seats_in_trouble(health: Mapping[str, Any]) -> dict[str, str]:
    """Which seats do not work, and why: one that is not ready is so because of its last error."""
    errors, held = dict(health.get("last_error") or {}), dict(health.get("held_back") or {})
    unready: dict[str, str] = {}
    for handle, holds in list(held.items()):
        others = [hold for hold in holds.split(", ") if hold != _NOT_READY]
        if _NOT_READY in holds.split(", "):
            unready[handle] = errors.pop(handle, "it is being started")
        held[handle] = ", ".join(others)
    held = {handle: holds for handle, holds in held.items() if holds}
    waiting = _pairs(health.get("waiting") or {})
    return {"not ready": _pairs(unready), "last error": _pairs(errors), "held back": _pairs(held), "waiting": waiting}


def problem_of(health: Mapping[str, Any]) -> str:
    """What is wrong with a node that runs, in a sentence; "" where nothing is."""
    if health["status"] != "ok":
        return ""
    if health["queue"] != "connected":
        return (
            "This node has no connection to its broker: mail waits, and what it shows may be old; look at the broker."
        )
    if rival := health.get("id_held_by"):
        return (
            f"Another process ({clean(rival)}) has this node's id, so that this one takes no seats: a former run of it "
            "goes by itself within a lease TTL; otherwise stop one of the two, or set another `node.id`."
        )
    if faults := health.get("store_faults"):
        return f"What the broker keeps is damaged. {_damage(faults)}."
    if not health["has_presence"]:
        why = f" ({clean(error)})" if (error := health.get("presence_error")) else ""
        return (
            f"This node cannot renew its presence{why}, so what it shows of the fleet may be old; look at its broker."
        )
    return ""


def _damage(faults: Mapping[str, str]) -> str:
    """What is wrong with which stores; those with which the same is wrong are named together."""
    stores: dict[str, list[str]] = {}
    for store, reason in sorted(faults.items()):
        stores.setdefault(reason, []).append(store)
    return "; ".join(f"{clean(', '.join(named))}: {clean(reason)}" for reason, named in stores.items())


def _differing(fleet: Mapping[str, Any]) -> str:
    """That documents differ, and which seats nobody runs meanwhile."""
    nodes = ", ".join(clean(node) for node in fleet["other_documents"])
    ages = {
        seat["handle"]: f" (since {instant(seat['free_since'])})" for seat in fleet["seats"] if seat.get("free_since")
    }
    unheld = ", ".join(clean(handle) + ages.get(handle, "") for handle in fleet["disputed"])
    sentence = f"The company's document names other seats on {nodes} than here: give every node the same one."
    return f"{sentence} Held by nobody meanwhile: {unheld}." if unheld else sentence


def _condition(health: Mapping[str, Any], refusal: NodeRefused | None) -> str:
    """The node's state on one line: `ok` only where the store it works with answers."""
    if health["status"] != "ok":
        return str(health["status"])
    if health["queue"] != "connected":
        return "no broker"
    if health.get("id_held_by"):
        return "its id is another's"
    if health.get("store_faults"):
        return "the broker's store is damaged"
    if not health["has_presence"]:
        return "not counted by the fleet"
    # Only a 503 speaks of the store: a token that is refused says nothing about the node.
    return "the store does not answer" if refusal is not None and refusal.status == 503 else "ok"


def _ages(seconds: Mapping[str, float] | None) -> str:
    return _pairs({handle: f"{age_s:.0f}s" for handle, age_s in (seconds or {}).items()})


def _pairs(values: Mapping[str, object] | None) -> str:
    return "; ".join(f"{handle}: {clean(value)}" for handle, value in (values or {}).items())
