"""Results of probes: signed, read back, and held against a backend's record."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    FramebufferIsolation,
    Oversubscription,
    ProbedLending,
)
from fleet.capabilities.register import EFFECTIVE_GPU, HAMI, VGPU_MANAGER
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.probe_results import ProbeResult, as_measured, parse_probe, probe_text
from fleet.units import GIB

KEY = b"k" * 32
RESULT = ProbeResult(
    backend="hami",
    node="node-1",
    card="GPU-00112233-4455-6677-8899-aabbccddeeff",
    measured_at=datetime(2026, 3, 4, 12, tzinfo=UTC),
    granted_framebuffer_bytes=4 * GIB,
    allocated_framebuffer_bytes=4 * GIB,
    is_refused=True,
    managed_escapes=False,
    spilled_bytes=0,
    spill_bytes_per_second=None,
    granted_compute_ratio=0.3,
    compute_ratio=0.33,
    graph_compute_ratio=1.0,
    pause_seconds=0.8,
    resume_seconds=1.0,
    graph_pauses=False,
)


def test_result_comes_back_as_it_was_signed() -> None:
    assert parse_probe(probe_text(RESULT, KEY), KEY) == RESULT


def test_result_that_was_changed_or_signed_by_others_is_refused() -> None:
    text = probe_text(RESULT, KEY)
    with pytest.raises(Refused, match="signature"):
        parse_probe(text.replace("0.33", "0.30"), KEY)
    with pytest.raises(Refused, match="signature"):
        parse_probe(text, b"x" * 32)
    unsigned = {key: value for key, value in json.loads(text).items() if key != "signature"}
    with pytest.raises(Refused, match="signature"):
        parse_probe(json.dumps(unsigned), KEY)


@pytest.mark.parametrize("signature", ["\u00e9" * 64, "\ud800", 7, None, []])
def test_signature_that_is_no_digest_is_refused(signature: object) -> None:
    with pytest.raises(Refused, match="signature"):
        parse_probe(json.dumps({**json.loads(probe_text(RESULT, KEY)), "signature": signature}), KEY)


def test_short_key_is_refused() -> None:
    with pytest.raises(Misconfigured, match="32 or more"):
        probe_text(RESULT, b"short")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"schema": "gputide.probe/v2"}', "[" * 100_000])
def test_what_is_no_result_is_corrupt(text: str) -> None:
    with pytest.raises(Corrupt):
        parse_probe(text, KEY)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compute_ratio", "much"),
        ("compute_ratio", -1.0),
        ("compute_ratio", float("inf")),
        ("compute_ratio", True),
        ("is_refused", 1),
        ("node", None),
        ("spilled_bytes", 1.5),
        ("allocated_framebuffer_bytes", 2**70),
    ],
)
def test_signed_nonsense_is_corrupt(field: str, value: object) -> None:
    with pytest.raises(Corrupt, match=field):
        parse_probe(probe_text(replace(RESULT, **{field: value}), KEY), KEY)  # type: ignore[arg-type]


def test_record_that_is_borne_out_stays() -> None:
    measured = as_measured(HAMI, [RESULT])
    assert replace(measured, source=HAMI.source) == HAMI
    assert measured.source[-1].where == "measured on node-1 at 2026-03-04T12:00:00Z"


def test_other_backends_are_left_out() -> None:
    assert as_measured(VGPU_MANAGER, [RESULT]) is VGPU_MANAGER


def test_limit_that_does_not_hold_is_only_counted() -> None:
    took_more = replace(RESULT, allocated_framebuffer_bytes=5 * GIB)
    assert as_measured(HAMI, [took_more]).framebuffer_isolation is FramebufferIsolation.ACCOUNTING
    by_unified_memory = replace(RESULT, managed_escapes=True)
    assert as_measured(HAMI, [by_unified_memory]).framebuffer_isolation is FramebufferIsolation.ACCOUNTING


def test_compute_that_is_not_limited_is_no_isolation() -> None:
    measured = as_measured(HAMI, [replace(RESULT, compute_ratio=0.9)])
    assert (measured.compute_isolation, measured.core_policies) == (ComputeIsolation.NONE, ())


def test_weakest_node_counts() -> None:
    weak, fine = replace(RESULT, compute_ratio=0.9, node="node-2"), RESULT
    assert as_measured(HAMI, [weak, fine]).compute_isolation is ComputeIsolation.NONE


def test_spill_is_what_was_seen() -> None:
    spilled = replace(RESULT, spilled_bytes=GIB, spill_bytes_per_second=1e10)
    assert as_measured(HAMI, [spilled]).oversubscription is Oversubscription.SPILL
    assert not as_measured(HAMI, [spilled]).can_lend, "what stays on the card is not known"


LENT = replace(
    RESULT, allocated_framebuffer_bytes=64 * GIB, granted_framebuffer_bytes=64 * GIB, spilled_bytes=32 * GIB,
    kept_bytes=8 * GIB, spill_bytes_per_second=1e10,
)  # fmt: skip


@pytest.mark.parametrize("record", [HAMI, EFFECTIVE_GPU], ids=lambda record: record.backend)
def test_backend_that_was_seen_to_lend_is_no_longer_said_to_do_so_in_part(record: Capabilities) -> None:
    seen = replace(LENT, backend=record.backend)
    others = tuple(entry for entry in record.partly if entry[0] != "oversubscribe")
    assert others != record.partly
    assert as_measured(record, [seen]).partly == others
    for doubt in (replace(seen, kept_bytes=None), replace(seen, kept_bytes=None, spilled_bytes=0)):
        assert as_measured(record, [doubt]).partly == record.partly


def test_what_stayed_on_the_card_is_what_plans_may_count_on() -> None:
    measured = as_measured(HAMI, [LENT])
    assert measured.can_lend
    assert measured.probed_lending == ProbedLending(scaling_max=2.0, kept_ratio=0.25)
    worse = replace(
        LENT, node="node-2", kept_bytes=10 * GIB, allocated_framebuffer_bytes=48 * GIB, spilled_bytes=16 * GIB
    )
    weakest = as_measured(HAMI, [LENT, worse]).probed_lending
    assert weakest == ProbedLending(scaling_max=1.5, kept_ratio=0.313)


def test_node_on_which_nothing_came_back_vetoes() -> None:
    kept_all = replace(LENT, node="node-2", kept_bytes=None, spill_bytes_per_second=None)
    for results in ([LENT, kept_all], [kept_all, LENT]):
        assert not as_measured(HAMI, results).can_lend
    hardly = replace(kept_all, allocated_framebuffer_bytes=34 * GIB, spilled_bytes=2 * GIB)
    assert as_measured(HAMI, [LENT, hardly]).can_lend, "so little beyond the card says nothing of lending"


@pytest.mark.parametrize("kept_bytes", [8 * GIB, None])
def test_spill_counts_for_a_time_and_what_speaks_against_it_for_ever(kept_bytes: int | None) -> None:
    later = LENT.measured_at + timedelta(days=1)
    old = as_measured(HAMI, [replace(LENT, kept_bytes=kept_bytes)], spills_since=later)
    assert not old.can_lend
    assert old.oversubscription is HAMI.oversubscription
    assert old.may_have_lent, "pods that lend keep lending"
    fresh = replace(LENT, node="node-2", measured_at=later)
    both = as_measured(HAMI, [replace(LENT, kept_bytes=kept_bytes), fresh], spills_since=later)
    assert both.can_lend is (kept_bytes is not None)


def test_backend_whose_rule_is_known_keeps_it() -> None:
    assert as_measured(VGPU_MANAGER, [replace(LENT, backend="vgpu_manager")]).probed_lending is None


def test_spill_is_disproved_by_a_refusal_within_the_grant_alone() -> None:
    whole = replace(RESULT, backend="vgpu_manager")
    assert VGPU_MANAGER.can_lend
    assert as_measured(VGPU_MANAGER, [whole]).can_lend, "all of a grant below the card says nothing"
    short = replace(whole, node="node-2", granted_framebuffer_bytes=48 * GIB, allocated_framebuffer_bytes=32 * GIB)
    spilled = replace(whole, node="node-3", spilled_bytes=GIB, spill_bytes_per_second=4e9)
    for results in ([short, spilled], [spilled, short]):
        measured = as_measured(VGPU_MANAGER, results)
        assert measured.oversubscription is Oversubscription.ACCOUNTING_ONLY
        assert not measured.can_lend


def test_slowest_measured_spill_counts() -> None:
    results = [replace(RESULT, spilled_bytes=GIB, spill_bytes_per_second=rate) for rate in (8e9, 4e9, None)]
    assert as_measured(HAMI, results).spill_bytes_per_second == 4e9


def test_measurement_never_raises_what_the_table_says() -> None:
    weak = replace(HAMI, compute_isolation=ComputeIsolation.NONE, framebuffer_isolation=FramebufferIsolation.NONE)
    measured = as_measured(weak, [RESULT])
    assert measured.compute_isolation is ComputeIsolation.NONE
    assert measured.framebuffer_isolation is FramebufferIsolation.NONE
