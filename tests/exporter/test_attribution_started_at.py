"""A grant begins at the same moment for the exporter of its node and for the one of its cluster."""

import json
from datetime import datetime, timedelta

import pytest

from exporter.allocation.manifest import Shared
from exporter.allocation.objects import key_of, record_of
from exporter.allocation.state import Allocation
from exporter.attribution.attributor import CLOCK_SKEW_MAX, attribute
from exporter.attribution.pods import pod_facts
from exporter.cluster.reader import Watched
from tests.exporter.node import CARD_BYTES, MODEL, NODE, NOW, card_id, hami, known, manifest, only, view


def start_by_cluster(pod: dict) -> str:
    """What the scheduler layer says of the pod's only slice."""
    card = {"id": card_id(0), "count": 10, "devmem": CARD_BYTES >> 20, "devcore": 100, "type": f"NVIDIA-{MODEL}"}
    register = json.dumps([{**card, "health": True}])
    node = {"metadata": {"name": NODE, "annotations": {"hami.io/node-nvidia-register": register}}, "status": {}}
    allocation = Allocation("c")
    for watched, told in ((Watched.NODES, node), (Watched.PODS, pod)):
        allocation.put(watched, key_of(told), record_of(watched, told, Shared()))
    assert allocation.settle(100)
    families = allocation.families(frozenset(Watched))
    family = next(family for family in families if family.name == "gputide_slice_info")
    (labels,) = family.labels
    return dict(zip(family.label_names, labels, strict=True))["started_at"]


def start_by_node(pod: dict, now: datetime) -> str:
    found = pod_facts(pod, Shared())
    assert found is not None
    slice_ = only(attribute(view(cards=[known(0)], rows=None, pods=[found]), now))
    return slice_.grant.started_at.isoformat()


@pytest.mark.parametrize("ahead", [timedelta(hours=-1), timedelta(0), CLOCK_SKEW_MAX])
def test_both_exporters_tell_the_moment_of_binding(ahead: timedelta) -> None:
    bound_at = (NOW + ahead).isoformat().replace("+00:00", "Z")
    pod = manifest("a", 1, annotations=hami(f"{card_id(0)},4000,10"), bound_at=bound_at)
    assert start_by_node(pod, NOW) == start_by_cluster(pod) == (NOW + ahead).isoformat()


@pytest.mark.parametrize(
    "status",
    [
        {"phase": "Running", "startTime": "2026-03-04T10:59:00Z"},
        {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True"}],
            "startTime": "2026-03-04T10:59:00Z",
        },
    ],
)
def test_without_the_moment_of_binding_both_take_the_kubelets(status: dict) -> None:
    pod = manifest("a", 1, annotations=hami(f"{card_id(0)},4000,10"))
    pod["status"] = status
    assert start_by_node(pod, NOW) == start_by_cluster(pod) == "2026-03-04T10:59:00+00:00"


def test_without_either_both_take_the_objects_age() -> None:
    pod = manifest("a", 1, annotations=hami(f"{card_id(0)},4000,10"))
    pod["metadata"]["creationTimestamp"] = "2026-03-04T10:58:00Z"
    pod["status"] = {"phase": "Running"}
    assert start_by_node(pod, NOW) == start_by_cluster(pod) == "2026-03-04T10:58:00+00:00"
