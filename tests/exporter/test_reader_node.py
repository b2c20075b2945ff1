"""A node's reader joins driver, kubelet, API server and regions: each container has a slice with its figures.

Real pynvml on the stand-in library, a real kubelet socket, region files; `/proc` is a folder.
"""

import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from exporter.attribution.process_places import ProcessPlaces
from exporter.cluster_reader import Page, Watched, WatchEvent
from exporter.kubelet.client import KubeletPodResources
from exporter.node_pods import NodePods
from exporter.nvml.cards import NvmlCards
from exporter.reader import DeviceReader, Reading
from exporter.reader_hami import HamiReader
from exporter.reader_node import NodeReader, NodeSources
from exporter.reader_nvml import NvmlReader
from fleet.schema import Measure
from tests.contracts.device_reader import DEADLINE_SECONDS, DeviceReaderContract
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.node import NODE, container_id, hami, instance_id, manifest, uid
from tests.exporter.nvml.standin import DATA_VARIABLE, FIELDS, GIB, GPM, H100, StandInWorld, library_file, uuid
from tests.exporter.regions.plain_regions import MIB, NOW, PlainProcess, PlainRegion, write_region

Place = tuple[str, int]
"""Pod, and number of the card."""


class ToldPods:
    """A cluster that holds the pods it was given, and says nothing more."""

    def __init__(self, manifests: Sequence[dict[str, Any]]) -> None:
        self._manifests = [
            {**told, "metadata": {**told["metadata"], "resourceVersion": str(number)}}
            for number, told in enumerate(manifests)
        ]
        self._closed = threading.Event()

    def version_of(self, watched: Watched) -> str | None:
        return "v1"

    def page(self, watched: Watched, *, limit: int, token: str | None) -> Page:
        return Page(manifests=self._manifests, version="7", next_token=None)

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
        self.proc, self.containers = folder / "proc", folder / "containers"
        self.proc.mkdir()
        self.containers.mkdir()
        self.manifests: list[dict[str, Any]] = []
        self._readers: list[NodeReader] = []

    def card(self, **values: object) -> None:
        self.world.card(**{**H100, "gpm": GPM, "fields": FIELDS, "util": 60, **values})

    def granted(self, name: str, number: int, *ids: str, annotations: Mapping[str, str] | None = None) -> None:
        self.manifests.append(manifest(name, number, annotations=annotations))
        self.kubelet.pods = [*self.kubelet.pods, pod("team", name, container("main", device("nvidia.com/gpu", *ids)))]

    def process(self, pid: int, of: int, card: int, **figures: object) -> None:
        """A process of a pod's container on a card."""
        self.world.line("proc", dev=card, pid=pid, **figures)
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "stat").write_text(f"{pid} (python) {' '.join(['S', *['0'] * 18, '100', *['0'] * 30])}\n")
        (folder / "cgroup").write_text(f"0::/kubepods/pod{uid(of)}/{container_id(10 * of)}\n")

    def reader(self, *, asks_api_server: bool = True) -> NodeReader:
        self.world.write()
        if self.kubelet.calls == 0:
            self.kubelet.start()
        pods = NodePods(ToldPods(self.manifests)) if asks_api_server else None
        if pods is not None:
            pods.start()
            while pods.facts() is None:
                threading.Event().wait(0.01)
        cards = NvmlCards(library_path=str(library_file()), sample_seconds=None, answer_seconds=1.0, look_seconds=0.1)
        reader = NodeReader(
            NodeSources(
                cards=NvmlReader(cards, cluster="c", node=NODE),
                kubelet=KubeletPodResources(str(self.kubelet.path)),
                pods=pods,
                processes=ProcessPlaces(str(self.proc)),
                regions=HamiReader(self.containers),
            ),
            cluster="c",
            node=NODE,
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


def test_without_the_hosts_processes_nobody_is_called_idle(machine: Machine) -> None:
    machine.card()
    for number in (1, 2):
        machine.granted(f"p{number}", number, f"{uuid(0)}::{number}")
    # The driver lists it, and this machine's `/proc` does not show it.
    machine.world.line("proc", dev=0, pid=100, mem=GIB, sm=10)
    reading = second(machine.reader())
    assert len(reading.slices) == 2
    assert all(np.isnan(column).all() for column in reading.slice_values.values())


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
