"""A process is found in its pod and container under every runtime, driver and version of cgroups."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution.cgroup import (
    CgroupPlace,
    Occupant,
    container_id_of_status,
    enclosing_pods,
    parse_cgroup,
    place_that_counts,
)
from exporter.attribution.process_places import ProcessPlaces
from exporter.process_stat import ProcessStats
from fleet.errors import Unavailable
from tests.exporter.host_processes import HostProcesses

UID = "0fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5"
UID_ = UID.replace("-", "_")
OTHER_UID = "1fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5"
STATIC_UID = "0123456789abcdef0123456789abcdef"
CONTAINER = "c0ffee00" * 8
OTHER = "deadbeef" * 8

SLICES = "/kubepods.slice/kubepods-burstable.slice"
NESTED_SLICES = f"/docker/{OTHER}/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice"
V1 = "\n".join(
    f"{number}:{controller}:{{path}}"
    for number, controller in ((12, "pids"), (11, "devices"), (3, "cpu,cpuacct"), (1, "name=systemd"))
)
V2 = "0::{path}\n"
HYBRID = "4:devices:/\n1:name=systemd:/init.scope\n0::{path}\n"


@pytest.mark.parametrize("version", [V1, V2, HYBRID], ids=["v1", "v2", "hybrid"])
@pytest.mark.parametrize(
    ("path", "pod_uid"),
    [
        (f"/kubepods/burstable/pod{UID}/{CONTAINER}", UID),
        (f"/kubepods/besteffort/pod{UID}/{CONTAINER}", UID),
        (f"/kubepods/pod{UID}/{CONTAINER}", UID),
        (f"/kubepods/burstable/pod{STATIC_UID}/{CONTAINER}", STATIC_UID),
        (f"{SLICES}/kubepods-burstable-pod{UID_}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{UID_}.slice/crio-{CONTAINER}.scope", UID),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{CONTAINER}.scope/container", UID),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice/docker-{CONTAINER}.scope", UID),
        (f"/kubepods.slice/kubepods-pod{UID_}.slice/docker-{CONTAINER}.scope/system.slice/app.service", UID),
        (f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{CONTAINER}", UID),
        (f"{NESTED_SLICES}/kubelet-kubepods-burstable-pod{UID_}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/docker/{OTHER}/kubepods/pod{UID}/{CONTAINER}", UID),
        (f"/../../kubepods-pod{UID_}.slice/cri-containerd-{CONTAINER}.scope", UID),
        (f"/../../pod{UID}/{CONTAINER}", UID),
    ],
)  # fmt: skip
def test_a_process_of_a_container_is_found_there(version: str, path: str, pod_uid: str) -> None:
    (place,) = parse_cgroup(version.format(path=path))
    assert place == CgroupPlace(pod_uid=pod_uid, container_id=CONTAINER, occupant=Occupant.CONTAINER)


@pytest.mark.parametrize(
    ("below", "occupant"),
    [(f"crio-conmon-{CONTAINER}.scope", Occupant.MONITOR), (f"kata_{CONTAINER}", Occupant.VIRTUAL_MACHINE),
     ("kata_overhead", Occupant.VIRTUAL_MACHINE), ("", Occupant.POD), ("short-0123.scope", Occupant.POD)],
)  # fmt: skip
def test_what_is_no_container_is_not_taken_for_one(below: str, occupant: Occupant) -> None:
    (place,) = parse_cgroup(f"0::/kubepods.slice/kubepods-pod{UID_}.slice/{below}")
    assert place == CgroupPlace(pod_uid=UID, container_id=None, occupant=occupant)


@pytest.mark.parametrize(
    "text",
    ["", "0::/", "0::/init.scope", "0::/user.slice/user-1000.slice/session-3.scope", f"0::/docker/{CONTAINER}",
     f"0::/system.slice/docker-{CONTAINER}.scope", "0::/kubepods/podlet/x", f"0::/kubepods/pod{UID[:-1]}/{CONTAINER}",
     f"0::/kubepods/pod{UID}0/{CONTAINER}", f"0::/tripod{UID}x/{CONTAINER}", "no colons at all", "::::",
     "0::" + "/" * 100_000],
)  # fmt: skip
def test_a_process_outside_of_pods_is_in_none(text: str) -> None:
    assert parse_cgroup(text) == ()


def test_a_cgroup_that_a_tenant_made_inside_its_own_does_not_lead_to_another_pod() -> None:
    places = parse_cgroup(f"0::/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{OTHER_UID}/{OTHER}")
    assert [place.pod_uid for place in places] == [UID, OTHER_UID]
    chosen = place_that_counts(places)
    assert chosen is not None
    assert (chosen.pod_uid, chosen.container_id) == (UID, CONTAINER)


def test_the_pods_of_a_cluster_in_a_pod_are_told_apart_inside_of_it() -> None:
    own = parse_cgroup(f"0::/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{STATIC_UID}/{CONTAINER}")
    other = parse_cgroup(f"0::/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{OTHER_UID}/{OTHER}")
    chosen = place_that_counts(other, enclosing_pods(own))
    assert chosen is not None
    assert (chosen.pod_uid, chosen.container_id) == (OTHER_UID, OTHER)
    assert place_that_counts(other[:1], enclosing_pods(own)) is None


def test_on_a_plain_node_no_pod_encloses_the_others() -> None:
    assert enclosing_pods(parse_cgroup(f"0::/kubepods/pod{UID}/{CONTAINER}")) == frozenset()
    assert enclosing_pods(()) == frozenset()
    assert place_that_counts(()) is None


@given(st.text(alphabet="0:/podkubeslice.-_abcdef0123456789\n", max_size=300))
def test_any_text_names_only_pods_of_the_right_shape(text: str) -> None:
    for place in parse_cgroup(text):
        assert len(place.pod_uid.replace("-", "")) == 32
        assert place.container_id is None or len(place.container_id) == 64


@pytest.mark.parametrize(
    ("text", "container_id"),
    [(f"containerd://{CONTAINER}", CONTAINER), (f"cri-o://{CONTAINER}", CONTAINER), (CONTAINER, None), ("", None),
     ("docker://../../etc", None)],
)  # fmt: skip
def test_a_pods_status_names_containers_as_cgroups_do(text: str, container_id: str | None) -> None:
    assert container_id_of_status(text) == container_id


@pytest.fixture
def proc(tmp_path: Path) -> HostProcesses:
    return HostProcesses(tmp_path)


def test_processes_are_looked_up_in_the_given_proc(proc: HostProcesses) -> None:
    proc.put(7, started=100, cgroup=f"/kubepods/pod{UID}/{CONTAINER}", name=b"a) S 1 (b")
    proc.put(8, started=101, cgroup="/init.scope")
    found = ProcessPlaces(str(proc.folder)).look([7, 8, 9, 7])
    assert [(place.pid, place.started_seconds, len(place.places)) for place in found] == [(7, 1.0, 1), (8, 1.01, 0)]


def test_a_process_id_that_is_used_anew_is_not_taken_for_the_old_process(proc: HostProcesses) -> None:
    places = ProcessPlaces(str(proc.folder))
    proc.put(7, started=100, cgroup=f"/kubepods/pod{UID}/{CONTAINER}")
    (before,) = places.look([7])
    proc.put(7, started=200, cgroup=f"/kubepods/pod{OTHER_UID}/{OTHER}")
    (after,) = places.look([7])
    assert (before.places[0].pod_uid, after.places[0].pod_uid) == (UID, OTHER_UID)


def test_a_process_id_that_changes_hands_while_it_is_read_is_left_out(proc: HostProcesses) -> None:
    proc.put(7, started=100, cgroup="/")
    pipe = proc.folder / "7" / "cgroup"
    pipe.unlink()
    os.mkfifo(pipe)

    def change_hands() -> None:
        with pipe.open("w") as cgroup:  # opens once the reader has seen the old start
            stat = proc.folder / "7" / "stat"
            stat.write_text(stat.read_text().replace(" 100 ", " 200 "))
            cgroup.write(f"0::/kubepods/pod{UID}/{CONTAINER}\n")

    writer = threading.Thread(target=change_hands)
    writer.start()
    assert ProcessPlaces(str(proc.folder)).look([7]) == ()
    writer.join()


def test_a_process_that_is_still_the_same_is_not_read_again(proc: HostProcesses) -> None:
    places = ProcessPlaces(str(proc.folder))
    proc.put(7, started=100, cgroup=f"/kubepods/pod{UID}/{CONTAINER}")
    first = places.look([7])
    (proc.folder / "7" / "cgroup").unlink()
    assert places.look([7]) == first
    # Once it was not asked for, it is forgotten.
    assert places.look([]) == ()
    assert places.look([7]) == ()


def test_a_process_that_is_moved_into_a_pod_later_is_seen_there(proc: HostProcesses) -> None:
    places = ProcessPlaces(str(proc.folder))
    proc.put(7, started=100, cgroup="/system.slice/containerd.service")
    assert places.look([7])[0].places == ()
    proc.put(7, started=100, cgroup=f"/kubepods/pod{UID}/{CONTAINER}")
    assert places.look([7])[0].places[0].pod_uid == UID


def test_process_that_becomes_another_program_has_that_ones_name(proc: HostProcesses) -> None:
    places = ProcessPlaces(str(proc.folder))
    for name in (b"nvidia-cuda-mps", b"python"):
        proc.put(7, started=100, name=name, cgroup=f"/kubepods/pod{UID}/{CONTAINER}")
        assert places.look([7])[0].name == name.decode()


def test_the_exporter_knows_by_its_own_path_what_its_node_runs_in(proc: HostProcesses) -> None:
    assert ProcessPlaces(str(proc.folder)).enclosing() == frozenset()
    proc.put(5, started=1, cgroup=f"/kubepods/pod{UID}/{CONTAINER}/kubepods/pod{OTHER_UID}/{OTHER}")
    (proc.folder / "self").symlink_to("5")
    assert ProcessPlaces(str(proc.folder)).enclosing() == {UID}


def test_a_file_without_end_is_read_to_its_bound_only(proc: HostProcesses) -> None:
    proc.put(7, started=100, cgroup="/" + "a/" * 200_000 + f"pod{UID}/{CONTAINER}")
    assert ProcessPlaces(str(proc.folder)).look([7])[0].places == ()


def test_process_of_another_pid_namespace_is_not_taken_for_one_of_the_drivers(proc: HostProcesses) -> None:
    proc.put(7, started=100, cgroup=f"/kubepods/pod{UID}/{CONTAINER}")
    proc.hide_host()
    # Who lists no process may be kept from seeing any: a tenant is not idle for that.
    for pids in ([7], []):
        with pytest.raises(Unavailable, match="hostPID"):
            ProcessPlaces(str(proc.folder)).look(pids)


def test_real_processes_come_and_go() -> None:
    if not ProcessStats().sees_host():
        pytest.skip("no host's processes in /proc: this runs in a PID namespace of its own")
    places = ProcessPlaces()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        found = {place.pid: place for place in places.look([os.getpid(), child.pid, 2**22 + 1])}
        assert set(found) == {os.getpid(), child.pid}
        assert found[child.pid].started_seconds >= found[os.getpid()].started_seconds
        child.kill()
        child.wait()
        assert [place.pid for place in places.look([child.pid])] == []
