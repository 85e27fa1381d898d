"""`crewlet up`: the plan of broker and node. Running it is the supervisor's."""

import os
import sys

import typer

from crewlet.cli.app import PLAN_ONLY
from crewlet.cli.options import DEFAULT_CONFIG, ConfigOption, load
from crewlet.node.settings import Settings
from crewlet.supervisor.brokerplan import BrokerPlan, ClusterPlan
from crewlet.supervisor.plan import PLAN_ENV, UpPlan


def up(context: typer.Context, config: ConfigOption = DEFAULT_CONFIG) -> None:
    """Run a node, with a broker beside it unless an external one is configured."""
    if context.obj is PLAN_ONLY:
        _write(plan_of(load(config)[0]).to_json())
        return
    from crewlet.supervisor import parent

    raise typer.Exit(parent.main(["--config", str(config)]))


def _write(plan: str) -> None:
    """Hand the plan to the process that asked for it, or show it when none did."""
    number = os.environ.get(PLAN_ENV, "")
    if not number.isdecimal():
        print(plan)
        return
    with open(int(number), "w", encoding="utf-8") as pipe:
        pipe.write(plan)


def plan_of(settings: Settings) -> UpPlan:
    """What to run for these settings."""
    is_local = settings.coordination.type == "local"
    return UpPlan(
        data_dir=settings.node.data_dir,
        node_argv=(sys.executable, "-P", "-m", "crewlet.cli", "node", "--config", str(settings.path)),
        broker=None if settings.stream.type == "nats" else _broker_plan(settings),
        lease_ttl_s=None if is_local else settings.coordination.lease_ttl_seconds,
        api=settings.api.address,
    )


def _broker_plan(settings: Settings) -> BrokerPlan:
    stream, cluster = settings.stream, settings.stream.cluster
    return BrokerPlan(
        # A broker's name holds no dot; a node's id may, and holds no tilde.
        name=settings.node.id.replace(".", "~"),
        store_dir=stream.store_dir,
        port=stream.port,
        token=stream.token,
        sync_interval=stream.sync,
        cluster=None
        if cluster is None
        else ClusterPlan(
            name=cluster.name, port=cluster.port, peers=cluster.peers, host=cluster.host, secret=cluster.secret
        ),
    )
