"""What Ascend's templates give of a chip is known, whether the pod says which template it is or its size alone does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.errors import Corrupt
from fleet.grammars.ascend import ASCEND_CHIPS, MODE_ANNOTATION, AscendGrant, ascend_annotation, parse_ascend_grants
from fleet.grammars.vendors import VendorGrant, parse_vendor_allocations
from tests.fleet.written_annotations import render_ascend_grants

B3 = "Ascend910B3"
ALLOCATED = f"hami.io/{B3}-devices-allocated"
OWN = ascend_annotation(B3)


def granted(text: str, **annotations: str) -> list[VendorGrant]:
    (allocation,) = parse_vendor_allocations({ALLOCATED: text, **annotations})
    return [grant for grants in allocation.containers for grant in grants]


def test_no_ascend_template_is_larger_than_its_chip() -> None:
    for chip in ASCEND_CHIPS:
        assert len({template.framebuffer_mib for template in chip.templates}) == len(chip.templates)
        for template in chip.templates:
            assert template.framebuffer_mib <= chip.framebuffer_mib
            assert template.ai_cores <= chip.ai_cores


def test_a_templates_share_is_that_of_its_cores_though_the_allocation_says_none() -> None:
    own = '[{"UUID":"npu-0","temp":"vir05_1c_16g"},{"UUID":"npu-1","temp":"vir10_3c_32g"}]'
    first, second = granted("npu-0,Ascend910B3,16384,0:;npu-1,Ascend910B3,32768,0:;", **{OWN: own})
    assert (first.framebuffer_mib, first.compute_ratio) == (16384, 0.25)
    assert (second.framebuffer_mib, second.compute_ratio) == (32768, 0.5)


def test_two_templates_on_one_chip_are_told_apart_by_their_order() -> None:
    own = '[{"UUID":"npu-0","temp":"vir10_3c_32g"},{"UUID":"npu-0","temp":"vir05_1c_16g"}]'
    found = granted("npu-0,Ascend910B3,32768,0:;npu-0,Ascend910B3,16384,0:;", **{OWN: own})
    assert [grant.compute_ratio for grant in found] == [0.5, 0.25]


@pytest.mark.parametrize(("mib", "ratio"), [(16384, 0.25), (32768, 0.5), (65536, None), (20000, None)], ids=str)
def test_without_ascends_own_annotation_the_size_tells_the_template(mib: int, ratio: float | None) -> None:
    assert [grant.compute_ratio for grant in granted(f"npu-0,Ascend910B3,{mib},0:;")] == [ratio]


def test_a_soft_split_is_no_template_whatever_its_size() -> None:
    soft = {MODE_ANNOTATION: "hami-core"}
    own = {OWN: '[{"UUID":"npu-0","memory":16384,"core":40}]'}
    assert [grant.compute_ratio for grant in granted("npu-0,Ascend910B3,16384,40:;", **soft, **own)] == [0.4]
    assert [grant.compute_ratio for grant in granted("npu-0,Ascend910B3,16384,0:;", **soft)] == [None]


def test_a_template_that_the_chart_does_not_know_is_no_share_of_anything() -> None:
    own = '[{"UUID":"npu-0","temp":"vir07_9c_99g"}]'
    assert [grant.compute_ratio for grant in granted("npu-0,Ascend910B3,16384,0:;", **{OWN: own})] == [None]


def test_whole_chips_have_no_limit() -> None:
    own = '[{"UUID":"npu-0"},{"UUID":"npu-1"}]'
    found = granted("npu-0,Ascend910B3,65536,0:npu-1,Ascend910B3,65536,0:;", **{OWN: own})
    assert [(grant.framebuffer_mib, grant.compute_ratio) for grant in found] == [(65536, None)] * 2


@given(
    st.lists(
        st.builds(
            AscendGrant,
            card=st.from_regex(r"[A-Za-z0-9._/-]{1,40}", fullmatch=True),
            template=st.none() | st.sampled_from(["vir05_1c_16g", "vir04"]),
            framebuffer_mib=st.integers(0, 10**6),
            core_percent=st.integers(0, 100),
        ),
        max_size=3,
    )
)
def test_ascends_own_annotation_is_the_same_after_writing_and_reading(grants: list[AscendGrant]) -> None:
    assert parse_ascend_grants(render_ascend_grants(grants), OWN) == tuple(grants)


@given(st.text(max_size=60))
def test_any_text_is_read_or_corrupt(text: str) -> None:
    try:
        granted("npu-0,Ascend910B3,16384,0:;", **{OWN: text})
    except Corrupt as error:
        assert len(str(error)) < 400  # noqa: PT017 - a message that a hostile text can't blow up
