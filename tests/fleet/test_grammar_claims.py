"""Claims and slices of dynamic resource allocation are read as the API serves them, in every version of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars.claims import ClaimedDevice, PublishedDevice, parse_claim, parse_published, parse_taint_rule

CARD = "GPU-0fc3eda5-e98b-a25b-5b0d-cf5c855d1448"
INSTANCE = "MIG-6a96bd8b-0c4e-5f1c-8e3a-0d6f2b7c9a11"


def claim(*results, reserved_for=()):
    return {
        "metadata": {"namespace": "team", "name": "half"},
        "status": {
            "allocation": {"devices": {"results": list(results)}},
            "reservedFor": [{"resource": "pods", "name": f"p{uid}", "uid": uid} for uid in reserved_for],
        },
    }


def result(**more):
    return {"request": "gpu", "driver": "gpu.nvidia.com", "pool": "node-1", "device": "gpu-0", **more}


def test_a_claim_says_which_device_of_which_pool_and_for_which_pods() -> None:
    allocation = parse_claim(claim(result(), reserved_for=["b", "a"]))
    assert allocation is not None
    (given,) = allocation.devices
    assert given == ClaimedDevice(driver="gpu.nvidia.com", pool="node-1", device="gpu-0", request="gpu")
    assert (allocation.namespace, allocation.claim, allocation.reserved_for) == ("team", "half", ("a", "b"))


def test_a_claims_uid_is_kept_where_it_is_told_and_checked() -> None:
    named = claim(result())
    assert (found := parse_claim(named)) is not None
    assert found.uid is None
    for uid, kept in (("0fc3eda5-e98b-a25b-5b0d-cf5c855d1448", True), ("../etc", False), (7, False)):
        named["metadata"]["uid"] = uid
        if kept:
            assert (found := parse_claim(named)) is not None
            assert found.uid == uid
        else:
            with pytest.raises(Corrupt, match="uid"):
                parse_claim(named)


def test_what_a_shared_device_gives_is_read_with_its_units() -> None:
    allocation = parse_claim(
        claim(result(shareID="s1", consumedCapacity={"memory": "10Gi", "gpu.example.com/cores": "30", "other": "x"}))
    )
    assert allocation is not None
    (device,) = allocation.devices
    assert (device.share_id, device.framebuffer_bytes, device.core_percent) == ("s1", 10 * 2**30, 30.0)


def test_a_claim_that_is_not_allocated_gives_nothing() -> None:
    assert parse_claim({"metadata": {"namespace": "a", "name": "b"}}) is None
    assert parse_claim({"metadata": {"namespace": "a", "name": "b"}, "status": {}}) is None


@pytest.mark.parametrize("is_basic", [True, False])
def test_a_slice_says_which_card_a_device_is_in_both_layouts(is_basic: bool) -> None:
    known = {
        "attributes": {"uuid": {"string": CARD}, "gpu.nvidia.com/productName": {"string": "NVIDIA H100"}},
        "capacity": {"memory": {"value": "80Gi"}},
    }
    device = {"name": "gpu-0", **({"basic": known} if is_basic else known)}
    (published,) = parse_published({"spec": {"driver": "gpu.nvidia.com", "pool": {"name": "n"}, "devices": [device]}})
    assert (published.uuid, published.product, published.framebuffer_bytes) == (CARD, "NVIDIA H100", 80 * 2**30)


def test_a_published_mig_instance_names_its_card_and_profile() -> None:
    attributes = {"uuid": INSTANCE, "parentUUID": CARD, "profile": "1g.10gb"}
    device = {"name": "mig-1", "attributes": {key: {"string": value} for key, value in attributes.items()}}
    (published,) = parse_published({"spec": {"driver": "d", "pool": {"name": "n"}, "devices": [device]}})
    assert (published.uuid, published.parent, published.profile) == (INSTANCE, CARD, "1g.10gb")


@pytest.mark.parametrize("is_basic", [True, False])
def test_a_driver_says_which_of_its_devices_is_closed(is_basic: bool) -> None:
    evicts = {"key": "health", "value": "xid-79", "effect": "NoExecute", "timeAdded": "2026-11-01T00:00:00Z"}
    known = {"taints": [evicts, {"key": "degraded", "effect": "None"}]}
    device = {"name": "gpu-0", **({"basic": known} if is_basic else known)}
    (published,) = parse_published({"spec": {"driver": "d", "pool": {"name": "n"}, "devices": [device]}})
    assert [(str(taint), taint.closes) for taint in published.taints] == [
        ("health=xid-79:NoExecute of driver d", True),
        ("degraded=:None of driver d", False),
    ]


def test_rule_of_an_old_version_counts_for_all_that_it_may_mean() -> None:
    rule = parse_taint_rule(
        {"metadata": {"name": "r"}, "spec": {"deviceSelector": {"deviceClassName": "gpu", "driver": "d"},
                                             "taint": {"key": "k", "effect": "NoSchedule"}}}
    )  # fmt: skip
    assert rule is not None
    cards = [PublishedDevice(driver=driver, pool="n", device="gpu-0") for driver in "de"]
    assert [str(taint) for card in cards for taint in card.tainted([rule])] == ["k=:NoSchedule of DeviceTaintRule r"]


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ({"deviceClassName": "rdma.example.com"}, []),
        ({"deviceClassName": "gpu.nvidia.com"}, ["DeviceTaintRule r"]),
        ({"deviceClassName": "mig.nvidia.com"}, ["DeviceTaintRule r"]),
        ({"deviceClassName": "hami-core-gpu.project-hami.io"}, []),
        ({"selectors": [{"cel": {"expression": "true"}}]}, ["DeviceTaintRule r (selector not evaluated)"]),
    ],
)
def test_rule_by_class_is_of_the_classs_driver_and_one_by_cel_says_what_nobody_evaluated(selector, told) -> None:
    rule = parse_taint_rule(
        {"metadata": {"name": "r"}, "spec": {"deviceSelector": selector, "taint": {"key": "k", "effect": "NoSchedule"}}}
    )
    card = PublishedDevice(driver="gpu.nvidia.com", pool="n", device="gpu-0")
    assert [taint.by for taint in card.tainted([] if rule is None else [rule])] == told


def test_a_uuid_that_is_none_is_left_out() -> None:
    device = {"name": "gpu-0", "attributes": {"uuid": {"string": "\x1b[31m"}, "parentUUID": {"int": 4}}}
    (published,) = parse_published({"spec": {"driver": "d", "pool": {"name": "n"}, "devices": [device]}})
    assert (published.uuid, published.parent) == (None, None)


@pytest.mark.parametrize(
    "manifest",
    [
        {},
        {"metadata": 3},
        claim("text"),
        claim(result(device="")),
        claim(result(driver="a\nb")),
        claim(result(pool="x" * 300)),
        claim(result(consumedCapacity={"memory": "much"})),
        claim(result(consumedCapacity={"memory": "-1"})),
        claim(result(consumedCapacity={"memory": "1e300"})),
        claim(*[result()] * 2000),
    ],
)
def test_a_claim_that_is_garbage_is_corrupt(manifest) -> None:
    with pytest.raises(Corrupt):
        parse_claim(manifest)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["metadata", "status", "allocation", "devices", "results", "reservedFor", "spec", "pool", "name",
                 "namespace", "driver", "device", "consumedCapacity", "memory", "attributes", "uuid", "basic",
                 "capacity", "taints", "taint", "key", "effect", "deviceSelector"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(["metadata", "status", "spec"]), JSON, max_size=3))
def test_any_manifest_is_read_or_corrupt(manifest) -> None:
    for read in (parse_claim, parse_published, parse_taint_rule):
        try:
            read(manifest)
        except Corrupt as error:
            assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up
