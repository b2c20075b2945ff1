"""How nodes of the enforcer's cluster hand out their cards, asked of it as it is now, and plans that switch one."""

from __future__ import annotations

from collections.abc import Callable

from enforcer.switch_preview import NodeStanding, SwitchPreview
from fleet.data_folder import DataFolder, writing
from fleet.decisions import Plan
from fleet.errors import Refused
from fleet.node_changes import NodeSwitch
from fleet.sentences import sentence


class LiveNodeModes:
    """`NodeModes` over the enforcer's cluster.

    Args:
        own: name of that cluster; None where there is none, which the others say.
        standing: how a node hands out its cards.
        preview: what a switch would do.
        keep: keeps the plan of a switch.
    """

    def __init__(
        self,
        folder: DataFolder,
        *,
        own: Callable[[], str | None],
        standing: Callable[[str], NodeStanding],
        preview: Callable[[NodeSwitch], SwitchPreview],
        keep: Callable[[NodeSwitch], Plan],
    ) -> None:
        self._folder = folder
        self._own, self._standing, self._preview, self._keep = own, standing, preview, keep

    def standing(self, cluster: str, node: str) -> NodeStanding:
        """How a node does, and how it could."""
        self._check(cluster)
        return self._standing(node)

    def preview(self, cluster: str, switch: NodeSwitch) -> SwitchPreview:
        """What a switch would change, who would leave and where they would go; changes nothing."""
        self._check(cluster)
        return self._preview(switch)

    def keep(self, cluster: str, switch: NodeSwitch) -> str:
        """Keep the plan of a switch, to be approved and applied as any other; returns its id."""
        self._check(cluster)
        with writing(self._folder):
            return self._keep(switch).plan_id

    def _check(self, cluster: str) -> None:
        own = self._own()
        if own not in (None, cluster):
            raise Refused(sentence("node.other_cluster", cluster=cluster, own=str(own)))
