"""Capability records claim no more than their backend enforces."""

from dataclasses import MISSING, fields

import pytest

from fleet.capabilities.register import (
    CAPABILITIES,
    HAMI,
    MIG,
    OLDER,
    ONLY_READ,
    Capabilities,
    ComputeIsolation,
    CorePolicy,
    FramebufferIsolation,
    Oversubscription,
    capabilities_of,
)
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings


def test_names_are_unique() -> None:
    records = (*CAPABILITIES, *ONLY_READ)
    assert len({record.backend for record in records}) == len(records)


NO_CLAIMS = {"backend", "source", "accepted_by", "recorded", "images", "known_to", "announced"}
"""What names a record and says where it comes from."""


@pytest.mark.parametrize(
    "record", [*CAPABILITIES, *OLDER, *ONLY_READ], ids=lambda record: f"{record.backend}-{record.since}"
)
def test_every_fact_that_a_record_claims_has_a_source(record: Capabilities) -> None:
    claimed = {
        field.name
        for field in fields(record)
        if field.name not in NO_CLAIMS and (field.default is MISSING or getattr(record, field.name) != field.default)
    }
    read = {name for source in record.source for name in source.facts.split()}
    assert claimed - read == set()
    assert read <= {field.name for field in fields(record)}, "no source is named for what is no fact"


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


def test_a_backend_that_is_only_read_is_not_planned_with() -> None:
    with pytest.raises(Misconfigured, match=r"'tensor_fusion': its pods are read, and nothing is rendered for it"):
        capabilities_of("tensor_fusion")


def test_an_unknown_backend_names_the_known_ones() -> None:
    with pytest.raises(Misconfigured, match=r"'hamy': unknown; set enforcer\.backend to one of whole_cards, hami"):
        capabilities_of("hamy")
