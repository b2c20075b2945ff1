"""Whatever tenants write on their pods, and plugins into ids: no slice that can't be, and no other's slice is moved."""

from hypothesis import given
from hypothesis import strategies as st

from exporter.attribution.attributor import attribute
from exporter.attribution.cards import KnownInstance
from exporter.attribution.cgroup import parse_cgroup
from exporter.attribution.records import ProcessOnCard
from exporter.attribution.sources import OVERSUBSCRIPTION_MAX
from exporter.kubelet.pod_resources import ContainerRow, DeviceRow
from tests.exporter.node import CARD_BYTES, GIB, NODE, NOW, card_id, facts, handed, instance_id, known, row, uid, view

INSTANCE = KnownInstance(instance=instance_id(1), profile="1g.10gb", framebuffer_bytes=10 * GIB, gpu_instance=7)
NAMES = st.sampled_from([card_id(0), card_id(1), card_id(9), instance_id(1), instance_id(9), "nvidia0", "x"])
IDS = st.one_of(
    NAMES,
    st.builds(
        "{}{}".format, NAMES, st.sampled_from(["::0", "::1", "-3", "-memory-9", "-core-1", "/vgpu1", "/gi7", "/7/0"])
    ),
    st.text(max_size=20),
)  # fmt: skip
NUMBERS = st.sampled_from(["0", "1", "30", "1024", "99999999", "-1", "x", "999999999999", ""])
ALLOCATIONS = st.lists(
    st.lists(st.builds("{},NVIDIA,{},{}:".format, NAMES, NUMBERS, NUMBERS), max_size=2).map("".join), max_size=3
)
ANNOTATIONS = st.fixed_dictionaries(
    {"hami.io/vgpu-node": st.sampled_from([NODE, "other"])},
    optional={
        "hami.io/vgpu-devices-allocated": ALLOCATIONS.map(lambda parts: "".join(f"{part};" for part in parts)),
        "volcano.sh/vgpu-ids-new": ALLOCATIONS.map(";".join),
        "nvidia.com/real-allocated": st.builds("main[0_{}_{}_{}]".format, NAMES, NUMBERS, NUMBERS),
        "hami.io/vgpu-mig-allocations": st.text(max_size=30),
        "vke.volcengine.com/gpu-index-container-main": st.sampled_from(["0", "1,0", "7", "0,0", "x"]),
        "gpu-fraction": st.sampled_from(["0.5", "1", "2", "x"]),
        "gpu-memory": NUMBERS,
        "hami.io/dcu-devices-allocated": st.text(max_size=30),
    },
)
LABELS = st.dictionaries(
    st.sampled_from(["runai-gpu-group", "app", "pod-template-hash"]), st.sampled_from(["g", "", "../x"])
)


@given(
    st.lists(st.tuples(ANNOTATIONS, LABELS, st.lists(IDS, max_size=3)), min_size=1, max_size=3),
    st.lists(IDS, max_size=4),
    st.booleans(),
)
def test_every_slice_is_one_that_can_be(tenants, allocatable, is_api_there) -> None:
    rows = [
        row(
            f"p{number}",
            ContainerRow(container="main", devices=(DeviceRow(resource="nvidia.com/gpu", ids=tuple(ids)),)),
        )
        for number, (_, _, ids) in enumerate(tenants)
    ]
    pods = [
        facts(f"p{number}", number, annotations=annotations, labels=labels)
        for number, (annotations, labels, _) in enumerate(tenants)
    ]
    attribution = attribute(
        view(
            cards=[known(0, INSTANCE), known(1)],
            rows=rows,
            pods=pods if is_api_there else None,
            allocatable=allocatable,
        ),
        NOW,
    )
    names = [(found.grant.pod, found.grant.container, found.grant.card) for found in attribution.slices]
    assert len(set(names)) == len(names)
    for found in attribution.slices:
        grant = found.grant
        assert grant.card in (card_id(0), card_id(1))
        assert grant.container == "main"
        assert 0.0 <= grant.compute_granted_ratio <= 1.0
        assert 0 < grant.framebuffer_granted_bytes <= OVERSUBSCRIPTION_MAX * CARD_BYTES
        assert grant.framebuffer_bytes == CARD_BYTES
        assert found.sources
    for finding in attribution.findings:
        assert finding.detail.isprintable()
        assert len(finding.detail) < 600


@given(ANNOTATIONS, LABELS, st.text(alphabet="0:/podkubes.-_abcdef\n", max_size=80))
def test_what_one_tenant_writes_changes_nothing_of_anothers_slice(annotations, labels, cgroup) -> None:
    victim_rows = [row("victim", handed(card_id(1)))]
    alone = attribute(view(rows=victim_rows, pods=[facts("victim", 1)]), NOW)
    scope = f"0::/kubepods/pod{uid(2)}/{'a' * 64}/kubepods/pod{uid(1)}/{cgroup}"
    process = ProcessOnCard(pid=66, card=card_id(1), places=parse_cgroup(scope))
    together = attribute(
        view(
            rows=[*victim_rows, row("tenant", handed(card_id(0)))],
            pods=[facts("victim", 1), facts("tenant", 2, annotations=annotations, labels=labels)],
            processes=(process,),
        ),
        NOW,
    )
    assert [found for found in together.slices if found.grant.pod == "victim"] == list(alone.slices)
