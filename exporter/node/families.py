"""What a node's reader says beyond its measures: how its sources fare, how sure it is of grants, and what is odd.

Called by `exporter.node.reader`; the catalogue of metrics is made from `FAMILIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from exporter.attribution.records import AttributedSlice, Attribution, FindingKind
from exporter.families import CataloguedFamily, Family, KeptLabels, counter, gauge, info
from exporter.nvml.figures import MigFigures
from fleet.schema import SLICE_IDENTITY
from fleet.usage import SliceKey

_NODE_LABELS = ("cluster", "node")

_SOURCE_AGE = gauge(
    "gputide_node_source_age_seconds",
    "Seconds since a source of this node's figures last answered; absent for one that never did.",
    (*_NODE_LABELS, "source"),
)
_SOURCE_FAILURES = counter(
    "gputide_node_source_failures_total",
    "Times that a source of this node's figures could not be asked.",
    (*_NODE_LABELS, "source"),
)
_PROCESSES = gauge("gputide_slice_processes", "Processes of a slice that the driver lists on its card.", SLICE_IDENTITY)
_CERTAIN = gauge(
    "gputide_slice_certain",
    "1 where card and amount of a grant are known, 0 where either is the best guess of its only source.",
    (*SLICE_IDENTITY, "source"),
)
_INSTANCE = info(
    "gputide_slice_mig_info",
    "A MIG instance that a container was granted; always 1.",
    (*SLICE_IDENTITY, "mig", "mig_profile", "gpu_instance", "compute_instance"),
)
_FINDINGS = gauge(
    "gputide_attribution_findings",
    "What is odd about who was granted what on this node, by kind.",
    (*_NODE_LABELS, "kind"),
)
_FINDING = info(
    "gputide_attribution_finding_info",
    "A pod or card about which something is odd; always 1.",
    (*_NODE_LABELS, "kind", "namespace", "pod", "container", "card"),
)
FAMILIES: tuple[CataloguedFamily, ...] = (
    _SOURCE_AGE, _SOURCE_FAILURES, _PROCESSES, _CERTAIN, _INSTANCE, _FINDINGS, _FINDING,
)  # fmt: skip
"""Every family that is made here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceState:
    """How one source fares.

    Attributes:
        source: `kubelet`, `hami_regions`, `processes` or `api_server`.
        age_seconds: since it last answered; None where it never did.
        failures: times that it could not be asked.
    """

    source: str
    age_seconds: float | None
    failures: int


class NodeFamilies:
    """Names the figures of one node."""

    def __init__(self, *, cluster: str, node: str) -> None:
        self._place = (cluster, node)
        self._kept = KeptLabels()

    def of_slices(
        self, keys: tuple[SliceKey, ...], slices: tuple[AttributedSlice, ...], *, are_processes_seen: bool
    ) -> tuple[Family, ...]:
        """How many processes each slice has, and how sure its grant is.

        Args:
            are_processes_seen: processes can be assigned to containers; otherwise none is counted.
        """
        rows = [(_labels(key), found) for key, found in zip(keys, slices, strict=True)]
        counts = [(labels, float(len(found.pids)) if are_processes_seen else np.nan) for labels, found in rows]
        certain = [
            ((*labels, found.sources[0].value), float(found.is_certain and found.is_amount_known))
            for labels, found in rows
        ]
        return self._kept.family(_PROCESSES, counts), self._kept.family(_CERTAIN, certain)

    def of_instances(
        self, keys: tuple[SliceKey, ...], slices: tuple[AttributedSlice, ...], migs: Iterable[MigFigures]
    ) -> tuple[Family, ...]:
        """Which MIG instances each slice consists of; none where no slice has any."""
        known = {mig.mig: mig for mig in migs}
        rows = [
            ((*_labels(key), mig.mig, mig.mig_profile, str(mig.gpu_instance), str(mig.compute_instance)), 1.0)
            for key, found in zip(keys, slices, strict=True)
            for mig in (known[instance] for instance in found.instances if instance in known)
        ]
        return (self._kept.family(_INSTANCE, rows),) if rows else ()

    def of_findings(self, attribution: Attribution) -> tuple[Family, ...]:
        """What is odd: how often by kind, and about whom."""
        counts = Counter(odd.kind for odd in attribution.findings)
        about = dict.fromkeys(
            (*self._place, odd.kind.value, odd.namespace, odd.pod, odd.container, odd.card)
            for odd in attribution.findings
        )
        return (
            self._kept.family(_FINDINGS, [((*self._place, kind.value), float(counts[kind])) for kind in FindingKind]),
            self._kept.family(_FINDING, [(labels, 1.0) for labels in about]),
        )

    def of_sources(self, states: tuple[SourceState, ...]) -> tuple[Family, ...]:
        """How the sources fare."""
        rows = [((*self._place, state.source), state) for state in states]
        ages = [(labels, np.nan if state.age_seconds is None else state.age_seconds) for labels, state in rows]
        failures = [(labels, float(state.failures)) for labels, state in rows]
        return self._kept.family(_SOURCE_AGE, ages), self._kept.family(_SOURCE_FAILURES, failures)


def _labels(key: SliceKey) -> tuple[str, ...]:
    return tuple(str(getattr(key, name)) for name in SLICE_IDENTITY)
