"""Settings that say which scraped targets may speak for others; a section of `fleet.settings.settings`.

Read by the receiver, by a scan and by `gputide doctor`; the rule is `fleet.provenance`.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from fleet.provenance import OWN_NAMESPACES, TRUSTED_JOBS, TRUSTED_NAMESPACES, Provenance
from fleet.settings.kinds import Section

_NAMESPACE = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[a-z0-9*.-]+$")]
_JOB = Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[^\x00-\x1f\x7f]+$")]


class ProvenanceSettings(Section):
    """Which targets of a Prometheus may speak of other pods than their own, and of cards and nodes."""

    namespaces: tuple[_NAMESPACE, ...] = TRUSTED_NAMESPACES
    """Namespaces in which your exporters run and no tenant does; `*` stands for any letters. What pods elsewhere
    export under exporters' names is left out and counted."""
    own_namespaces: tuple[_NAMESPACE, ...] = OWN_NAMESPACES
    """Namespaces of gputide's own exporters, trusted beside the others; the chart sets them."""
    jobs: tuple[_JOB, ...] = TRUSTED_JOBS
    """Jobs that are trusted where a series does not say the namespace of its target (`honor_labels: true`, or targets
    by their address); `*` stands for any letters but `/`. A PodMonitor's job, `NAMESPACE/NAME`, is trusted by its
    namespace."""

    @property
    def rule(self) -> Provenance:
        """The rule by which labels are judged."""
        return Provenance(namespaces=(*self.own_namespaces, *self.namespaces), jobs=self.jobs)
