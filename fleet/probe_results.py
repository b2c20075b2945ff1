"""What a probe measured on one node, as a signed document, and what it makes of a backend's record.

Written by `gputide admin probe run` inside a container that the backend limits, carried as a file, believed where its
signature fits. A measurement replaces the table only downwards, for one container on one day can disprove a claim but
not prove it for every program; the one exception is spill to host memory, which is a fact once it happened, and what
of it stayed on the card meanwhile; that counts for a time, and what disproves a claim counts for ever. Format
`gputide.probe/v1`: JSON, keys as the records below, `signature` = HMAC-SHA256 over the rest in canonical form (RFC
2104; sorted keys, no blanks). Standard library only.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from datetime import datetime
from typing import Any

from fleet.capabilities.capability import (
    Capabilities,
    ComputeIsolation,
    FramebufferIsolation,
    Oversubscription,
    ProbedLending,
    Source,
)
from fleet.errors import Corrupt, Misconfigured, Refused
from fleet.units import format_time, parse_time

PROBE_SCHEMA = "gputide.probe/v1"
DOCUMENT_BYTES_MAX = 1 << 20
KEY_BYTES_MIN = 32
"""A key shorter than the digest weakens it (RFC 2104, section 3)."""

FRAMEBUFFER_OVER_RATIO_MAX = 1.02
"""Allocated / granted up to which a limit holds: contexts are counted differently from release to release."""
COMPUTE_OVER_RATIO_MAX = 1.5
"""Compute taken / granted beyond which nothing was limited: reactive limiters are some tens of percent off."""
_COMPUTE_SLACK = 0.05
LENT_RATIO_MIN = 0.25
"""Share of a card that must lie beyond it, or too little moves to see what comes back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One probe.

    Attributes:
        backend: name of the backend that limited the container.
        granted_framebuffer_bytes: what the container was granted; None where nobody said.
        is_refused: an allocation was refused before the card was full.
        managed_escapes: unified memory was given beyond the limit; None where it was not tried.
        spilled_bytes: given beyond the card's framebuffer; None where the card's size is not known.
        spill_bytes_per_second: how fast framebuffer moves, counted in both directions, while one half of what was
            allocated takes the place of the other.
        kept_bytes: what of the allocated stayed on the card while the rest worked, at most; None where it was not
            tried, or where nothing was seen to come back to the card.
        granted_compute_ratio: limit on compute, 0-1; None where there is none.
        compute_ratio: share of the time in which kernels ran, 0-1.
        graph_compute_ratio: the same for kernels launched as graphs.
        pause_seconds: until a pause through the region takes hold; None where it never does or was not tried.
        resume_seconds: until it works again.
        graph_pauses: launches of graphs stop as well.
        gate_holds: launches stop at the gate that the backend shuts for low priority; None where it was not tried, or
            where it stood open because the container's core limit was not forced.
    """

    backend: str
    node: str
    card: str
    measured_at: datetime
    granted_framebuffer_bytes: int | None
    allocated_framebuffer_bytes: int
    is_refused: bool
    managed_escapes: bool | None
    spilled_bytes: int | None
    spill_bytes_per_second: float | None
    granted_compute_ratio: float | None
    compute_ratio: float
    graph_compute_ratio: float | None
    pause_seconds: float | None
    resume_seconds: float | None
    graph_pauses: bool | None
    gate_holds: bool | None = None
    kept_bytes: int | None = None

    @property
    def lending(self) -> ProbedLending | None:
        """What it says of framebuffer that is lent; None where it says nothing.

        Where enough lay beyond the card and nothing was seen to come back, all of the card is kept.
        """
        card = self.allocated_framebuffer_bytes - (self.spilled_bytes or 0)
        if not self.spilled_bytes or card <= 0:
            return None
        if self.kept_bytes is None and self.spilled_bytes < LENT_RATIO_MIN * card:
            return None
        kept = card if self.kept_bytes is None else self.kept_bytes
        # Rounded so that no more is counted on than was seen.
        return ProbedLending(
            scaling_max=math.floor(self.allocated_framebuffer_bytes / card * 100) / 100,
            kept_ratio=math.ceil(kept / card * 1000) / 1000,
        )


def probe_text(result: ProbeResult, key: bytes) -> str:
    """A result as a signed document.

    Raises:
        Misconfigured: the key is too short.
    """
    content = {"schema": PROBE_SCHEMA, **asdict(result), "measured_at": format_time(result.measured_at)}
    return json.dumps({**content, "signature": _signature(content, key)}, indent=2, sort_keys=True) + "\n"


def parse_probe(text: str, key: bytes) -> ProbeResult:
    """Read a signed result.

    Raises:
        Corrupt: not the format.
        Refused: the signature does not fit: it was changed, or signed with another key.
        Misconfigured: the key is too short.
    """
    if len(text) > DOCUMENT_BYTES_MAX:
        raise Corrupt(f"cannot read a probe's result: {len(text)} characters, expected at most {DOCUMENT_BYTES_MAX}")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as exc:
        raise Corrupt(f"cannot read a probe's result: no JSON ({exc})") from exc
    if not isinstance(content, dict) or content.get("schema") != PROBE_SCHEMA:
        raise Corrupt(f"cannot read a probe's result: expected an object with schema {PROBE_SCHEMA}")
    signature = content.pop("signature", None)
    # Compared as bytes: as texts they may hold ASCII alone.
    told = signature.encode(errors="replace") if isinstance(signature, str) else b""
    if not hmac.compare_digest(told, _signature(content, key).encode()):
        raise Refused(
            "cannot believe a probe's result: its signature does not fit; it was changed, or probe.key_file differs"
        )
    return _result(content)


def as_measured(
    record: Capabilities, results: Iterable[ProbeResult], *, spills_since: datetime | None = None
) -> Capabilities:
    """A backend's record as far as measurements on its nodes bear it out; of several nodes the weakest counts.

    Args:
        results: results of any backend; others are left out.
        spills_since: spill that was seen before allows nothing, what was seen against it counts all the same; None
            where no result is too old.
    """
    own = [result for result in results if result.backend == record.backend]
    oversubscription = _oversubscription(record, own, spills_since)
    speeds = [result.spill_bytes_per_second for result in own if result.spill_bytes_per_second]
    loans = [result.lending for result in own if result.lending is not None]
    probed = None
    if loans and not record.lends_framebuffer:
        probed = ProbedLending(
            scaling_max=min(loan.scaling_max for loan in loans), kept_ratio=max(loan.kept_ratio for loan in loans)
        )
    for result in own:
        record = replace(
            record,
            framebuffer_isolation=_framebuffer(record, result),
            compute_isolation=_compute(record, result),
            core_policies=record.core_policies if not _escapes_compute(result) else (),
            oversubscription=oversubscription,
            probed_lending=probed,
            spill_bytes_per_second=min(speeds, default=None),
            source=(
                *record.source,
                Source(
                    where=f"measured on {result.node} at {format_time(result.measured_at)}",
                    facts=(
                        "framebuffer_isolation compute_isolation core_policies oversubscription probed_lending "
                        "spill_bytes_per_second"
                    ),
                ),
            ),
        )
    if probed is not None and record.can_lend:
        # What the table says of it holds where nothing was seen.
        record = replace(record, partly=tuple(entry for entry in record.partly if entry[0] != "oversubscribe"))
    return record


def _framebuffer(record: Capabilities, result: ProbeResult) -> FramebufferIsolation:
    granted = result.granted_framebuffer_bytes
    if granted is None or record.framebuffer_isolation is FramebufferIsolation.NONE:
        return record.framebuffer_isolation
    took_more = result.allocated_framebuffer_bytes > FRAMEBUFFER_OVER_RATIO_MAX * granted
    if took_more or result.managed_escapes:
        return FramebufferIsolation.ACCOUNTING
    return record.framebuffer_isolation


def _compute(record: Capabilities, result: ProbeResult) -> ComputeIsolation:
    return ComputeIsolation.NONE if _escapes_compute(result) else record.compute_isolation


def _escapes_compute(result: ProbeResult) -> bool:
    granted = result.granted_compute_ratio
    return granted is not None and result.compute_ratio > COMPUTE_OVER_RATIO_MAX * granted + _COMPUTE_SLACK


def _oversubscription(record: Capabilities, results: Sequence[ProbeResult], since: datetime | None) -> Oversubscription:
    """What all nodes bear out: one that spilled shows that it happens, one that refused part of a grant that it fails.

    A container that was granted less than the card and got all of it says nothing.
    """
    if any(_withholds(result) for result in results):
        lesser = (Oversubscription.NONE, Oversubscription.ACCOUNTING_ONLY)
        return record.oversubscription if record.oversubscription in lesser else Oversubscription.ACCOUNTING_ONLY
    fresh = [result for result in results if since is None or result.measured_at >= since]
    return Oversubscription.SPILL if any(result.spilled_bytes for result in fresh) else record.oversubscription


def _withholds(result: ProbeResult) -> bool:
    """Whether a container was refused framebuffer within its grant, and nothing of it lay beyond the card."""
    granted = result.granted_framebuffer_bytes
    is_short = granted is None or result.allocated_framebuffer_bytes * FRAMEBUFFER_OVER_RATIO_MAX < granted
    return result.spilled_bytes == 0 and result.is_refused and is_short


def _signature(content: Mapping[str, Any], key: bytes) -> str:
    if len(key) < KEY_BYTES_MIN:
        raise Misconfigured(
            f"cannot sign with a key of {len(key)} bytes: probe.key_file must hold {KEY_BYTES_MIN} or more"
        )
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, canonical.encode(), hashlib.sha256).hexdigest()


_KINDS: Mapping[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
    "float | None": (int, float, type(None)),
}


def _result(content: Mapping[str, Any]) -> ProbeResult:
    values: dict[str, Any] = {}
    for field in fields(ProbeResult):
        value = content.get(field.name)
        if field.name == "measured_at":
            try:
                values[field.name] = parse_time(str(value))
            except Misconfigured as exc:
                raise Corrupt(f"cannot read a probe's result: measured_at {str(value)[:80]!r} is no time") from exc
            continue
        kinds = _KINDS[str(field.type)]
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise Corrupt(f"cannot read a probe's result: {field.name} {str(value)[:80]!r}: expected {field.type}")
        # Bounds first: a whole number of hundreds of digits is no float.
        if isinstance(value, int | float) and not (0 <= value < 2**63 and math.isfinite(value)):
            raise Corrupt(f"cannot read a probe's result: {field.name} {str(value)[:80]}: expected a number from 0 on")
        values[field.name] = value
    return ProbeResult(**values)
