"""MIG devices come and go, and have figures of their own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.nvml.figures import Activity, MigFigures
from exporter.nvml.library import NvmlLibrary
from exporter.nvml.mig import profile_of
from fleet.units import GIB
from tests.exporter.nvml.drivers import card_reader
from tests.exporter.nvml.standin import A100, H100, StandInWorld


def instance(world: StandInWorld, number: int, **values: object) -> None:
    fields = {"dev": 0, "uuid": f"MIG-{number}", "gi": number, "ci": 0, "total": 10 * GIB, "used": GIB, "sm": 16}
    world.line("mig", **{**fields, **values})


def by_name(figures: tuple[MigFigures, ...]) -> dict[str, MigFigures]:
    return {one.mig: one for one in figures}


def test_instances_have_profile_size_and_framebuffer(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**A100, mig=1)
    instance(world, 1, gslices=3, cslices=3, total=20 * GIB, used=2 * GIB, sm=42)
    instance(world, 5, total=5 * GIB)
    world.write()
    found = card_reader(library).read().migs
    assert [(one.mig, one.mig_profile, one.gpu_instance) for one in found] == [
        ("MIG-1", "3g.20gb", 1),
        ("MIG-5", "1g.5gb", 5),
    ]
    assert found[0].sm_count == 42
    assert found[0].framebuffer is not None
    assert (found[0].framebuffer.total_bytes, found[0].framebuffer.used_bytes) == (20 * GIB, 2 * GIB)


def test_instances_of_a_hopper_card_have_activity_of_their_own(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**H100, mig=1)
    instance(world, 1, gpm={2: 80, 10: 30})
    instance(world, 2, gpm={2: 0, 10: 0})
    world.write()
    reader = card_reader(library)
    reader.read()
    reader.sample()
    found = by_name(reader.read().migs)
    assert found["MIG-1"].activities[Activity.SM_ACTIVE].mean == pytest.approx(0.8)
    assert found["MIG-2"].activities[Activity.SM_ACTIVE].mean == 0.0
    assert found["MIG-1"].activities[Activity.SM_ACTIVE].samples == 2


def test_instances_of_an_older_card_have_no_activity(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**A100, mig=1)
    instance(world, 1)
    world.write()
    reader = card_reader(library)
    reader.read()
    assert reader.read().migs[0].activities == {}


def test_card_that_is_cut_anew_shows_its_new_instances_only(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**H100, mig=1)
    instance(world, 1, gpm={2: 80})
    world.write()
    reader = card_reader(library)
    reader.read()
    world.without("mig")
    instance(world, 7, gpm={2: 10})
    world.write()
    assert by_name(reader.read().migs).keys() == {"MIG-7"}
    reader.sample()
    assert reader.read().migs[0].activities[Activity.SM_ACTIVE].mean == pytest.approx(0.1)


def test_instance_that_takes_anothers_number_has_none_of_its_figures(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**H100, mig=1)
    instance(world, 1, uuid="MIG-before", gpm={2: 80})
    world.write()
    reader = card_reader(library)
    reader.read()
    reader.sample()
    world.without("mig")
    instance(world, 1, uuid="MIG-after", gpm={2: 10})
    world.write()
    (found,) = reader.read().migs
    assert (found.mig, found.activities) == ("MIG-after", {})
    (found,) = reader.read().migs
    assert found.activities[Activity.SM_ACTIVE].peak == pytest.approx(0.1)


def test_card_whose_mig_is_switched_off_has_no_instances(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**H100, mig=1)
    instance(world, 1, gpm={2: 80})
    world.write()
    reader = card_reader(library)
    assert len(reader.read().migs) == 1
    world.without("mig").card(0, mig=0).write()
    found = reader.read()
    assert (found.mig_mode, found.migs) == (False, ())


def test_compute_instances_share_the_figures_of_their_gpu_instance(world: StandInWorld, library: NvmlLibrary) -> None:
    world.card(**H100, mig=1)
    instance(world, 1, uuid="MIG-a", ci=0, gslices=2, cslices=1, gpm={2: 60})
    instance(world, 1, uuid="MIG-b", ci=1, gslices=2, cslices=1, gpm={2: 60})
    world.write()
    reader = card_reader(library)
    reader.read()
    found = reader.read().migs
    assert [(one.mig, one.compute_instance) for one in found] == [("MIG-a", 0), ("MIG-b", 1)]
    assert found[0].activities == found[1].activities != {}


def test_profile_of_a_part_of_an_instance_names_the_part() -> None:
    assert profile_of("NVIDIA A100-SXM4-40GB MIG 1c.2g.10gb", None) == "1c.2g.10gb"
    assert profile_of("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", None) == "1g.10gb+me"
    assert profile_of("NVIDIA RTX PRO 6000 Blackwell MIG 1g.24gb-me", None) == "1g.24gb-me"


@given(st.text(max_size=60))
def test_profile_is_short_and_plain_whatever_the_name(name: str) -> None:
    profile = profile_of(name, None)
    assert profile == "unknown" or name.endswith(f"MIG {profile}")
    assert len(profile) <= 32
    assert profile.isascii()
