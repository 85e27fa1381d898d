"""The plan of `crewlet up` and the pauses between restarts."""

from pathlib import Path

import pytest

from crewlet.supervisor.backoff import Backoff
from crewlet.supervisor.broker import BrokerPlan, ClusterPlan
from crewlet.supervisor.plan import UpPlan


@pytest.mark.parametrize(
    "broker",
    [
        None,
        BrokerPlan(),
        BrokerPlan(store_dir=Path("/d/b"), token="t", cluster=ClusterPlan("c", 6222, ("h:1", "h:2"), secret="s")),
    ],
)
def test_a_plan_survives_its_way_through_json(broker: BrokerPlan | None) -> None:
    plan = UpPlan(Path("/d"), ("python", "-c", "pass"), {"A": "b"}, broker, 45.0, ("127.0.0.1", 80))
    assert UpPlan.from_json(plan.to_json()) == plan


def test_pauses_double_up_to_half_a_minute() -> None:
    backoff = Backoff()
    assert [backoff.after(0.1) for _ in range(8)] == [0.5, 1, 2, 4, 8, 16, 30, 30]
    assert backoff.ends == 8


def test_a_minute_of_health_begins_the_pauses_anew() -> None:
    backoff = Backoff()
    for _ in range(7):
        backoff.after(59.0)
    assert backoff.after(60.0) == 0.5
    assert backoff.ends == 1
