"""What the web app says about itself to a scraper."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from dashboards.access.sign_in import Ways
from dashboards.app import create_app
from dashboards.request_hooks import WebMetrics
from tests.dashboards.embedded import make_views
from wire.own_metrics import OwnMetrics

HOST = {"Host": "127.0.0.1:8050"}


def test_requests_are_counted_by_kind_and_status_even_those_that_are_turned_away() -> None:
    client = create_app(make_views(with_past=False)[0], ways=Ways(operator="mei")).server.test_client()
    assert client.get("/api/v1/clusters", headers=HOST).status_code == 200
    assert client.get("/api/v1/clusters/mars/profiles", headers=HOST).status_code == 404
    assert client.get("/", headers={"Host": "evil.example"}).status_code == 403
    answer = client.get("/metrics", headers=HOST)
    assert answer.content_type == "text/plain; version=0.0.4; charset=utf-8"
    families = {family.name: family for family in text_string_to_metric_families(answer.get_data(as_text=True))}
    counts = {
        (sample.labels["kind"], sample.labels["code"]): sample.value
        for sample in families["gputide_web_requests"].samples
    }
    assert counts == {("api", "200"): 1, ("api", "404"): 1, ("page", "403"): 1}
    took = {
        sample.labels["kind"]: sample.value
        for sample in families["gputide_web_request_seconds"].samples
        if sample.name.endswith("_count")
    }
    assert took == {"api": 2, "page": 1}
    assert families["process_resident_memory_bytes"].samples[0].value > 2**20
    listed = OwnMetrics("web")
    WebMetrics(listed)
    assert {metric.name.removesuffix("_total") for metric in listed.listed} == {
        name for name in families if name.startswith("gputide_")
    }


def test_two_apps_in_one_process_count_apart() -> None:
    views, _ = make_views(with_past=False)
    first, second = (create_app(views, ways=Ways(operator="mei")).server.test_client() for _ in range(2))
    first.get("/api/v1/clusters", headers=HOST)
    assert 'kind="api"' in first.get("/metrics", headers=HOST).get_data(as_text=True)
    assert 'kind="api"' not in second.get("/metrics", headers=HOST).get_data(as_text=True)
