"""What relief sees: the newest view of every node, and whose latency objective is broken. Ports, in relief's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from enforcer.agent.node_view import NodeView


class DemandFeed(Protocol):
    """Reports what nodes see."""

    def views(self, wait_seconds: float) -> Mapping[str, NodeView]:
        """The newest view of every node that reported one lately, by node.

        Comes back as soon as a node reported that other cards are in trouble than before, or after `wait_seconds`. A
        node that can't be asked is left out: its cards are neither relieved nor taken.

        Args:
            wait_seconds: longest wait; 0 for what is known now.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokenObjective:
    """A latency objective that is broken now.

    Attributes:
        namespace: namespace of the pod that suffers.
        pod: the pod.
        query: the question whose answer it is.
    """

    namespace: str
    pod: str
    query: str

    @property
    def pod_id(self) -> str:
        """`namespace/pod`."""
        return f"{self.namespace}/{self.pod}"


class Objectives(Protocol):
    """Says which latency objectives are broken."""

    def broken(self) -> tuple[BrokenObjective, ...]:
        """Those that are broken now.

        Raises:
            Unavailable: nobody can be asked; what was broken before is not known to be so now.
        """
        ...


class NoObjectives:
    """Nobody set an objective (the port `Objectives`)."""

    def broken(self) -> tuple[BrokenObjective, ...]:
        """None."""
        return ()
