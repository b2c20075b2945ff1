"""HAMi as a simulated cluster plays it, and EffectiveGPU, which is HAMi under the names of its own ConfigMaps."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from enforcer.backends.effectivegpu import EFFECTIVE_GPU_DIALECT
from enforcer.backends.hami_dialect import HAMI_DIALECT, HamiDialect
from enforcer.dialect import ObjectKey
from enforcer.manifest import Manifest
from enforcer.simulated.books import Allocation, CardBook, PodAsk
from enforcer.simulated.hami_scheduler import HAMI_RULES
from enforcer.simulated.hami_webhook import ask_of, mutate
from enforcer.simulated.kin import (
    LEVELS,
    config_map,
    configured,
    grants_by_container,
    is_limited,
    node_entry,
    registered,
    tenant_words,
)
from enforcer.simulated.system import NodeSharing, NodeWords, RuledSystem, TenantWords
from fleet.capabilities.capability import Capabilities
from fleet.capabilities.register import EFFECTIVE_GPU, HAMI
from fleet.grammars.hami import VGPU_NODE_ANNOTATION, render_devices_allocated, render_node_register
from fleet.inventory import Grant, Priority


class HamiSystem(RuledSystem):
    """HAMi in its mode `hami-core` (the protocol `SharingSystem`)."""

    rules = HAMI_RULES
    names_cards = True

    def __init__(self, capabilities: Capabilities, dialect: HamiDialect) -> None:
        self.capabilities = capabilities
        self._dialect = dialect
        self.configs = (config_map(dialect.node_config, {"config.json": json.dumps({"nodeconfig": []})}),)
        self.wish_path = f'$.spec.containers[0].resources.limits."{dialect.words.priority}"'

    def tenant(self, grants: Sequence[Grant], models: Sequence[str]) -> TenantWords:
        """See the protocol."""
        return tenant_words(self._dialect.words, grants, models, "hami-scheduler")

    def mutate(self, pod: Manifest) -> Manifest:
        """See the protocol."""
        return mutate(pod)

    def ask_of(self, pod: Manifest) -> PodAsk:
        """See the protocol."""
        return ask_of(pod)

    def marks(self, pod: Manifest, allocations: Sequence[Allocation], cards: Sequence[CardBook]) -> Manifest:
        """See the protocol."""
        grants = list(grants_by_container(pod, allocations).values())
        allocated = {self._dialect.allocated: render_devices_allocated(grants)}
        return {"annotations": {VGPU_NODE_ANNOTATION: cards[0].node, **allocated}}

    def held(self, wish: str | None, core_percent: int) -> tuple[bool, Priority | None]:
        """See the protocol."""
        return is_limited(core_percent), LEVELS.get(wish or "", Priority.NORMAL)

    def sharing(self, configs: Mapping[ObjectKey, Manifest], node: Manifest) -> NodeSharing:
        """See the protocol."""
        name = node["metadata"]["name"]
        entry = node_entry(configs.get(self._dialect.node_config), "config.json", "name", name)
        slices_max = self.capabilities.slices_per_card_max
        return configured(entry, "devicememoryscaling", "devicesplitcount", slices_max)

    def node(self, cards: Sequence[CardBook], configs: Mapping[ObjectKey, Manifest], written: Manifest) -> NodeWords:
        """See the protocol."""
        del configs, written
        return NodeWords(
            annotations={self._dialect.register: render_node_register(registered(cards))},
            allocatable={self._dialect.words.count: str(sum(card.slices_max for card in cards))},
        )


HAMI_SYSTEM = HamiSystem(HAMI, HAMI_DIALECT)
EFFECTIVE_GPU_SYSTEM = HamiSystem(EFFECTIVE_GPU, EFFECTIVE_GPU_DIALECT)
