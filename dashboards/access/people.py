"""People, their roles and how far these reach: the one place that says whether somebody may do something.

A right is a role in some clusters and some namespaces of them. Several rights add up; where a deed touches several
namespaces, each must be covered. A plan is made for a cluster as a whole, so what concerns it as a whole (totals,
ledger, undo of everything) takes a right without a limit on namespaces.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum

from fleet.errors import Refused


class NotAllowed(Refused):
    """Anybody who asks has no right to it."""


class Role(StrEnum):
    """What somebody is, from the least; each may do what those before it may."""

    VIEWER = "viewer"
    APPROVER = "approver"
    OPERATOR = "operator"
    ADMIN = "admin"


class Deed(StrEnum):
    """What somebody wants to do."""

    SEE = "see"
    APPROVE = "approve"
    CHANGE = "change"
    """Apply, undo, freeze."""
    THAW = "thaw"
    """Lift a freeze: who stops may be anybody who changes, who lets go on is chosen."""


LEAST_ROLES = {Deed.SEE: Role.VIEWER, Deed.APPROVE: Role.APPROVER, Deed.CHANGE: Role.OPERATOR, Deed.THAW: Role.ADMIN}
_RANK = {role: rank for rank, role in enumerate(Role)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """A role, and where it holds.

    Attributes:
        clusters: names of clusters; None for all.
        namespaces: names of namespaces in them; None for all, and for the cluster as a whole.
    """

    role: Role
    clusters: frozenset[str] | None = None
    namespaces: frozenset[str] | None = None

    def reaches(self, cluster: str) -> bool:
        """Whether it holds anywhere in a cluster."""
        return self.clusters is None or cluster in self.clusters


@dataclass(frozen=True, slots=True, kw_only=True)
class Person:
    """Somebody who is known."""

    name: str
    rights: tuple[Right, ...]

    def may(self, deed: Deed, cluster: str, namespaces: Collection[str] | None) -> bool:
        """Say whether they may do something.

        Args:
            namespaces: namespaces that are touched; None for the cluster as a whole, and so for an empty collection:
                what touches nothing that can be named is not thereby everybody's.
        """
        reach = self._reach(deed, cluster)
        if any(namespaces is None for namespaces in reach):
            return True
        if not namespaces:
            return False
        covered = frozenset(name for part in reach if part is not None for name in part)
        return covered.issuperset(namespaces)

    def clusters_seen(self, clusters: Iterable[str]) -> tuple[str, ...]:
        """Those of some clusters of which they may see anything."""
        return tuple(cluster for cluster in clusters if any(right.reaches(cluster) for right in self.rights))

    def namespaces_seen(self, cluster: str) -> frozenset[str] | None:
        """Namespaces of a cluster that they may see; None for all, empty for none."""
        reach = self._reach(Deed.SEE, cluster)
        if any(namespaces is None for namespaces in reach):
            return None
        return frozenset(name for part in reach if part is not None for name in part)

    @property
    def highest_role(self) -> Role | None:
        """Their highest role anywhere; None for somebody without rights."""
        return max((right.role for right in self.rights), key=_RANK.__getitem__, default=None)

    def _reach(self, deed: Deed, cluster: str) -> list[frozenset[str] | None]:
        least = _RANK[LEAST_ROLES[deed]]
        return [
            right.namespaces for right in self.rights if _RANK[right.role] >= least and right.reaches(cluster)
        ]  # fmt: skip


def everything(name: str) -> Person:
    """Somebody who may do everything everywhere: the person at this machine, where nobody else can reach the app."""
    return Person(name=name, rights=(Right(role=Role.ADMIN),))
