"""Who a team is: its namespaces, and the workloads whose pods carry its labels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from fleet.inventory import Grant, WorkloadId
from fleet.settings.notify import TeamSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One team.

    Attributes:
        namespaces: its namespaces, with * for any text.
        workloads: workloads that are its by a label, wherever they run.
    """

    name: str
    namespaces: tuple[str, ...]
    workloads: frozenset[WorkloadId]
    channels: tuple[str, ...]

    def owns(self, workload: WorkloadId | str) -> bool:
        """Whether a workload, written `namespace/Kind/name`, is the team's."""
        return self.is_concerned((workload.split("/", 1)[0],), (WorkloadId(workload),))

    def owns_budget(self, kind: str, name: str) -> bool:
        """Whether a budget of a `team` or a `namespace` is this team's: by its own name, or as one of its namespaces.

        Without a label on its pods a namespace is a team of money, so a team's budget may bear a namespace's name.
        """
        is_named = kind == "team" and name == self.name
        return is_named or any(fnmatchcase(name, pattern) for pattern in self.namespaces)

    def is_concerned(self, namespaces: Sequence[str], workloads: Sequence[WorkloadId]) -> bool:
        """Whether any of these is the team's."""
        if any(fnmatchcase(namespace, pattern) for namespace in namespaces for pattern in self.namespaces):
            return True
        return not self.workloads.isdisjoint(workloads)


def teams_of(settings: Mapping[str, TeamSettings], grants: Iterable[Grant]) -> tuple[Team, ...]:
    """The teams of the settings, their labels looked up among the pods that hold or held slices.

    Args:
        grants: of all clusters; of no meaning where no team has labels.
    """
    rules = [
        (name, label.partition("=")[0], label.partition("=")[2])
        for name, team in settings.items()
        for label in team.labels
    ]
    found: dict[str, set[WorkloadId]] = {name: set() for name in settings}
    for grant in grants if rules else ():
        for name, label, pattern in rules:
            value = grant.label(label)
            if value is not None and fnmatchcase(value, pattern):
                found[name].add(grant.workload_id)
    return tuple(
        Team(name=name, namespaces=team.namespaces, workloads=frozenset(found[name]), channels=team.channels)
        for name, team in settings.items()
    )
