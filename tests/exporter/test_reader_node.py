"""A node's reader joins driver, kubelet, API server and regions: each container has a slice with its figures.

Real pynvml on the stand-in library, a real kubelet socket, region files; `/proc` is a folder.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.allocation.records import OwnerLinkRecord
from exporter.attribution.process_places import ProcessPlaces
from exporter.cluster.reader import Watched
from exporter.kubelet.client import KubeletPodResources
from exporter.node.objects import NodeLookups
from exporter.node.pods import NodePods
from exporter.node.reader import NodeReader, NodeSources
from exporter.nvml.cards import NvmlCards
from exporter.nvml.reader import NvmlReader
from exporter.process_series import ProcessSeries
from exporter.process_stat import ProcessStats
from exporter.reader import DeviceReader, Reading
from exporter.regions.reader import HamiReader
from fleet.errors import Misconfigured
from fleet.schema import Measure
from tests.contracts.device_reader import DEADLINE_SECONDS, DeviceReaderContract
from tests.exporter.host_processes import HostProcesses
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.node import NODE, container_id, hami, instance_id, manifest, uid
from tests.exporter.nvml.standin import DATA_VARIABLE, FIELDS, GIB, GPM, H100, StandInWorld, library_file, uuid
from tests.regions.plain_regions import MIB, NOW, PlainProcess, PlainRegion, write_region
from wire.kubernetes.page import Page
from wire.kubernetes.read import WatchEvent

Place = tuple[str, int]
"""Pod, and number of the card."""


class ToldPods:
    """A cluster that holds the pods and other objects that it was given, and says nothing more.

    Args:
        manifests: the pods.
        objects: by kind and name; a kind without any is refused.
    """

    def __init__(
        self, manifests: Sequence[dict[str, Any]], objects: Mapping[Watched, Mapping[str, dict[str, Any]]]
    ) -> None:
        self._objects = objects
        self._manifests = [
            {**told, "metadata": {**told["metadata"], "resourceVersion": str(number)}}
            for number, told in enumerate(manifests)
        ]
        self._closed = threading.Event()

    def version_of(self, watched: Watched) -> str | None:
        return "v1"

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        if watched is not Watched.PODS:
            return Page(manifests=list(self._of_kind(watched).values()), version="7", next_token=None)
        return Page(manifests=self._manifests, version="7", next_token=None)

    def one(self, watched: Watched, *, namespace: str, name: str) -> dict[str, Any] | None:
        return self._of_kind(watched).get(name)

    def _of_kind(self, watched: Watched) -> Mapping[str, dict[str, Any]]:
        if watched not in self._objects:
            raise Misconfigured(f"cannot get {watched.value}")
        return self._objects[watched]

    def watch(self, watched: Watched, *, version: str) -> Iterator[WatchEvent]:
        self._closed.wait()
        return iter(())

    def close(self) -> None:
        self._closed.set()


class Machine:
    """One node with all that can be asked of it."""

    def __init__(self, folder: Path) -> None:
        self.world = StandInWorld(folder / "world.txt")
        self.kubelet = StandInKubelet(folder / "kubelet.sock")
        self.proc, self.containers = HostProcesses(folder / "proc"), folder / "containers"
        self.claims = folder / "claims"
        self.containers.mkdir()
        self.claims.mkdir()
        self.manifests: list[dict[str, Any]] = []
        self.objects: dict[Watched, dict[str, dict[str, Any]]] = {}
        self._readers: list[NodeReader] = []

    def card(self, **values: object) -> None:
        self.world.card(**{**H100, "gpm": GPM, "fields": FIELDS, "util": 60, **values})

    def granted(self, name: str, number: int, *ids: str, annotations: Mapping[str, str] | None = None) -> None:
        self.manifests.append(manifest(name, number, annotations=annotations))
        self.kubelet.pods = [*self.kubelet.pods, pod("team", name, container("main", device("nvidia.com/gpu", *ids)))]

    def process(self, pid: int, of: int, card: int, **figures: object) -> None:
        """A process of a pod's container on a card."""
        self.world.line("proc", dev=card, pid=pid, **figures)
        self.proc.put(pid, cgroup=f"/kubepods/pod{uid(of)}/{container_id(10 * of)}")

    def client(self, pid: int, of: int, card: int, **figures: object) -> None:
        """A process of a pod's container that works through the card's MPS server: `M+C` in the driver's own list."""
        self.process(pid, of, card, **figures)
        self.world.line("proc", dev=card, pid=pid, kind="mps", **figures)

    def mps_server(self, pid: int, card: int, **figures: object) -> None:
        """The card's MPS server, in a pod of the device plugin's that was granted nothing."""
        self.process(pid, 99, card, **figures)
        self.proc.put(pid, name=b"nvidia-cuda-mps", cgroup=f"/kubepods/pod{uid(99)}/{container_id(990)}")

    def reader(self, *, asks_api_server: bool = True, processes_max: int = 0) -> NodeReader:
        self.world.write()
        if self.kubelet.calls == 0:
            self.kubelet.start()
        told = ToldPods(self.manifests, self.objects)
        pods = NodePods(told, lookups=NodeLookups(told)) if asks_api_server else None
        if pods is not None:
            pods.start()
            assert pods.wait(60.0)
        cards = NvmlCards(library_path=str(library_file()), sample_seconds=None, answer_seconds=1.0, look_seconds=0.1)
        reader = NodeReader(
            NodeSources(
                cards=NvmlReader(cards, cluster="c", node=NODE),
                kubelet=KubeletPodResources(str(self.kubelet.path)),
                pods=pods,
                processes=ProcessPlaces(str(self.proc.folder)),
                regions=HamiReader(self.containers, self.claims),
            ),
            cluster="c",
            node=NODE,
            process_series=ProcessSeries(
                node=NODE, processes_max=processes_max, stats=ProcessStats(str(self.proc.folder))
            )
            if processes_max
            else None,
            clock=lambda: NOW,
        )
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self.kubelet.stop()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setenv(DATA_VARIABLE, str(tmp_path / "world.txt"))
    made = Machine(tmp_path)
    yield made
    made.close()


def second(reader: NodeReader) -> Reading:
    """The second reading: figures over a time need one before."""
    reader.read(DEADLINE_SECONDS)
    return reader.read(DEADLINE_SECONDS)


def values(reading: Reading, measure: Measure) -> dict[str, float]:
    """What is told of a measure, by pod."""
    column = reading.slice_values.get(measure)
    if column is None:
        return {}
    return {key.pod: value for key, value in zip(reading.slices, column.tolist(), strict=True) if not np.isnan(value)}


def series(reading: Reading, name: str) -> dict[tuple[str, ...], float]:
    family = next(family for family in reading.families if family.name == name)
    return dict(zip(family.labels, family.values.tolist(), strict=True))


class TestNodeReaderFulfilsTheContract(DeviceReaderContract):
    @pytest.fixture
    def reader(self, machine: Machine) -> DeviceReader:
        machine.card()
        machine.card()
        machine.granted("a", 1, uuid(0))
        machine.granted("b", 2, uuid(1))
        machine.process(100, 1, 0, mem=20 * GIB, sm=50)
        return machine.reader()


def test_pod_that_never_used_its_card_has_a_slice_at_zero(machine: Machine) -> None:
    machine.card(util=0, gpm=dict.fromkeys(GPM, 0))
    machine.granted("idle", 1, uuid(0))
    reading = machine.reader().read(DEADLINE_SECONDS)
    assert [(grant.pod, grant.container) for grant in reading.change.grants_started] == [("idle", "main")]
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"idle": 0.0}
    assert values(reading, Measure.DUTY_CYCLE) == {"idle": 0.0}
    assert list(series(reading, "gputide_slice_processes").values()) == [0.0]


def test_lone_tenant_does_what_its_card_does_and_holds_what_its_processes_hold(machine: Machine) -> None:
    machine.card(power=300_000)
    machine.granted("alone", 1, uuid(0))
    machine.process(100, 1, 0, mem=20 * GIB, sm=10)
    reading = second(machine.reader())
    assert values(reading, Measure.DUTY_CYCLE) == {"alone": pytest.approx(0.6)}
    assert values(reading, Measure.SM_ACTIVE) == {"alone": pytest.approx(0.4)}
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"alone": 20 * GIB}
    assert "alone" in values(reading, Measure.POWER)


def test_tenants_of_one_card_get_each_their_processes_figures_and_none_of_the_cards(machine: Machine) -> None:
    machine.card()
    for number, name in ((1, "first"), (2, "second"), (3, "sleeper")):
        machine.granted(name, number, f"{uuid(0)}::{number}")
    machine.process(100, 1, 0, mem=20 * GIB, sm=30)
    machine.process(101, 1, 0, mem=5 * GIB, sm=20)
    machine.process(200, 2, 0, mem=10 * GIB, sm=5)
    reading = second(machine.reader())
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"first": 25 * GIB, "second": 10 * GIB, "sleeper": 0.0}
    assert values(reading, Measure.DUTY_CYCLE) == {
        "first": pytest.approx(0.5), "second": pytest.approx(0.05), "sleeper": 0.0
    }  # fmt: skip
    assert values(reading, Measure.SM_ACTIVE) == {"sleeper": 0.0}
    assert values(reading, Measure.POWER) == {}


def test_hamis_annotation_says_the_card_and_its_region_the_use_that_the_driver_does_not_tell(machine: Machine) -> None:
    machine.card()
    machine.card()
    # The kubelet's id names the first card; the scheduler gave the second.
    machine.granted("vgpu", 1, f"{uuid(0)}-3", annotations={**hami(f"{uuid(1)},4000,30"), "hami.io/vgpu-node": NODE})
    machine.granted("other", 2, f"{uuid(1)}-0", annotations={**hami(f"{uuid(1)},4000,30"), "hami.io/vgpu-node": NODE})
    machine.world.line("proc", dev=1, pid=100, mem=2**64 - 1)
    folder = machine.containers / f"{uid(1)}_main"
    folder.mkdir()
    write_region(
        folder / "00000001-1111-4000-8000-000000000000.cache",
        PlainRegion(cards=(uuid(1),), processes=(PlainProcess(sm_util=35),), limit=4000 * MIB),
    )
    reading = second(machine.reader())
    assert [(key.pod, key.card) for key in reading.slices] == [("other", uuid(1)), ("vgpu", uuid(1))]
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"vgpu": 1320 * MIB}
    assert values(reading, Measure.DUTY_CYCLE) == {"vgpu": pytest.approx(0.35)}
    limits = series(reading, "gputide_slice_framebuffer_limit_bytes")
    assert [(labels[1], labels[2], value) for labels, value in limits.items()] == [("team", "vgpu", 4000 * MIB)]


def test_mig_instance_has_figures_of_its_own(machine: Machine) -> None:
    machine.card(mig=1)
    for number in (1, 2):
        machine.world.line(
            "mig", dev=0, gi=number, ci=0, uuid=instance_id(number), profile="1g.10gb", total=10 * GIB,
            used=number * GIB, sms=16, slices=1,
        )  # fmt: skip
    machine.granted("cut", 1, instance_id(2))
    reading = second(machine.reader())
    assert [(key.pod, key.card) for key in reading.slices] == [("cut", uuid(0))]
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"cut": 2 * GIB}
    assert reading.change.grants_started == ()
    (granted,) = (family for family in reading.families if family.name == "gputide_slice_mig_info")
    (labels,) = (dict(zip(granted.label_names, row, strict=True)) for row in granted.labels)
    assert (labels["pod"], labels["mig"], labels["mig_profile"]) == ("cut", instance_id(2), "1g.10gb")
    assert (labels["card"], labels["gpu_instance"], labels["compute_instance"]) == (uuid(0), "2", "0")


def test_processes_have_series_where_they_are_asked_for_and_name_their_container(machine: Machine) -> None:
    machine.card()
    machine.granted("tenant", 1, uuid(0))
    machine.process(100, 1, 0, mem=GIB, sm=10)
    assert not any(family.name.startswith("gputide_process_") for family in second(machine.reader()).families)
    reading = second(machine.reader(processes_max=5))
    families = {family.name: family for family in reading.families}
    (labels,) = families["gputide_process_info"].labels
    assert labels[-3:] == ("team", "tenant", "main")
    assert families["gputide_process_framebuffer_used_bytes"].values.tolist() == [GIB]


def test_stranger_on_a_card_is_told_and_takes_the_cards_figures_from_its_tenant(machine: Machine) -> None:
    machine.card()
    machine.card()
    machine.granted("tenant", 1, uuid(0))
    machine.granted("elsewhere", 2, uuid(1))
    machine.process(100, 1, 0, mem=GIB, sm=10)
    machine.process(200, 2, 0, mem=GIB, sm=50)
    reading = second(machine.reader())
    assert values(reading, Measure.DUTY_CYCLE)["tenant"] == pytest.approx(0.1)
    assert "tenant" not in values(reading, Measure.SM_ACTIVE)
    odd = series(reading, "gputide_attribution_finding_info")
    assert [(labels[2], labels[4]) for labels in odd] == [("stranger", "elsewhere")]


EXCLUSIVE_PROCESS = 3


def test_mps_server_is_no_stranger_and_leaves_its_lone_tenant_the_cards_figures(machine: Machine) -> None:
    machine.card(computemode=EXCLUSIVE_PROCESS)
    machine.granted("alone", 1, f"{uuid(0)}::0")
    machine.client(100, 1, 0, mem=20 * GIB, sm=10)
    machine.mps_server(50, 0, mem=GIB, sm=20)
    reading = second(machine.reader())
    assert series(reading, "gputide_attribution_findings")["c", NODE, "stranger"] == 0
    assert values(reading, Measure.DUTY_CYCLE) == {"alone": pytest.approx(0.6)}
    assert values(reading, Measure.SM_ACTIVE) == {"alone": pytest.approx(0.4)}
    # What the server holds, it holds for its only tenant.
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"alone": 21 * GIB}


@pytest.mark.parametrize(
    ("busy", "told"), [(0, {"first": 0.3, "second": 0.05, "sleeper": 0.0}), (40, {"sleeper": 0.0})]
)
def test_tenants_that_share_by_mps_have_their_own_figures_as_far_as_the_server_does_nothing(
    machine: Machine, busy: int, told: dict[str, float]
) -> None:
    machine.card(computemode=EXCLUSIVE_PROCESS)
    for number, name in ((1, "first"), (2, "second"), (3, "sleeper")):
        machine.granted(name, number, f"{uuid(0)}::{number}")
    machine.client(100, 1, 0, mem=20 * GIB, sm=30)
    machine.client(200, 2, 0, mem=10 * GIB, sm=5)
    machine.mps_server(50, 0, mem=GIB, sm=busy)
    reading = second(machine.reader())
    assert series(reading, "gputide_attribution_findings")["c", NODE, "stranger"] == 0
    assert values(reading, Measure.DUTY_CYCLE) == pytest.approx(told)
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"first": 20 * GIB, "second": 10 * GIB, "sleeper": 0.0}


@pytest.mark.parametrize(("busy", "told"), [(0, {"p1": 0.0, "p2": 0.0}), (40, {})])
def test_where_the_server_is_listed_in_its_clients_place_nobody_is_called_idle_while_it_works(
    machine: Machine, busy: int, told: dict[str, float]
) -> None:
    machine.card(computemode=EXCLUSIVE_PROCESS)
    for number in (1, 2):
        machine.granted(f"p{number}", number, f"{uuid(0)}::{number}")
    machine.mps_server(50, 0, mem=20 * GIB, sm=busy)
    reading = second(machine.reader())
    assert values(reading, Measure.DUTY_CYCLE) == told
    assert values(reading, Measure.FRAMEBUFFER_USED) == {}


def test_process_that_calls_itself_an_mps_server_where_there_is_none_is_a_stranger(machine: Machine) -> None:
    machine.card()
    machine.granted("tenant", 1, uuid(0))
    machine.process(100, 1, 0, mem=GIB, sm=10)
    machine.mps_server(50, 0, mem=GIB, sm=50)
    reading = second(machine.reader())
    assert series(reading, "gputide_attribution_findings")["c", NODE, "stranger"] == 1
    assert values(reading, Measure.DUTY_CYCLE)["tenant"] == pytest.approx(0.1)


def test_process_ids_of_another_namespace_place_nobody_and_call_nobody_idle(machine: Machine) -> None:
    machine.card()
    machine.card()
    for number in (1, 2):
        machine.granted(f"p{number}", number, f"{uuid(0)}::{number}")
    # In the exporter's own namespace this id is one of the second's, on a card that was granted to nobody.
    machine.process(100, 2, 1, mem=GIB, sm=10)
    machine.proc.hide_host()
    reading = second(machine.reader())
    assert all(np.isnan(column).all() for column in reading.slice_values.values())
    assert series(reading, "gputide_attribution_findings")["c", NODE, "stranger"] == 0
    assert series(reading, "gputide_node_source_failures_total")["c", NODE, "processes"] == 2


def test_without_the_hosts_processes_nobody_is_called_idle(machine: Machine) -> None:
    machine.card()
    for number in (1, 2):
        machine.granted(f"p{number}", number, f"{uuid(0)}::{number}")
    # The driver lists it, and this machine's `/proc` does not show it.
    machine.world.line("proc", dev=0, pid=100, mem=GIB, sm=10)
    reading = second(machine.reader())
    assert len(reading.slices) == 2
    assert all(np.isnan(column).all() for column in reading.slice_values.values())
    # Whoever wonders where the tenants' figures are is told.
    assert series(reading, "gputide_node_source_failures_total")["c", NODE, "processes"] >= 1


def test_owner_of_a_pods_owner_is_its_workload(machine: Machine) -> None:
    machine.card()
    job = OwnerLinkRecord(uid="job-1", kind="Job", name="nightly-1")
    machine.granted("run", 1, uuid(0))
    machine.manifests[0] = manifest("run", 1, owner=job)
    cron = {"uid": "cron", "kind": "CronJob", "name": "nightly", "controller": True}
    machine.objects[Watched.JOBS] = {"nightly-1": {"metadata": {"uid": "job-1", "ownerReferences": [cron]}}}
    reading = machine.reader().read(DEADLINE_SECONDS)
    assert [(grant.workload_kind, grant.workload) for grant in reading.change.grants_started] == [
        ("CronJob", "nightly")
    ]
    assert series(reading, "gputide_attribution_findings")["c", NODE, "owners_refused"] == 0


def test_owners_that_may_not_be_read_are_said_once_and_the_pods_own_stands(machine: Machine) -> None:
    machine.card()
    for number in (1, 2):
        job = OwnerLinkRecord(uid=f"job-{number}", kind="Job", name=f"nightly-{number}")
        machine.granted(f"run-{number}", number, f"{uuid(0)}::{number}")
        machine.manifests[-1] = manifest(f"run-{number}", number, owner=job)
    reading = machine.reader().read(DEADLINE_SECONDS)
    assert {(grant.workload_kind, grant.workload) for grant in reading.change.grants_started} == {
        ("Job", "nightly-1"), ("Job", "nightly-2"),
    }  # fmt: skip
    assert series(reading, "gputide_attribution_findings")["c", NODE, "owners_refused"] == 1
    assert ("c", NODE, "owners_refused", "", "", "", "") in series(reading, "gputide_attribution_finding_info")
    assert series(reading, "gputide_node_source_failures_total")["c", NODE, "api_server"] == 1


def test_claim_gives_the_card_that_its_driver_publishes(machine: Machine) -> None:
    machine.card()
    machine.card()
    machine.manifests.append(manifest("dra", 1, claims={"card": "gpu"}, resources={}))
    results = [{"driver": "gpu.nvidia.com", "pool": NODE, "device": "card-b"}]
    machine.objects[Watched.RESOURCE_CLAIMS] = {
        "gpu": {
            "metadata": {"namespace": "team", "name": "gpu"},
            "status": {
                "allocation": {"devices": {"results": results}},
                "reservedFor": [{"resource": "pods", "name": "dra", "uid": uid(1)}],
            },
        }
    }
    machine.objects[Watched.RESOURCE_SLICES] = {
        "s": {
            "spec": {
                "driver": "gpu.nvidia.com", "pool": {"name": NODE}, "nodeName": NODE,
                "devices": [{"name": "card-b", "attributes": {"uuid": {"string": uuid(1)}}}],
            }
        }
    }  # fmt: skip
    reading = machine.reader().read(DEADLINE_SECONDS)
    assert [(key.pod, key.container, key.card) for key in reading.slices] == [("dra", "main", uuid(1))]
    sources = {labels[-1] for labels in series(reading, "gputide_slice_certain")}
    assert sources == {"resource_claim"}


def test_region_of_a_claim_tells_of_the_container_that_uses_it(machine: Machine) -> None:
    machine.card()
    for number, name in ((1, "dra"), (2, "other")):
        machine.manifests.append(manifest(name, number, claims={"card": f"gpu-{name}"}, resources={}))
    machine.objects[Watched.RESOURCE_CLAIMS] = {
        f"gpu-{name}": {
            "metadata": {"namespace": "team", "name": f"gpu-{name}", "uid": uid(500 + number)},
            "status": {
                "allocation": {
                    "devices": {
                        "results": [{
                            "driver": "hami-core-gpu.project-hami.io", "pool": NODE, "device": "hami-gpu-0",
                            "consumedCapacity": {"memory": "4000Mi", "cores": "30"},
                        }]
                    }
                },
                "reservedFor": [{"resource": "pods", "name": name, "uid": uid(number)}],
            },
        }
        for number, name in ((1, "dra"), (2, "other"))
    }  # fmt: skip
    machine.objects[Watched.RESOURCE_SLICES] = {
        "s": {
            "spec": {
                "driver": "hami-core-gpu.project-hami.io", "pool": {"name": NODE}, "nodeName": NODE,
                "devices": [{"name": "hami-gpu-0", "attributes": {"uuid": {"string": uuid(0)}}}],
            }
        }
    }  # fmt: skip
    machine.world.line("proc", dev=0, pid=100, mem=2**64 - 1)
    folder = machine.claims / uid(501)
    folder.mkdir()
    write_region(
        folder / "00000001-1111-4000-8000-000000000000.cache",
        PlainRegion(cards=(uuid(0),), processes=(PlainProcess(sm_util=35),), limit=4000 * MIB),
    )
    reading = second(machine.reader())
    assert [key.pod for key in reading.slices] == ["dra", "other"]
    assert values(reading, Measure.FRAMEBUFFER_USED) == {"dra": 1320 * MIB}
    assert values(reading, Measure.DUTY_CYCLE) == {"dra": pytest.approx(0.35)}
    limits = series(reading, "gputide_slice_framebuffer_limit_bytes")
    assert [(labels[2], value) for labels, value in limits.items()] == [("dra", 4000 * MIB)]


def test_claims_that_may_not_be_read_are_said(machine: Machine) -> None:
    machine.card()
    machine.manifests.append(manifest("dra", 1, claims={"card": "gpu"}, resources={}))
    reading = machine.reader().read(DEADLINE_SECONDS)
    assert reading.slices == ()
    assert series(reading, "gputide_attribution_findings")["c", NODE, "claims_refused"] == 1


def test_kubelet_and_api_server_that_fall_silent_end_no_grant(machine: Machine) -> None:
    machine.card()
    machine.granted("stays", 1, uuid(0))
    reader = machine.reader()
    reader.read(DEADLINE_SECONDS)
    machine.kubelet.stop()
    reading = reader.read(DEADLINE_SECONDS)
    assert [key.pod for key in reading.slices] == ["stays"]
    assert (reading.change.grants_started, reading.change.grants_ended) == ((), ())
    failures = series(reading, "gputide_node_source_failures_total")
    assert failures["c", NODE, "kubelet"] >= 1


def test_kubelet_that_hangs_leaves_time_for_the_regions(machine: Machine) -> None:
    machine.card()
    machine.granted("stays", 1, uuid(0))
    reader = machine.reader(asks_api_server=False)
    reader.read(DEADLINE_SECONDS)
    machine.kubelet.is_silent = True
    failures = series(reader.read(3.0), "gputide_node_source_failures_total")
    assert failures["c", NODE, "kubelet"] == 1
    assert failures["c", NODE, "hami_regions"] == 0


def test_without_the_api_server_the_kubelet_alone_gives_slices(machine: Machine) -> None:
    machine.card()
    machine.granted("known", 1, uuid(0))
    machine.process(100, 1, 0, mem=20 * GIB, sm=10)
    reading = second(machine.reader(asks_api_server=False))
    assert [(key.namespace, key.pod) for key in reading.slices] == [("team", "known")]
    # Which processes are its own is not known; the card has no other tenant.
    assert values(reading, Measure.DUTY_CYCLE) == {"known": pytest.approx(0.6)}
    assert series(reading, "gputide_slice_processes") != {}
    assert np.isnan(list(series(reading, "gputide_slice_processes").values())).all()


def test_pod_that_is_gone_ends_its_grant(machine: Machine) -> None:
    machine.card()
    machine.granted("goes", 1, uuid(0))
    reader = machine.reader(asks_api_server=False)
    reader.read(DEADLINE_SECONDS)
    machine.kubelet.pods = []
    reading = reader.read(DEADLINE_SECONDS)
    assert [(grant.pod, grant.ended_at) for grant in reading.change.grants_ended] == [("goes", reading.at)]
    assert reading.slices == ()
