"""What `crewlet up` runs, as the command line decided it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from crewlet.supervisor.brokerplan import BrokerPlan

PLAN_ENV = "CREWLET_PLAN_FD"
"""The environment variable that tells the planning process the descriptor to write its plan to."""


@dataclass(frozen=True, slots=True)
class UpPlan:
    """One broker (unless it is somebody else's) and one node.

    Attributes:
        data_dir: absolute; locked while this runs. `run/` in it is made when it is missing.
        node_argv: the node's program and arguments.
        node_env: variables the node gets on top of the parent's own environment.
        broker: what to run beside the node, or None.
        lease_ttl_s: the TTL asked for; None where leases cannot lapse. It paces how often the parent looks up from
            its sleep, nothing else: the deadline itself comes from the page.
        api: the host and port on which the node will listen, port 0 for any; None where it does not.
    """

    data_dir: Path
    node_argv: tuple[str, ...]
    node_env: Mapping[str, str] = field(default_factory=dict[str, str])
    broker: BrokerPlan | None = None
    lease_ttl_s: float | None = None
    api: tuple[str, int] | None = None

    @property
    def run_dir(self) -> Path:
        return self.data_dir / "run"

    def to_json(self) -> str:
        """Text from which `from_json` makes an equal plan."""
        return json.dumps(
            {
                "data_dir": str(self.data_dir),
                "node_argv": list(self.node_argv),
                "node_env": dict(self.node_env),
                "broker": None if self.broker is None else self.broker.as_json(),
                "lease_ttl_s": self.lease_ttl_s,
                "api": self.api,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The plan that `to_json` gave.

        Raises:
            ValueError, TypeError, KeyError: the text is not such a plan.
        """
        value: dict[str, Any] = json.loads(text)
        broker = value["broker"]
        return cls(
            data_dir=Path(value["data_dir"]),
            node_argv=tuple(value["node_argv"]),
            node_env=dict(value["node_env"]),
            broker=None if broker is None else BrokerPlan.from_json(broker),
            lease_ttl_s=value["lease_ttl_s"],
            api=None if value["api"] is None else tuple(value["api"]),
        )
