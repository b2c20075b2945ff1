"""Capability records claim no more than their backend enforces."""

import pytest

from fleet.capabilities.register import (
    CAPABILITIES,
    HAMI,
    MIG,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Oversubscription,
    capabilities_of,
)
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings


def test_names_are_unique_and_every_fact_has_a_source() -> None:
    assert len({record.backend for record in CAPABILITIES}) == len(CAPABILITIES)
    assert all(record.source for record in CAPABILITIES)


def test_hami_intercepts_and_spills_nothing() -> None:
    assert HAMI.framebuffer_isolation is FramebufferIsolation.INTERCEPTED
    assert HAMI.oversubscription is Oversubscription.ACCOUNTING_ONLY
    assert not HAMI.fault_isolation


def test_mig_walls_off_and_lends_nothing() -> None:
    assert (MIG.framebuffer_isolation, MIG.compute_isolation) == (FramebufferIsolation.HARDWARE, ComputeIsolation.HARD)
    assert MIG.core_policies == (CorePolicy.HARD,)
    assert MIG.oversubscription is Oversubscription.NONE
    assert MIG.fault_isolation
    assert MIG.cuts_by_mig
    assert MIG.framebuffer_step_bytes is None, "profiles, no steps"
    assert [record.backend for record in CAPABILITIES if record.cuts_by_mig] == ["mig", "dra_mig"]


def test_the_default_backend_exists() -> None:
    assert capabilities_of(Settings().enforcer.backend) is HAMI


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(Misconfigured, match=r"'hamy': unknown; set enforcer\.backend to one of whole_cards, hami"):
        capabilities_of("hamy")
