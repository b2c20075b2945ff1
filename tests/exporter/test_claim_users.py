"""A claim's region is told of a container only where no other can have written into it."""

import pytest

from exporter.attribution.claim_users import sole_users
from exporter.attribution.pods import PodFacts
from exporter.regions.tree import ContainerKey
from fleet.grammars.claims import HAMI_DRIVER, NVIDIA_DRIVER, ClaimAllocation, ClaimedDevice
from tests.exporter.node import NODE, facts, uid

CLAIM = uid(500)


def claim(*pods: int, driver: str = HAMI_DRIVER, claim_uid: str | None = CLAIM) -> ClaimAllocation:
    device = ClaimedDevice(driver=driver, pool=NODE, device="hami-gpu-0")
    reserved_for = tuple(uid(number) for number in pods)
    return ClaimAllocation(namespace="team", claim="gpu", devices=(device,), reserved_for=reserved_for, uid=claim_uid)


def pod(number: int, **more: object) -> PodFacts:
    return facts(f"p{number}", number, **{"claims": {"card": "gpu"}, "resources": {}, **more})


def test_claim_of_one_container_is_that_ones() -> None:
    assert sole_users([claim(1)], [pod(1), pod(2)]) == {CLAIM: ContainerKey(pod_uid=uid(1), container="main")}


@pytest.mark.parametrize(
    ("allocated", "pods"),
    [
        (claim(1), [pod(1, containers=["a", "b"])]),
        (claim(1, 2), [pod(1), pod(2)]),
        (claim(1, 2), [pod(1)]),
        (claim(1), []),
        (claim(1), [pod(1, namespace="others")]),
        (claim(1), [pod(1, claims={"card": "another"})]),
        (claim(1, driver=NVIDIA_DRIVER), [pod(1)]),
        (claim(1, claim_uid=None), [pod(1)]),
    ],
    ids=["two containers", "two pods", "a pod that is not known yet", "nobody known", "another namespace",
         "another claim", "another driver", "no uid"],
)  # fmt: skip
def test_claim_of_anybody_else_is_nobodys(allocated: ClaimAllocation, pods: list[PodFacts]) -> None:
    assert sole_users([allocated], pods) == {}


def test_pod_that_is_over_uses_nothing_any_more() -> None:
    found = sole_users([claim(1, 2)], [pod(1, phase="Succeeded"), pod(2)])
    assert found == {CLAIM: ContainerKey(pod_uid=uid(2), container="main")}
