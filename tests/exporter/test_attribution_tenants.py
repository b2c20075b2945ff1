"""Processes sit in the slice of their own container, and a stranger on a card is told and takes no slice over."""

import pytest

from exporter.attribution.attributor import attribute
from exporter.attribution.cgroup import CgroupPlace, Occupant
from exporter.attribution.records import FindingKind, ProcessOnCard
from tests.exporter.node import NOW, card_id, container_id, facts, hami, handed, known, odd, row, uid, view

SHARED = [f"{card_id(0)}::{number}" for number in range(2)]


def process(pid: int, *places: CgroupPlace, card: int = 0, is_mps_server: bool = False) -> ProcessOnCard:
    return ProcessOnCard(pid=pid, card=card_id(card), places=places, is_mps_server=is_mps_server)


def in_container(pod: int, container: int = 0) -> CgroupPlace:
    return CgroupPlace(pod_uid=uid(pod), container_id=container_id(10 * pod + container), occupant=Occupant.CONTAINER)


def two_pods_on_a_card(*processes: ProcessOnCard):
    return attribute(
        view(
            rows=[row("a", handed(SHARED[0])), row("b", handed(SHARED[1]))],
            pods=[facts("a", 1), facts("b", 2)],
            allocatable=SHARED,
            processes=processes,
        ),
        NOW,
    )


def test_each_of_those_who_share_a_card_has_its_own_processes() -> None:
    attribution = two_pods_on_a_card(
        process(12, in_container(1)),
        process(11, in_container(1)),
        process(21, in_container(2)),
        process(11, in_container(1)),
    )
    assert [(found.grant.pod, found.pids) for found in attribution.slices] == [("a", (11, 12)), ("b", (21,))]
    assert attribution.findings == ()


def test_containers_of_one_pod_on_one_card_are_told_apart_by_their_ids() -> None:
    pod = facts("a", 1, containers=["x", "y"], annotations=hami(f"{card_id(0)},1024,10", f"{card_id(0)},1024,10"))
    attribution = attribute(
        view(rows=None, pods=[pod], processes=(process(5, in_container(1, 1)), process(6, in_container(1, 0)))), NOW
    )
    assert [(found.grant.container, found.pids) for found in attribution.slices] == [("x", (6,)), ("y", (5,))]


def test_a_container_that_was_just_restarted_is_known_by_its_pod() -> None:
    new = CgroupPlace(pod_uid=uid(1), container_id="f" * 64, occupant=Occupant.CONTAINER)
    attribution = two_pods_on_a_card(process(7, new))
    assert [found.pids for found in attribution.slices] == [(7,), ()]


def test_a_pod_on_a_card_that_it_was_not_granted_is_a_stranger_there() -> None:
    attribution = attribute(
        view(
            cards=[known(0), known(1)],
            rows=[row("a", handed(card_id(0)))],
            pods=[facts("a", 1)],
            processes=(process(9, in_container(1), card=1),),
        ),
        NOW,
    )
    (finding,) = attribution.findings
    assert (finding.kind, finding.pod, finding.container, finding.card) == (
        FindingKind.STRANGER,
        "a",
        "main",
        card_id(1),
    )
    assert attribution.slices[0].pids == ()


def test_a_pod_that_asked_for_no_card_is_a_stranger_by_its_uid() -> None:
    attribution = two_pods_on_a_card(process(9, in_container(77)))
    (finding,) = attribution.findings
    assert (finding.kind, finding.namespace, finding.pod) == (FindingKind.STRANGER, "", uid(77))


def test_a_pod_that_the_api_has_not_named_yet_is_not_called_a_stranger_in_its_own_slice() -> None:
    attribution = attribute(
        view(rows=[row("new", handed(card_id(0)))], pods=[], processes=(process(9, in_container(5)),)), NOW
    )
    assert odd(attribution) == {FindingKind.UNKNOWN_POD}


def test_cgroups_that_a_tenant_made_inside_its_own_steal_no_slice() -> None:
    attribution = two_pods_on_a_card(process(9, in_container(1), in_container(2)))
    assert [found.pids for found in attribution.slices] == [(9,), ()]


def test_a_pod_without_cards_that_made_such_cgroups_stays_a_stranger() -> None:
    attribution = two_pods_on_a_card(process(9, in_container(77), in_container(2)))
    assert [found.pids for found in attribution.slices] == [(), ()]
    assert [finding.pod for finding in attribution.findings] == [uid(77)]


def test_a_node_that_runs_in_a_pod_itself_finds_its_own_pods() -> None:
    attribution = attribute(
        view(
            rows=[row("a", handed(card_id(0)))],
            pods=[facts("a", 1)],
            processes=(process(9, in_container(50), in_container(1)),),
            enclosing=frozenset({uid(50)}),
        ),
        NOW,
    )
    assert attribution.slices[0].pids == (9,)


def test_processes_of_the_node_and_of_the_runtime_are_nobodys() -> None:
    monitor = CgroupPlace(pod_uid=uid(1), container_id=None, occupant=Occupant.MONITOR)
    attribution = two_pods_on_a_card(process(1), process(2, monitor))
    assert [found.pids for found in attribution.slices] == [(), ()]
    assert attribution.findings == ()


@pytest.mark.parametrize("places", [(), (in_container(77),)], ids=["of the host", "of a daemon's pod"])
def test_mps_server_is_no_stranger_and_sits_in_nobodys_slice(places: tuple[CgroupPlace, ...]) -> None:
    server = process(9, *places, is_mps_server=True)
    attribution = two_pods_on_a_card(process(8, in_container(1)), server)
    assert [found.pids for found in attribution.slices] == [(8,), ()]
    assert (attribution.findings, attribution.mps_servers) == ((), (server,))


def test_mps_server_that_a_tenant_runs_for_itself_is_the_tenants() -> None:
    attribution = two_pods_on_a_card(process(9, in_container(1), is_mps_server=True))
    assert [found.pids for found in attribution.slices] == [(9,), ()]
    assert attribution.mps_servers == ()


def test_tenant_of_another_card_is_a_stranger_here_whatever_it_calls_itself() -> None:
    attribution = attribute(
        view(
            rows=[row("a", handed(card_id(0)))],
            pods=[facts("a", 1)],
            processes=(process(9, in_container(1), card=1, is_mps_server=True),),
        ),
        NOW,
    )
    assert odd(attribution) == {FindingKind.STRANGER}
    assert attribution.mps_servers == ()


def test_a_pod_in_a_virtual_machine_is_told_for_nobody_sees_inside() -> None:
    machine = CgroupPlace(pod_uid=uid(1), container_id=None, occupant=Occupant.VIRTUAL_MACHINE)
    attribution = two_pods_on_a_card(process(4, machine))
    assert odd(attribution) == {FindingKind.VIRTUAL_MACHINE}
    assert attribution.slices[0].pids == (4,)


def test_without_the_api_server_no_process_is_guessed_into_a_slice() -> None:
    attribution = attribute(
        view(rows=[row("a", handed(card_id(0)))], pods=None, processes=(process(9, in_container(1)),)), NOW
    )
    assert (attribution.slices[0].pids, attribution.findings) == ((), ())
