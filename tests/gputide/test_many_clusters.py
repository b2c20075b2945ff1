"""One warehouse of several clusters: everybody asks for one, and an enforcer changes its own and no other."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from dashboards.report.weeks import WeekFacts, keep_week, read_weeks
from dashboards.stored.arrivals import WarehouseSightings
from fleet.data_folder import DataFolder, open_data_folder
from fleet.decisions import Plan
from fleet.documents import seal_plan
from fleet.errors import Misconfigured, Refused
from fleet.schema import Measure
from fleet.settings.settings import ClusterChoice, Settings
from gputide.container.cluster import check_uid, open_cluster_to_change, own_cluster
from gputide.container.measured_harm import harm_between
from gputide.container.pages import views_of
from gputide.container.plans import chosen_plan, plan_store
from gputide.container.warehouse import cluster_name, warehouse
from gputide.session import Session
from pipeline.remote_write.decode import Version
from pipeline.warehouse.warehouse_duckdb import DuckdbWarehouse
from tests.enforcer.builders import standard_plan
from tests.enforcer.scripted_api import Heard, ScriptedApi, Told
from tests.gputide.conftest import Program
from tests.pipeline.builders import START_MS, Sample, body_of, file_bus, intake_of, roll_up

UID = "6a0d4f0e-6c1b-4f0a-9a43-9d0a8f1f5c11"
NOW = datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(hours=2)


def receive(folder: DataFolder, cluster: str, minutes: int) -> None:
    """Samples of one pod of a cluster for some minutes from the start on."""
    with closing(file_bus(folder.bus())) as bus, closing(DuckdbWarehouse(folder.warehouse)) as tables:
        samples = [Sample(0, Measure.DUTY_CYCLE, START_MS + 60_000 * (step + 1), 0.5) for step in range(minutes)]
        intake_of(bus).take(body_of(samples, cluster=cluster), Version.V2)
        roll_up(bus, tables)


def settings_of(**sections: dict[str, object]) -> Settings:
    return Settings.model_validate(sections)


@pytest.fixture
def two(tmp_path: Path) -> DataFolder:
    """A warehouse of two clusters; east fell silent an hour before west."""
    folder = open_data_folder(tmp_path / "data", create=True)
    receive(folder, "east", 30)
    receive(folder, "west", 110)
    return folder


def test_one_of_several_clusters_must_be_named_and_known(two: DataFolder) -> None:
    assert cluster_name(two, settings_of(cluster={"name": "west"})) == "west"
    assert cluster_name(two, settings_of(cluster={"name": "west"}), "east") == "east"
    with pytest.raises(Misconfigured, match=r"'default' is not among east, west; say --cluster NAME, or --set cluster"):
        cluster_name(two, settings_of())
    with pytest.raises(Misconfigured, match=r"cannot use --cluster 'north': data came of east, west"):
        cluster_name(two, settings_of(), "north")


def test_cluster_is_silent_since_the_end_of_its_last_window(two: DataFolder) -> None:
    settings = settings_of(cluster={"silent_seconds": 3600})
    found = WarehouseSightings(lambda: warehouse(two, settings), settings, lambda: NOW).sightings()
    start = datetime.fromtimestamp(START_MS / 1000, UTC)
    assert [(item.cluster, item.newest_at, item.silent_since) for item in found] == [
        ("east", start + timedelta(minutes=30), start + timedelta(minutes=30)),
        ("west", start + timedelta(minutes=110), None),
    ]


def test_newest_plan_is_that_of_the_cluster_that_is_asked_for(two: DataFolder, plan: Plan) -> None:
    store = plan_store(two)
    for cluster in ("east", "west"):
        store.add(seal_plan(replace(plan, cluster=cluster)))
    assert chosen_plan(two, None).cluster == "west"
    assert chosen_plan(two, None, cluster="east").cluster == "east"


@pytest.fixture
def plan() -> Plan:
    """A plan."""
    return standard_plan()


def test_enforcer_of_a_real_cluster_is_of_the_named_or_the_only_cluster(two: DataFolder, tmp_path: Path) -> None:
    real: dict[str, object] = {"cluster": ClusterChoice.KUBERNETES}
    assert own_cluster(two, settings_of(enforcer=real)) == "default"
    assert own_cluster(two, settings_of(enforcer=real, cluster={"name": "west"})) == "west"
    alone = open_data_folder(tmp_path / "alone", create=True)
    receive(alone, "south", 1)
    assert own_cluster(alone, settings_of(enforcer=real)) == "south"
    # Only south has sent yet, and plans for it are none for north.
    assert own_cluster(alone, settings_of(enforcer=real, cluster={"name": "north"})) == "north"


@pytest.mark.parametrize("uid", [UID, "00000000-0000-4000-8000-000000000000"])
def test_api_server_of_another_cluster_is_refused_before_anything_is_asked_of_it(uid: str, tmp_path: Path) -> None:
    def script(heard: Heard, _number: int) -> Told:
        if heard.path == "/api/v1/namespaces/kube-system":
            return Told(document={"kind": "Namespace", "metadata": {"name": "kube-system", "uid": UID}})
        return Told(status=404, document={"kind": "Status", "status": "Failure", "code": 404, "reason": "NotFound"})

    with closing(ScriptedApi(tmp_path, script)) as api:
        settings = settings_of(
            enforcer={"cluster": ClusterChoice.KUBERNETES, "kubeconfig": api.kubeconfig, "cluster_uid": uid}
        )
        folder = DataFolder(path=tmp_path / "data")
        if uid == UID:
            with open_cluster_to_change(folder, settings, NOW) as cluster:
                check_uid(cluster, settings)
        else:
            with (
                pytest.raises(Refused, match=rf"kube-system has UID {UID}, and enforcer.cluster_uid={uid}"),
                open_cluster_to_change(folder, settings, NOW),
            ):
                pass
            assert {heard.method for heard in api.heard} == {"GET"}


def test_harm_is_that_of_the_cluster_that_is_changed(two: DataFolder) -> None:
    # The harm of others is no reason to stop: of north nothing was measured.
    assert not harm_between(two, settings_of(), "north", NOW - timedelta(hours=2), NOW)


def test_enforcer_in_a_folder_of_several_clusters_measures_its_own(planned: Path, program: Program) -> None:
    folder = open_data_folder(planned, create=False)
    receive(folder, "west", 5)
    program(planned, "plan", "approve")
    said = program(planned, "apply", "--yes", "--stage", "1")
    assert "cannot choose a cluster" not in said.err
    assert said.status == 0, said


def test_nobody_approves_a_plan_of_a_cluster_that_was_not_meant(planned: Path, program: Program) -> None:
    folder = open_data_folder(planned, create=False)
    own = chosen_plan(folder, None)
    foreign = seal_plan(replace(own, cluster="west"))
    plan_store(folder).add(foreign)
    said = program(planned, "plan", "approve")
    assert (said.status, "there are plans of demo, west; say --cluster NAME" in said.err) == (2, True)
    assert program(planned, "--set", "cluster.name=demo", "plan", "approve").status == 0
    assert program(planned, "plan", "approve", "--cluster", "west").status == 0
    store = plan_store(folder)
    assert [len(store.approvals(plan.plan_id)) for plan in (own, foreign)] == [1, 1]


def test_plan_that_is_named_is_approved_whichever_its_cluster(planned: Path, program: Program) -> None:
    folder = open_data_folder(planned, create=False)
    own = chosen_plan(folder, None)
    foreign = seal_plan(replace(own, cluster="west"))
    plan_store(folder).add(foreign)
    said = program(planned, "plan", "approve", "--plan", foreign.plan_id)
    assert said.status == 0, said.err
    assert [len(plan_store(folder).approvals(plan.plan_id)) for plan in (own, foreign)] == [0, 1]


def test_plan_of_another_cluster_is_neither_shown_applied_nor_undone_here(planned: Path, program: Program) -> None:
    folder = open_data_folder(planned, create=False)
    own = chosen_plan(folder, None)
    foreign = seal_plan(replace(own, cluster="west"))
    plan_store(folder).add(foreign)
    plan_store(folder).approve(foreign, [entry.stage for entry in foreign.stages], by="ann", at=foreign.created_at)
    for words in (("plan", "diff"), ("apply", "--yes"), ("undo", "--yes")):
        said = program(planned, *words, "--plan", foreign.plan_id)
        assert said.status == 4, said
        assert "is of cluster 'west', and this enforcer changes 'demo'" in said.err
    assert own.plan_id in program(planned, "plan", "diff").out
    listed = program(planned, "plan", "list", "--cluster", "west", "--format", "json")
    assert [row["plan"] for row in listed.document] == [foreign.plan_id]


def test_weeks_of_a_cluster_are_never_told_as_those_of_another(tmp_path: Path) -> None:
    folder = DataFolder(path=tmp_path)

    def week(day: int, cards: int) -> WeekFacts:
        return WeekFacts(
            week_start=datetime(2026, 1, day, tzinfo=UTC), cards_freed=cards, wasted_per_week=None,
            violation_ratio=None, cards_by_state=(),
        )  # fmt: skip

    # East was the only one; then west came, whose name the settings have.
    keep_week(folder, week(5, 1), cluster="east")
    keep_week(folder, week(12, 2), cluster="west")
    keep_week(folder, week(12, 3), cluster="east", is_apart=True)
    assert [facts.cards_freed for facts in read_weeks(folder, cluster="east")] == [1, 3]
    assert [facts.cards_freed for facts in read_weeks(folder, cluster="west")] == [2]


def test_age_of_the_data_grows_while_a_cluster_is_silent(two: DataFolder) -> None:
    session = Session(
        data_path=two.path, settings=settings_of(cluster={"name": "west"}), now_override=NOW, is_quiet=True
    )
    fleet = views_of(session).fleet
    assert [fleet.freshness(cluster).age_seconds for cluster in ("east", "west")] == [90 * 60, 10 * 60]
    assert fleet.freshness("east").is_doubtful
