"""Roles, reach, and that rights add up and never more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dashboards.access.people import Deed, Person, Right, Role, everything

NAMES = st.sampled_from(("a", "b", "c"))
SOME = st.none() | st.frozensets(NAMES, min_size=1)
RIGHTS = st.builds(Right, role=st.sampled_from(Role), clusters=SOME, namespaces=SOME)
LEAST = {Deed.SEE: 0, Deed.APPROVE: 1, Deed.CHANGE: 2, Deed.THAW: 3}


@given(st.lists(RIGHTS, max_size=4), st.sampled_from(Deed), NAMES, st.none() | st.frozensets(NAMES))
def test_deed_is_allowed_only_where_every_namespace_is_covered_by_a_role_that_may(
    rights: list[Right], deed: Deed, cluster: str, namespaces: frozenset[str] | None
) -> None:
    def covers(namespace: str | None) -> bool:
        return any(
            list(Role).index(right.role) >= LEAST[deed]
            and (right.clusters is None or cluster in right.clusters)
            and (right.namespaces is None or namespace in right.namespaces)
            for right in rights
        )

    wanted = all(covers(name) for name in namespaces) if namespaces else covers(None)
    assert Person(name="mei", rights=tuple(rights)).may(deed, cluster, namespaces) is wanted


def test_nobody_is_allowed_anything_by_naming_no_namespace() -> None:
    scoped = Person(name="mei", rights=(Right(role=Role.ADMIN, namespaces=frozenset({"a"})),))
    assert not scoped.may(Deed.SEE, "prod", ())
    assert not scoped.may(Deed.SEE, "prod", None)
    assert scoped.may(Deed.CHANGE, "prod", {"a"})


def test_viewer_of_one_cluster_sees_it_alone() -> None:
    person = Person(name="mei", rights=(Right(role=Role.VIEWER, clusters=frozenset({"prod"})),))
    assert person.clusters_seen(("dev", "prod")) == ("prod",)
    assert person.namespaces_seen("prod") is None
    assert person.namespaces_seen("dev") == frozenset()
    assert person.highest_role is Role.VIEWER


def test_operator_of_the_machine_may_everything() -> None:
    assert all(everything("root").may(deed, "prod", None) for deed in Deed)
