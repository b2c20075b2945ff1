"""Both exporters say which server runs in a container, by the same rule, so that one slice is reported once."""

from __future__ import annotations

from exporter.allocation.manifest import Shared
from exporter.allocation.state import Allocation
from exporter.attribution.attributor import attribute
from exporter.attribution.pods import pod_facts
from exporter.cluster.reader import Watched
from fleet.inventory import Grant
from fleet.schema import GRANT_LABELS
from tests.exporter import node as seen_on_node
from tests.exporter.allocation_manifests import Manifest, container, grant, node, pod, rows, take

LIMITS = {"nvidia.com/gpu": "1"}


def serving(name: str = "main", **spec: object) -> Manifest:
    return container(name, LIMITS, image="registry/ours:1", command=["vllm", "serve"], args=["org/model"], **spec)


def told_by_the_cluster(*containers: Manifest, annotations: dict[str, str] | None = None, label: str = "server") -> str:
    allocation = Allocation("c1")
    take(allocation, Watched.NODES, node(cards=1))
    found = pod("p1", granted=grant(0) + ";", containers=list(containers), annotations=annotations)
    take(allocation, Watched.PODS, found)
    (labels,) = rows(allocation)["gputide_slice_info"]
    return labels[GRANT_LABELS.index(label)]


def granted_on_the_node(*containers: Manifest) -> Grant:
    manifest = seen_on_node.manifest("p1", 1)
    manifest["spec"]["containers"] = list(containers)
    facts = pod_facts(manifest, Shared())
    assert facts is not None
    handed = seen_on_node.row("p1", seen_on_node.handed(seen_on_node.card_id(1)))
    return seen_on_node.only(attribute(seen_on_node.view(rows=[handed], pods=[facts]), seen_on_node.NOW)).grant


def told_on_the_node(*containers: Manifest) -> str | None:
    return granted_on_the_node(*containers).server


def test_both_say_what_the_command_starts() -> None:
    assert told_by_the_cluster(serving()) == told_on_the_node(serving()) == "vllm"


def test_both_say_the_size_of_a_kv_cache_that_the_command_fixes() -> None:
    fixed = {**serving(), "args": ["org/model", "--kv-cache-memory-bytes=8G"]}
    assert told_by_the_cluster(fixed, label="kv_cache_pool_bytes") == str(8 * 2**30)
    assert granted_on_the_node(fixed).kv_cache_pool_bytes == 8 * 2**30


def test_a_container_speaks_for_itself_alone() -> None:
    beside = container("beside", {}, command=["jupyter", "lab"])
    assert told_by_the_cluster(serving(), beside) == told_on_the_node(serving(), beside) == "vllm"


def test_nothing_is_said_where_nothing_says_it() -> None:
    plain = container("main", LIMITS, image="registry/ours:1")
    assert (told_by_the_cluster(plain), told_on_the_node(plain)) == ("", None)


def test_an_annotation_says_it_where_the_command_hides_it() -> None:
    plain = container("main", LIMITS, image="registry/ours:1")
    assert told_by_the_cluster(plain, annotations={"gputide.io/server": "sglang"}) == "sglang"


def test_what_is_no_text_is_passed_over() -> None:
    odd = container("main", LIMITS, image=7, command=[None, 3, "vllm", {"a": 1}, "serve"], args="vllm serve")
    assert told_by_the_cluster(odd) == told_on_the_node(odd) == "vllm"


def labels_told(*args: str, annotations: dict[str, str] | None = None, beside: tuple[str, ...] = ()) -> str:
    others = [{**serving("beside"), "args": list(beside)}] if beside else []
    served = {**serving(), "args": list(args)}
    return told_by_the_cluster(served, *others, annotations=annotations, label="labels").replace(" ", "")


def test_the_cluster_says_which_model_a_server_serves_unless_somebody_wrote_it() -> None:
    assert '"gputide.io/model":"Llama-3.1-8B"' in labels_told("meta-llama/Llama-3.1-8B")
    both = labels_told("meta-llama/Llama-3.1-8B", annotations={"gputide.io/model": "ours"})
    assert '"gputide.io/model":"ours"' in both
    assert "gputide.io/model" not in labels_told("meta-llama/Llama-3.1-8B", beside=("Qwen/Qwen2.5-7B",))


def test_no_word_of_a_command_but_a_published_models_name_is_said() -> None:
    for word in ("https://user:TOKEN@host/Llama-3.1-8B", "org/TOKEN", "&&"):
        assert "gputide.io/model" not in labels_told(word)
