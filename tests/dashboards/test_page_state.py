"""What a reader chose stays theirs: filters, a plan of its cluster, the language; nothing unseen is claimed."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from flask.testing import FlaskClient

from dashboards.access.namespace_cut import cut_profiles
from dashboards.access.sign_in import Ways
from dashboards.address import read_address
from dashboards.app import create_app
from dashboards.pages.card import holders
from dashboards.pages.downloads import file_of
from dashboards.pages.frame import Reader, top_bar
from dashboards.queries import NotMadeYet
from dashboards.request_hooks import COOKIE
from fleet.profiles import Profiles
from tests.dashboards.embedded import CLUSTER, EmbeddedCluster, EmbeddedFleet, make_plan, make_profiles, make_views

HOST = {"Host": "127.0.0.1:8050"}


@pytest.fixture(scope="module")
def client() -> FlaskClient:
    found: FlaskClient = create_app(make_views()[0], ways=Ways(operator="mei")).server.test_client()
    return found


def asked(client: FlaskClient, part: str, values: dict[str, Any], trigger: str) -> Any:
    """The answer of the callback that sets a part, asked as the page asks."""
    known = client.get("/_dash-dependencies", headers=HOST).get_json()
    found = next(entry for entry in known if part in entry["output"])

    def given(entries: list[dict[str, str]]) -> list[Any]:
        return [
            [] if entry["id"].startswith("{") else {**entry, "value": values.get(f"{entry['id']}.{entry['property']}")}
            for entry in entries
        ]

    names = [name.rpartition(".")[::2] for name in found["output"].strip(".").split("...")]
    body = {
        "output": found["output"],
        "outputs": [[] if name.startswith("{") else {"id": name, "property": prop} for name, prop in names],
        "inputs": given(found["inputs"]),
        "state": given(found["state"]),
        "changedPropIds": [trigger],
    }
    answer = client.post("/_dash-update-component", json=body, headers=HOST)
    assert answer.status_code == 200
    return answer.get_json()["response"]


@pytest.mark.parametrize(
    ("search", "filters"),
    [("?card=GPU-1", {}), ("?node=a10-node-001", {"node": "=a10-node-001"}), ("?state=busy", {"state_word": "=busy"})],
)
def test_address_says_what_the_table_is_filtered_by(client: FlaskClient, search: str, filters: dict[str, str]) -> None:
    values = {"address.search": search, "address.pathname": "/"}
    found = asked(client, "cards-filter.children", values, "address.search")
    assert json.loads(found["cards-grid"]["data-filters"]) == filters


def test_plan_that_is_gone_disables_its_buttons(client: FlaskClient) -> None:
    found = asked(client, "apply-reason.children", {"plan-id.data": "0123456789ab"}, "plan-bump.data")
    assert found["apply-reason"]["children"] == "this plan is gone"
    assert found["plan-poll"]["disabled"] is True


def test_refusal_is_said_in_the_readers_language(client: FlaskClient) -> None:
    client.set_cookie(COOKIE, "zh", domain="127.0.0.1")
    values = {"approve.n_clicks": 1, "plan-id.data": "x", "token.data": "guess", "plan-bump.data": 0}
    found = asked(client, "plan-message.className", values, "approve.n_clicks")
    client.delete_cookie(COOKIE, domain="127.0.0.1")
    assert "请刷新" in json.dumps(found, ensure_ascii=False)


class LateFleet(EmbeddedFleet):
    """A fleet whose first profiles are being made; mutable: the second question is answered."""

    is_asked = False

    def profiles(self, cluster: str) -> Profiles:
        if not self.is_asked:
            self.is_asked = True
            raise NotMadeYet("its history is being read")
        return super().profiles(cluster)


def test_page_that_is_not_made_yet_comes_again_by_itself_until_it_is() -> None:
    views, _ = make_views()
    app = create_app(replace(views, fleet=LateFleet(make_profiles())), ways=Ways(operator="mei")).server.test_client()
    values = {"address.pathname": "/tenants", "address.search": "", "again.n_intervals": 3}
    found = asked(app, "page-key.data", values, "again.n_intervals")
    assert "its history is being read" in json.dumps(found["page"])
    assert found["page-key"]["data"] is None
    assert found["again"]["max_intervals"] > 3, "it is asked for again"
    found = asked(app, "page-key.data", {**values, "again.n_intervals": 4}, "again.n_intervals")
    assert found["again"]["max_intervals"] == 0
    assert found["page-key"]["data"]


def test_other_cluster_is_shown_without_what_was_chosen_in_this_one() -> None:
    address = read_address("/plan", "?cluster=a&plan=1&stages=2&card=GPU-1&range=24h&lang=zh")
    bar = top_bar(address, ("a", "b"), None, None, Reader(name="mei", role="admin", can_sign_out=False))
    text = json.dumps([part.to_plotly_json() for part in bar if getattr(part, "id", "") == "cluster"], default=_plain)
    assert '"/plan?range=24h&lang=zh&cluster=b"' in text


def test_cards_of_a_plan_that_is_applied_are_not_promised_again() -> None:
    views, cluster = make_views(with_past=False)
    app = create_app(views, ways=Ways(operator="mei")).server.test_client()
    (entry,) = cluster.plans(CLUSTER)
    stages = tuple(stage.stage for stage in entry.plan.stages)
    values = {"address.pathname": "/", "address.search": ""}
    assert "whole nodes" in json.dumps(asked(app, "page-key.data", values, "address.search"))
    cluster.approve(entry.plan.plan_id, stages, "mei")
    cluster.apply(entry.plan.plan_id, stages, "mei")
    while cluster.progress(entry.plan.plan_id).is_running:
        pass
    assert "the newest plan is applied" in json.dumps(asked(app, "page-key.data", values, "address.search"))


def test_plan_of_another_cluster_is_not_shown_as_one_of_this() -> None:
    views, _ = make_views()
    plan = replace(make_plan(views.fleet.profiles(CLUSTER)), cluster="beijing-b")
    views = replace(views, plans=EmbeddedCluster(views.fleet.profiles(CLUSTER), (plan,)))
    app = create_app(views, ways=Ways(operator="mei")).server.test_client()
    values = {"address.pathname": "/plan", "address.search": f"?cluster={CLUSTER}&plan={plan.plan_id}"}
    assert f"There is no plan {plan.short_id} for {CLUSTER}" in json.dumps(
        asked(app, "page-key.data", values, "address.search")
    )


def test_card_that_others_share_is_not_said_to_be_had_alone() -> None:
    fleet = make_profiles()
    mine, other = fleet.workloads[0], next(w for w in fleet.workloads if w.namespace != fleet.workloads[0].namespace)
    card = replace(fleet.cards[0], workloads=(mine.workload, other.workload))
    seen = cut_profiles(replace(fleet, cards=(card,)), frozenset({mine.namespace}))
    text = json.dumps(
        [part.to_plotly_json() for part in holders(read_address("/", ""), seen, seen.cards[0])], default=_plain
    )
    assert "alone" not in text
    assert other.workload not in text


def test_file_for_a_spreadsheet_says_that_it_is_unicode_where_it_must() -> None:
    rows = [{"workload": "a/Deployment/b", "state": "闲置"}]
    assert file_of("w", ("workload", "state"), rows, "csv")["content"].startswith("\ufeffworkload,")
    assert file_of("w", ("workload",), rows, "csv")["content"].startswith("workload")


def _plain(part: Any) -> Any:
    return part.to_plotly_json()
