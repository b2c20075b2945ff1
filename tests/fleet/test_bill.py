"""By which names a bill speaks of nodes."""

import pytest

from fleet.money.bill import NodeName, billed_names, provider_key, resource_key

AZURE = "/subscriptions/S/resourceGroups/RG/providers/Microsoft.Compute/virtualMachines/VM"


@pytest.mark.parametrize(
    ("provider_id", "resource_id"),
    [
        ("aws:///eu-west-1a/i-0abc", "i-0abc"),
        ("aws:///eu-west-1a/i-0abc", "arn:aws:ec2:eu-west-1:123456789012:instance/i-0abc"),
        ("gce://p/europe-west1-b/gke-1", "//compute.googleapis.com/projects/p/zones/europe-west1-b/instances/gke-1"),
        (f"azure://{AZURE}", AZURE.lower()),
        ("hcloud://4711", "4711"),
    ],
)  # fmt: skip
def test_a_nodes_id_and_the_bills_are_one_key(provider_id: str, resource_id: str) -> None:
    assert provider_key(provider_id) == resource_key(resource_id)


def test_name_of_two_nodes_stands_for_neither_and_a_mapped_id_for_its_node() -> None:
    one, two, three = NodeName("a", "n"), NodeName("b", "n"), NodeName("b", "m")
    names = billed_names({one: [], two: [], three: ["aws:///z/i-3"]}, [(two, "i-2")])
    assert names.ambiguous == ("n",)
    assert names.node_of("x", "n") is None
    assert names.node_of("I-2", "n") == two
    assert names.node_of("i-3", None) == three
    assert names.node_of("x", "m") is None, "a node with an id is known by it"
