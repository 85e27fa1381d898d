"""A node's facts as Prometheus metrics, read at each scrape."""

from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import REGISTRY, Collector

from crewlet.node.status import HealthSnapshot


class NodeCollector(Collector):
    """Turns one health snapshot into gauges."""

    def __init__(self, health: Callable[[], HealthSnapshot]) -> None:
        self._health = health

    def collect(self) -> Iterator[Metric]:
        health = self._health()
        build = GaugeMetricFamily("crewlet_build_info", "The build that runs.", labels=["node", "version"])
        build.add_metric([health.node, health.version], 1)
        yield build
        yield GaugeMetricFamily("crewlet_seats_held", "Seats held and proven.", value=len(health.seats))
        yield GaugeMetricFamily("crewlet_turns_in_flight", "Turns running now.", value=health.in_flight)
        yield GaugeMetricFamily("crewlet_ready", "1 when work may be sent here.", value=health.is_ready)
        yield GaugeMetricFamily("crewlet_draining", "1 once a drain has begun.", value=health.shutting_down)
        linked = health.queue == "connected"
        yield GaugeMetricFamily("crewlet_broker_connected", "1 while the broker is linked.", value=linked)
        yield GaugeMetricFamily("crewlet_lease_ttl_seconds", "The lease TTL in force.", value=health.lease_ttl_s)
        buried = CounterMetricFamily("crewlet_dead_letters", "Mail that this process dead-lettered.")
        buried.add_metric([], health.dead_letters or 0)
        yield buried
        failed = CounterMetricFamily("crewlet_failed_burials", "Dead letters that could not be made; the mail stayed.")
        failed.add_metric([], health.failed_burials or 0)
        yield failed
        damaged = len(health.store_faults or {})
        yield GaugeMetricFamily("crewlet_store_faults", "Streams and buckets that are damaged.", value=damaged)
        if health.nodes is not None:
            yield GaugeMetricFamily("crewlet_live_nodes", "Live nodes at the last roster.", value=health.nodes)
            others = len(health.other_documents or ())
            yield GaugeMetricFamily(
                "crewlet_other_documents", "Live nodes whose company has other seats.", value=others
            )
        unproven = GaugeMetricFamily(
            "crewlet_unproven_seconds", "For how long a seat's teardown has been failing.", labels=["seat"]
        )
        for handle, seconds in (health.unproven_seconds or {}).items():
            unproven.add_metric([handle], seconds)
        yield unproven


def exposition(health: Callable[[], HealthSnapshot]) -> Callable[[], bytes]:
    """A function that renders the node's gauges and the process's own metrics."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(NodeCollector(health))
    return lambda: generate_latest(registry) + generate_latest(REGISTRY)
