"""Every record has a backend that renders for it, and the other way round."""

from enforcer.backends.register import BACKENDS
from fleet.capabilities.register import CAPABILITIES
from fleet.decisions import RecommendationKind
from tests.enforcer.builders import NOW

EVERYWHERE = (
    RecommendationKind.RECLAIM,
    RecommendationKind.TIDE,
    RecommendationKind.REHOME,
    RecommendationKind.FEWER_CARDS,
)
RENDERED = {
    "hami": ("slice", "oversubscribe", "colocate", "offpeak_pair", "mig"),
    "effectivegpu": ("slice", "colocate"),
    "volcano": ("slice", "colocate"),
    "mgpu": ("colocate",),
    "vgpu_manager": ("slice", "oversubscribe"),
    "kai": ("slice",),
    "kai_nvfractions": ("slice",),
    "nvidia_time_slicing": ("slice",),
    "nvidia_mps": ("slice",),
    "mig": ("mig",),
    "dra_mig": ("mig",),
    "dra_shared": ("slice",),
    "dra_consumable": ("slice",),
}


def test_names_and_order_are_those_of_the_records() -> None:
    assert [name for name, _ in BACKENDS] == [record.backend for record in CAPABILITIES]
    assert [make(NOW).capabilities for _, make in BACKENDS] == list(CAPABILITIES)


def test_what_needs_no_sharing_is_rendered_by_all() -> None:
    for record in CAPABILITIES:
        assert not {kind.value for kind in EVERYWHERE} & set(dict(record.refuses)), record.backend


def test_cells_of_the_matrix_are_rendered_and_not_refused() -> None:
    refused = {record.backend: set(dict(record.refuses)) for record in CAPABILITIES}
    assert {name: set(kinds) & refused[name] for name, kinds in RENDERED.items()} == {name: set() for name in RENDERED}


def test_words_of_refusals_are_kinds_of_advice() -> None:
    kinds = {kind.value for kind in RecommendationKind}
    for record in CAPABILITIES:
        assert {kind for kind, _ in (*record.refuses, *record.partly)} <= kinds, record.backend
        assert not set(dict(record.refuses)) & set(dict(record.partly)), record.backend
