"""What a node's reader says beyond its measures: how its sources fare, how sure it is of grants, and what is odd.

Called by `exporter.reader_node`; the catalogue of metrics is made from `FAMILIES`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from exporter.attribution.records import AttributedSlice, Attribution, FindingKind
from exporter.families import CataloguedFamily, Family, counter, gauge, info
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
    _SOURCE_AGE,
    _SOURCE_FAILURES,
    _PROCESSES,
    _CERTAIN,
    _INSTANCE,
    _FINDINGS,
    _FINDING,
)
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
        self._keys: tuple[SliceKey, ...] = ()
        self._labels: tuple[tuple[str, ...], ...] = ()
        self._instance_labels: tuple[tuple[str, ...], ...] = ()

    def of_slices(
        self, keys: tuple[SliceKey, ...], slices: tuple[AttributedSlice, ...], *, are_processes_seen: bool
    ) -> tuple[Family, ...]:
        """How many processes each slice has, and how sure its grant is.

        Args:
            are_processes_seen: processes can be assigned to containers; otherwise none is counted.
        """
        if keys != self._keys:
            self._keys = keys
            self._labels = tuple(tuple(str(getattr(key, name)) for name in SLICE_IDENTITY) for key in keys)
        counts = [float(len(found.pids)) if are_processes_seen else np.nan for found in slices]
        sources = (found.sources[0].value for found in slices)
        return (
            _PROCESSES.of(self._labels, np.array(counts, np.float64)),
            _CERTAIN.of(
                tuple((*labels, source) for labels, source in zip(self._labels, sources, strict=True)),
                np.array([found.is_certain and found.is_amount_known for found in slices], np.float64),
            ),
        )

    def of_instances(
        self, keys: tuple[SliceKey, ...], slices: tuple[AttributedSlice, ...], migs: Iterable[MigFigures]
    ) -> tuple[Family, ...]:
        """Which MIG instances each slice consists of; none where no slice has any."""
        known = {mig.mig: mig for mig in migs}
        labels = tuple(
            (
                *(str(getattr(key, name)) for name in SLICE_IDENTITY),
                *(mig.mig, mig.mig_profile, str(mig.gpu_instance), str(mig.compute_instance)),
            )
            for key, found in zip(keys, slices, strict=True)
            for mig in (known[instance] for instance in found.instances if instance in known)
        )
        if labels != self._instance_labels:
            self._instance_labels = labels
        return (_INSTANCE.of(self._instance_labels, np.ones(len(labels))),) if labels else ()

    def of_findings(self, attribution: Attribution) -> tuple[Family, ...]:
        """What is odd: how often by kind, and about whom."""
        counts = Counter(odd.kind for odd in attribution.findings)
        about = dict.fromkeys(
            (*self._place, odd.kind.value, odd.namespace, odd.pod, odd.container, odd.card)
            for odd in attribution.findings
        )
        return (
            _FINDINGS.of(
                tuple((*self._place, kind.value) for kind in FindingKind),
                np.array([counts[kind] for kind in FindingKind], np.float64),
            ),
            _FINDING.of(tuple(about), np.ones(len(about))),
        )

    def of_sources(self, states: tuple[SourceState, ...]) -> tuple[Family, ...]:
        """How the sources fare."""
        labels = tuple((*self._place, state.source) for state in states)
        ages = [np.nan if state.age_seconds is None else state.age_seconds for state in states]
        return (
            _SOURCE_AGE.of(labels, np.array(ages, np.float64)),
            _SOURCE_FAILURES.of(labels, np.array([state.failures for state in states], np.float64)),
        )
