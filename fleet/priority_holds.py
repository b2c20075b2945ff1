"""What holds low priority back on a card that it shares, as far as it is really enforced there.

A backend's two levels of priority are a wish until something stops the launches of the lower one: the backend itself,
its gate between pods that all have a core limit, the node's agent, or a gate that a probe saw working without limits.
Where nothing does, low priority contends like any other pod. Asked by the planner, which predicts harm by it, and by
the enforcer, which refuses a stage that counts on more than is there. Pure; standard library only.

Sources: Project-HAMi/HAMi:cmd/vGPUmonitor/feedback.go (who is gated, by which switch), Project-HAMi/HAMi-core@24fd045
(a launch looks at the gate only with a core limit of 1-99), Project-HAMi/HAMi#1445 (launches of CUDA graphs pass).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from fleet.capabilities.capability import Capabilities
from fleet.decisions import Need, Plan, RecommendationKind
from fleet.inventory import Priority, WorkloadId
from fleet.probe_results import ProbeResult
from fleet.sentences import Sentence, sentence
from fleet.servers import replays_graphs

UNHELD_STRICT = "guard.unheld_strict"
"""Code of what `unmet_need` says where low priority is held back all the same, only later than counted on."""


class Hold(StrEnum):
    """What holds a pod of low priority back."""

    NONE = "none"
    BACKEND = "backend"
    """The backend suspends it while pods above it work, whatever their limits."""
    GRAPHS = "graphs"
    """The node's agent lets it sleep although it replays CUDA graphs: a probe on the node saw that those stop too."""
    AGENT = "agent"
    """The node's agent lets it sleep."""
    PROBED = "probed"
    """The backend's gate, which a probe on the node saw stop a container without a core limit."""
    CORES = "cores"
    """The backend's gate, between pods that all have 1-99 % of cores; those above it must be held to theirs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Holders:
    """What was seen in a cluster beyond the backend itself; nodes by name.

    Attributes:
        agents: nodes whose agent runs and lets low priority give way, and on which no probe saw a pause fail.
        strict: those of them whose agent lets it sleep whenever somebody above it works, not only once a card is full.
        gated: nodes on which a probe saw the gate stop a container without a core limit.
        ungated: nodes on which a probe saw a container pass the gate although it had a core limit.
        graphs_pause: nodes on which a probe saw that a pause stops launches of CUDA graphs as well.
    """

    agents: frozenset[str] = field(default_factory=frozenset)
    strict: frozenset[str] = field(default_factory=frozenset)
    gated: frozenset[str] = field(default_factory=frozenset)
    ungated: frozenset[str] = field(default_factory=frozenset)
    graphs_pause: frozenset[str] = field(default_factory=frozenset)


NOBODY = Holders()


def holders_of(
    record: Capabilities,
    results: Iterable[ProbeResult],
    agents: Collection[str] = (),
    *,
    strict: Collection[str] = (),
    since: datetime | None = None,
) -> Holders:
    """What probes and agents show.

    Args:
        record: the backend's; results of others are left out.
        results: one per node at most.
        agents: nodes whose agent runs and lets low priority give way.
        strict: those of them that do so whenever somebody above it works.
        since: what an older result saw hold counts no more, for drivers and libraries change; what it saw fail does.
    """
    own = [result for result in results if result.backend == record.backend]
    tried = [result for result in own if result.gate_holds is not None]
    fresh = {one.node for one in own if since is None or one.measured_at >= since}
    # The region was there, and no pause through it took hold.
    sleepless = {
        one.node
        for one in own
        if one.pause_seconds is None and (one.gate_holds is not None or one.graph_pauses is not None)
    }
    return Holders(
        agents=frozenset(agents) - sleepless,
        strict=frozenset(strict) & frozenset(agents) - sleepless,
        gated=frozenset(one.node for one in tried if one.gate_holds and one.granted_compute_ratio is None) & fresh,
        ungated=frozenset(one.node for one in tried if not one.gate_holds and one.granted_compute_ratio is not None),
        graphs_pause=frozenset(one.node for one in own if one.graph_pauses) & fresh,
    )


def hold_of(record: Capabilities, holders: Holders, nodes: Collection[str], server: str | None) -> Hold:
    """What holds a pod of low priority back on every one of some nodes.

    Args:
        server: what runs in it, a name of `fleet.servers`; launches of one that is not known count as plain.

    Returns:
        The hold that asks least of the pods above it; `CORES` holds only on cards all of whose pods have a core limit.
    """
    on = frozenset(nodes)
    if record.priority_levels > 1 and not record.gates_priority_by_cores:
        return Hold.BACKEND
    # Agent and gate are the library's, which only records of its kind have.
    if not record.gates_priority_by_cores or not on:
        return Hold.NONE
    by_agent = on <= holders.agents
    if replays_graphs(server):
        return Hold.GRAPHS if by_agent and on <= holders.graphs_pause else Hold.NONE
    if by_agent:
        return Hold.AGENT
    if on <= holders.gated:
        return Hold.PROBED
    return Hold.NONE if on & holders.ungated else Hold.CORES


def first_at_every_moment(hold: Hold, holders: Holders) -> bool:
    """Whether pods above low priority never wait for it, as far as requests of milliseconds can tell.

    An agent that acts on a full card lets it contend until then. A pod may come to a node of any of the agents.
    """
    if hold in (Hold.AGENT, Hold.GRAPHS):
        return holders.agents <= holders.strict
    return hold is not Hold.NONE


def contending(plan: Plan, holders: Holders | None = None) -> frozenset[WorkloadId]:
    """Workloads of low priority that a plan puts beside others although nothing holds them back there.

    Args:
        holders: what is there now; None counts what the plan was promised as being there.
    """
    needs_of: dict[str, frozenset[Need]] = {}
    for item in plan.recommendations:
        if item.kind is RecommendationKind.COLOCATE:
            needs_of.update(dict.fromkeys(item.pods, frozenset(item.needs)))
    found: set[WorkloadId] = set()
    for card in plan.placement:
        counted_on = [needs_of[part.pod_id] for part in card.slices if part.pod_id in needs_of]
        if not all(_is_met(needs, card.node or "", holders) for needs in counted_on):
            found.update(part.workload for part in card.slices if part.priority is Priority.LOW)
    return frozenset(found)


def broken_needs(
    plan: Plan, chosen: Collection[str], holders: Holders, living: Collection[WorkloadId]
) -> tuple[Sentence, ...]:
    """What advice counts on to hold low priority back and is no longer there, one sentence per node.

    Args:
        chosen: ids of the advice that stands.
        living: workloads that still have a grant: low priority that is gone is held back by nothing, and harms nobody.
    """
    needs_of: dict[str, frozenset[Need]] = {}
    for item in plan.recommendations:
        if item.id in chosen and Need.PRIORITY in item.needs:
            needs_of.update(dict.fromkeys(item.pods, frozenset(item.needs)))
    found: dict[Sentence, None] = {}
    for card in plan.placement:
        parts = [part for part in card.slices if part.workload in living]
        is_mixed = len({part.priority is Priority.LOW for part in parts}) == 2
        for part in parts if is_mixed else ():
            why = unmet_need(needs_of[part.pod_id], card.node or "", holders) if part.pod_id in needs_of else None
            if why is not None:
                found[why] = None
    return tuple(found)


def unmet_need(needs: Collection[Need], node: str, holders: Holders) -> Sentence | None:
    """What advice counts on to hold low priority back on a node, and is not there; None where all of it is."""
    for need, nodes, why in (
        (Need.GRAPH_PAUSE, holders.graphs_pause, sentence("guard.unheld_graphs", node=node)),
        (Need.AGENT, holders.agents, sentence("guard.unheld_agent", node=node)),
        (Need.STRICT_AGENT, holders.strict, sentence(UNHELD_STRICT, node=node)),
        (Need.PROBED_GATE, holders.gated, sentence("guard.unheld_probe", node=node)),
    ):
        if need in needs and node not in nodes:
            return why
    is_gate = not {Need.AGENT, Need.PROBED_GATE} & set(needs)
    return sentence("guard.unheld_gate", node=node) if is_gate and node in holders.ungated else None


def _is_met(needs: frozenset[Need], node: str, holders: Holders | None) -> bool:
    """Whether something holds low priority back on a node once a card is full."""
    if Need.PRIORITY not in needs or holders is None:
        return Need.PRIORITY in needs
    return unmet_need(needs - {Need.STRICT_AGENT}, node, holders) is None
