"""EffectiveGPU's words for a plan: HAMi's, under the names of its own installation.

Its resource names are published nowhere, so all are configurable: read from its ConfigMap, which has HAMi's form, or
given where the dialect is made. On Volcano every card model has a count resource of its own, and tenants have
queues. Source: the CNCF case study on SF Technology (published description).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from enforcer.backend import RenderedStage
from enforcer.backends.card_fit import CORE_MODE
from enforcer.backends.grant_backend import render_grants
from enforcer.backends.hami import hami_family
from enforcer.backends.hami_dialect import HAMI_WORDS, HamiDialect
from enforcer.resource_names import Words
from enforcer.snapshot import Snapshot
from fleet.capabilities.register import EFFECTIVE_GPU, Capabilities
from fleet.decisions import Plan

EFFECTIVE_GPU_DIALECT = HamiDialect(
    HAMI_WORDS,
    device_config=("ConfigMap", "kube-system", "egpu-scheduler-device"),
    node_config=("ConfigMap", "kube-system", "egpu-device-plugin"),
    plugin=("DaemonSet", "kube-system", "egpu-device-plugin"),
)
"""HAMi's annotations, with the names that EffectiveGPU's ConfigMaps give."""


class EffectiveGpuBackend:
    """EffectiveGPU (the port `Backend`).

    Args:
        capabilities: its record, as far as probes confirm or extend it.
    """

    def __init__(
        self,
        now: datetime,
        dialect: HamiDialect = EFFECTIVE_GPU_DIALECT,
        capabilities: Capabilities = EFFECTIVE_GPU,
    ) -> None:
        self._now, self.capabilities = now, capabilities
        self.dialect = dialect

    def render(self, plan: Plan, stage: int, snapshot: Snapshot) -> RenderedStage:
        """Turn one stage into changes; see the port."""
        family = hami_family(self.capabilities, self.dialect, plan, modes=(CORE_MODE,))
        return render_grants(family, self.dialect, plan, stage, snapshot, self._now)


def words_of_models(words: Words, resource_of_model: Mapping[str, str]) -> Words:
    """Names where each card model is asked for by a resource of its own.

    Args:
        words: the other names.
        resource_of_model: part of a model's name to its count resource; of several that fit the longest part counts.
    """
    pairs = sorted(resource_of_model.items(), key=lambda pair: (-len(pair[0]), pair[0]))
    return replace(words, count_by_model=tuple(pairs))
