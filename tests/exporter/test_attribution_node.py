"""A whole node: the kubelet's real socket, a `/proc`, pods' manifests, and every slice with its processes."""

from pathlib import Path

from exporter.attribution.attributor import attribute
from exporter.attribution.process_places import ProcessPlaces
from exporter.attribution.records import ProcessOnCard
from exporter.kubelet.client import KubeletPodResources
from tests.exporter.host_processes import HostProcesses
from tests.exporter.kubelet import StandInKubelet, container, device, pod
from tests.exporter.node import NOW, card_id, container_id, facts, hami, told, uid, view

GIB = 2**30


def test_hami_and_nvidia_pods_of_one_node_are_attributed_from_its_sources(tmp_path: Path) -> None:
    kubelet = StandInKubelet(tmp_path / "kubelet.sock")
    kubelet.pods = [
        pod("team", "whole", container("main", device("nvidia.com/gpu", card_id(0)))),
        # The kubelet picked an id of card 0; HAMi's plugin mounted card 1.
        pod("team", "slice", container("main", device("nvidia.com/gpu", f"{card_id(0)}-4"))),
        pod("kube-system", "coredns", container("coredns")),
    ]
    kubelet.devices = [device("nvidia.com/gpu", card_id(0), card_id(1))]
    kubelet.start()
    client = KubeletPodResources(str(kubelet.path))
    proc = HostProcesses(tmp_path / "proc")
    for pid, number in ((100, 1), (200, 2)):
        scope = f"cri-containerd-{container_id(10 * number)}.scope"
        slice_name = f"kubepods-burstable-pod{uid(number).replace('-', '_')}.slice"
        proc.put(pid, cgroup=f"/kubepods.slice/kubepods-burstable.slice/{slice_name}/{scope}")
    try:
        rows, allocatable = client.list(5.0), client.allocatable(5.0)
    finally:
        client.close()
        kubelet.stop()
    assert allocatable is not None
    # Process 300 ended between the driver's list and ours.
    seen = {place.pid: place.places for place in ProcessPlaces(str(proc.folder)).look([100, 200, 300])}
    attribution = attribute(
        view(
            rows=rows,
            allocatable=[name for found in allocatable for name in found.ids],
            pods=[facts("whole", 1), facts("slice", 2, annotations=hami(f"{card_id(1)},20480,25"))],
            processes=tuple(
                ProcessOnCard(pid=pid, card=card_id(0 if pid == 100 else 1), places=places)
                for pid, places in seen.items()
            ),
        ),
        NOW,
    )
    assert told(attribution) == [("slice", "main", card_id(1), 20.0), ("whole", "main", card_id(0), 80.0)]
    assert [found.pids for found in attribution.slices] == [(200,), (100,)]
