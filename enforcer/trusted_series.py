"""Asks for what exporters measure now, and leaves out what a pod says that may not speak of others.

A Prometheus answers with whatever was scraped, a tenant's pod included. So a question keeps the labels by which
`fleet.provenance` judges who wrote a series, and each answer is judged before it counts. Called by the watch after a
change, and behind latency objectives that pods promise.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from enforcer.instant_query import InstantQuery
from fleet.provenance import JUDGED_LABELS, NO_TARGETS, UP, Provenance, Targets, target_of
from wire.prometheus_query import Sample


@dataclass(frozen=True, slots=True, kw_only=True)
class SeriesQuestion:
    """A question about the series of one metric.

    Attributes:
        name: the metric by whose name who wrote it is judged.
        expression: PromQL that keeps the metric's labels.
        kept: labels of the answer that are needed beside those that judge.
    """

    name: str
    expression: str
    kept: tuple[str, ...] = ()

    @property
    def query(self) -> str:
        """What is asked: the largest value of each set of labels that matters."""
        return f"max by ({', '.join(dict.fromkeys((*self.kept, *JUDGED_LABELS)))}) ({self.expression})"


class TrustedSeries:
    """Answers of a Prometheus without what strangers say.

    Args:
        metrics: what answers.
        provenance: which targets may speak for others.
    """

    def __init__(self, metrics: InstantQuery, provenance: Provenance | None = None) -> None:
        self._metrics = metrics
        self._provenance = Provenance() if provenance is None else provenance

    def vector(self, question: SeriesQuestion) -> tuple[Sample, ...]:
        """The series that count.

        Raises:
            Unavailable: it can't be asked.
        """
        found = self._metrics.vector(question.query)
        # Where a target is matters only where a series names both a job and a namespace.
        targets = self._targets({sample.labels.get("job", "") for sample in found if sample.labels.get("namespace")})
        judge = self._provenance.stranger
        return tuple(sample for sample in found if judge(question.name, sample.labels, targets) is None)

    def _targets(self, jobs: set[str]) -> Targets:
        """Where the targets of some jobs are; nothing where this Prometheus keeps no `up`."""
        names = sorted(jobs - {""})
        if not names:
            return NO_TARGETS
        pattern = json.dumps("|".join(map(re.escape, names)), ensure_ascii=False)
        found: dict[tuple[str, str], frozenset[str]] = {}
        for sample in self._metrics.vector(f"group by ({', '.join(JUDGED_LABELS)}) ({UP}{{job=~{pattern}}})"):
            target, namespace = target_of(sample.labels)
            found[target] = found.get(target, frozenset()) | {namespace}
        return found
