"""The ports of somebody who may see parts: what stands between the lines, and which plan a change goes to."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from dashboards.access.namespace_cut import namespace_of
from dashboards.access.people import NotAllowed, Person, Right, Role, everything
from dashboards.access.scoped import scoped_views
from dashboards.address import read_address
from dashboards.pages.plan import layout as plan_layout
from dashboards.queries import STAGE_KIND, Plans, RolloutProgress, Rollouts, Views
from enforcer.backends.node_mode import switch_plan
from enforcer.preview import ObjectDiff
from fleet.capabilities.register import HAMI
from fleet.errors import Refused, Unavailable
from fleet.node_changes import NodeMode, NodeSwitch
from fleet.sentences import Sentence, sentence
from fleet.settings.settings import Settings
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, make_views

TEAM = "team-3"
VIEWER = Person(name="mei", rights=(Right(role=Role.VIEWER, namespaces=frozenset({TEAM})),))


@pytest.fixture
def world() -> tuple[Views, EmbeddedCluster]:
    return make_views(with_past=False)


SECRET = "ads/Deployment/secret-launch"
RESTORED_FOR = (
    f"{SECRET} spends its harm budget too fast",
    sentence("watch.and_more", first=sentence("guard.harm_too_fast", workload=SECRET, times="20"), more="1"),
)


@pytest.mark.parametrize("said", RESTORED_FOR)
def test_progress_of_a_part_counts_the_part_alone_and_names_no_other(
    world: tuple[Views, EmbeddedCluster], said: Sentence | str
) -> None:
    views, cluster = world
    plan = cluster.plans(CLUSTER)[0].plan
    stages = tuple(stage.stage for stage in plan.stages)
    cluster.approve(plan.plan_id, stages, "bo")
    cluster.apply(plan.plan_id, stages, "bo")
    for _ in range(9):
        cluster.progress(plan.plan_id)
    whole = cluster.progress(plan.plan_id)

    @dataclass
    class Restored:
        inner: Rollouts

        def progress(self, plan_id: str) -> RolloutProgress:
            found = self.inner.progress(plan_id)
            return replace(found, objects=tuple(replace(item, detail=said) for item in found.objects))

    told = replace(views, rollouts=Restored(cluster))  # type: ignore[arg-type] # the other deeds are not asked for
    seen = scoped_views(told, lambda: VIEWER).rollouts.progress(plan.plan_id)
    own = [item for item in whole.objects if namespace_of(item.workload) == TEAM]
    assert own
    assert (seen.done, seen.total) == (len(own), len(own))
    assert whole.total > seen.total
    assert "secret-launch" not in repr(seen)
    assert "secret-launch" in repr(scoped_views(told, lambda: everything("bo")).rollouts.progress(plan.plan_id))


def test_who_approved_stages_of_others_is_not_told(world: tuple[Views, EmbeddedCluster]) -> None:
    views, cluster = world
    plan = cluster.plans(CLUSTER)[0].plan
    shown = scoped_views(views, lambda: VIEWER).plans.plan(plan.plan_id)
    assert shown is not None
    others = tuple(stage.stage for stage in plan.stages if stage.stage not in {own.stage for own in shown.plan.stages})
    if not others:
        others = (plan.stages[0].stage,)
        narrow = Person(name="li", rights=(Right(role=Role.VIEWER, namespaces=frozenset({"nobody"})),))
    else:
        narrow = VIEWER
    cluster.approve(plan.plan_id, others, "bo")
    entry = scoped_views(views, lambda: narrow).plans.plan(plan.plan_id)
    assert entry is not None
    assert entry.approved_stages == ()
    assert entry.approved_by == ()


def test_change_goes_to_the_plan_whose_rights_were_checked(world: tuple[Views, EmbeddedCluster]) -> None:
    """A store finds a plan by the start of its id; what fits it may be another plan a moment later."""
    views, cluster = world
    plan = cluster.plans(CLUSTER)[0].plan
    asked: list[str] = []

    @dataclass
    class ByPrefix:
        inner: Plans

        def plan(self, plan_id: str) -> object:
            return next((e for e in self.inner.plans(CLUSTER) if e.plan.plan_id.startswith(plan_id)), None)

        def approve(self, plan_id: str, stages: tuple[int, ...], by: str) -> object:
            asked.append(plan_id)
            return self.inner.approve(plan_id, stages, by)

        def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
            asked.append(plan_id)
            return self.inner.preview(plan_id, stages)

    @dataclass
    class Heard:
        inner: Rollouts

        def __getattr__(self, name: str) -> object:
            def heard(plan_id: str, *more: object) -> object:
                asked.append(plan_id)
                return getattr(self.inner, name)(plan_id, *more)

            return heard

    odd = replace(views, plans=ByPrefix(cluster), rollouts=Heard(cluster))  # type: ignore[arg-type] # plans alone
    scoped = scoped_views(odd, lambda: everything("bo"))
    short = plan.plan_id[:8]
    scoped.plans.approve(short, (1,), "bo")
    scoped.plans.preview(short, (1,))
    scoped.rollouts.apply(short, (1,), "bo")
    for _ in range(9):
        scoped.rollouts.progress(short)
    scoped.rollouts.undo_preview(short)
    scoped.rollouts.undo(short, "bo")
    assert set(asked) == {plan.plan_id}
    assert len(asked) == 14


def test_reader_of_a_team_sees_that_a_stage_is_refused_but_not_why(world: tuple[Views, EmbeddedCluster]) -> None:
    views, cluster = world
    plan = cluster.plans(CLUSTER)[0].plan

    @dataclass
    class Refusing:
        inner: Plans

        def plan(self, plan_id: str) -> object:
            return self.inner.plan(plan_id)

        def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
            stage = ObjectDiff(
                kind=STAGE_KIND, namespace="", name="1", recommendation="", before="", after="",
                refusal="cannot place ads/secret-launch",
            )  # fmt: skip
            return (stage, replace(stage, kind="Deployment", namespace="ads", name="secret-launch"))

    odd = replace(views, plans=Refusing(cluster))  # type: ignore[arg-type] # nothing else is asked for
    (found,) = scoped_views(odd, lambda: VIEWER).plans.preview(plan.plan_id, ())
    assert (found.kind, found.name) == (STAGE_KIND, "1")
    assert found.refusal is not None
    assert "secret-launch" not in str(found.refusal)


@pytest.mark.parametrize("kind", [Refused, Unavailable])
def test_preview_that_fails_names_no_object_of_another(
    world: tuple[Views, EmbeddedCluster], kind: type[Refused] | type[Unavailable]
) -> None:
    views, cluster = world
    plan = cluster.plans(CLUSTER)[0].plan

    @dataclass
    class Failing:
        inner: Plans

        def plan(self, plan_id: str) -> object:
            return self.inner.plan(plan_id)

        def preview(self, plan_id: str, stages: tuple[int, ...]) -> tuple[ObjectDiff, ...]:
            raise kind("cannot read Deployment ads/secret-launch")

    odd = replace(views, plans=Failing(cluster))  # type: ignore[arg-type] # nothing else is asked for
    with pytest.raises(kind) as caught:
        scoped_views(odd, lambda: VIEWER).plans.preview(plan.plan_id, ())
    assert "secret-launch" not in str(caught.value)
    with pytest.raises(kind, match="secret-launch"):
        scoped_views(odd, lambda: everything("bo")).plans.preview(plan.plan_id, ())


def test_modes_of_nodes_are_for_who_may_see_the_cluster_and_a_switch_for_who_may_approve_in_all_of_it(
    world: tuple[Views, EmbeddedCluster],
) -> None:
    views, _ = world
    switch = NodeSwitch(node="node-1", mode=NodeMode.WHOLE)
    team = scoped_views(views, lambda: replace(VIEWER, rights=(Right(role=Role.ADMIN, namespaces=frozenset({TEAM})),)))
    viewer = scoped_views(views, lambda: Person(name="bo", rights=(Right(role=Role.VIEWER),)))
    for ask in (
        lambda: team.nodes.standing(CLUSTER, "node-1"),
        lambda: team.nodes.preview(CLUSTER, switch),
        lambda: team.nodes.keep(CLUSTER, switch),
        lambda: viewer.nodes.keep(CLUSTER, switch),
    ):
        with pytest.raises(NotAllowed, match="pods of everybody may be there"):
            ask()
    assert viewer.nodes.preview(CLUSTER, switch).leavers
    approver = scoped_views(views, lambda: Person(name="bo", rights=(Right(role=Role.APPROVER),)))
    assert approver.nodes.keep(CLUSTER, switch)
    assert views.nodes.kept == [switch]  # type: ignore[attr-defined]


@pytest.mark.parametrize("is_named", [False, True])
def test_plan_page_of_a_team_shows_nothing_of_a_switch(world: tuple[Views, EmbeddedCluster], is_named: bool) -> None:
    views, cluster = world
    (entry,) = cluster.plans(CLUSTER)
    kept = switch_plan(
        NodeSwitch(node="secret-node", mode=NodeMode.WHOLE), HAMI, cards=8, cluster=CLUSTER, version=None,
        now=entry.plan.created_at, settings=Settings(),
    )  # fmt: skip
    profiles = views.fleet.profiles(CLUSTER)
    scoped = scoped_views(replace(views, plans=EmbeddedCluster(profiles, (entry.plan, kept))), lambda: VIEWER)
    named = f"&plan={kept.plan_id}" if is_named else ""
    page = str(plan_layout(scoped, read_address("/plan", f"?cluster={CLUSTER}{named}"), profiles))
    assert kept.plan_id in page
    assert "secret-node" not in page


def test_a_card_over_time_is_shown_to_who_may_see_all_who_held_it(world: tuple[Views, EmbeddedCluster]) -> None:
    views, _ = world
    cards = views.fleet.profiles(CLUSTER).cards
    own = scoped_views(views, lambda: VIEWER)
    seen = {card.card: own.fleet.card_history(CLUSTER, card.card, 24) is not None for card in cards}
    theirs = {card.card: bool(card.workloads) and {namespace_of(one) for one in card.workloads} == {TEAM}
              for card in cards}  # fmt: skip
    assert seen == theirs
    assert set(seen.values()) == {True, False}
