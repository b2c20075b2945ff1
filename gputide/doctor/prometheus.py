"""The area Prometheus: reach first, then everything that a scan or the receiver needs of it, and the field's traps."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from fleet.errors import Corrupt, Misconfigured, Unavailable
from fleet.sentences import sentence
from fleet.settings.scan import ScanSettings
from fleet.settings.settings import Settings
from gputide.doctor import prometheus_labels as labels
from gputide.doctor import prometheus_server as server
from gputide.doctor import prometheus_values as values
from gputide.doctor.finding import Area, Check, Diagnosis, Look, a_check, finding, well
from gputide.doctor.prometheus_scene import OTHER_CARD_NAMES, Scene
from gputide.scanning.queries import scan_endpoint, scan_options
from pipeline.history.prometheus import PrometheusHistory
from wire.http_client import HttpClient
from wire.prometheus_query import PrometheusQuery

REACH = "reach"
_AGENT = "gputide-doctor"
_ANSWER_BYTES_MAX = 32 << 20
_HISTORY_BYTES_MAX = 8 << 20
_SERIES_MAX = 100_000
_QUERY_SECONDS_MAX = 10.0


def prometheus_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of the server at `scan.url`.

    Raises:
        Misconfigured: the address, a file or a matcher of `scan` can't be used.
    """
    if settings.scan.url is None:
        raise Misconfigured(
            "cannot look at a Prometheus: scan.url=none; say "
            "`gputide --set scan.url=https://prometheus.example:9090 doctor prometheus`"
        )
    scene, history, url = asked_server(settings.scan)
    return (
        _check(REACH, partial(_reach, scene), "unreachable refuses no-cards partial", needs=None),
        _check("measures", partial(values.measured, scene), "sm-active-missing framebuffer-missing "
               "framebuffer-free-missing duty-cycle-missing encoder-missing power-missing xid-last-only"),
        _check("kube-state-metrics", partial(values.facts, scene), "owners-missing requests-missing "
               "pod-labels-missing"),
        _check("profiling", partial(values.profiled_cards, scene), "sm-active-partial mig-without-activity"),
        _check("spinning", partial(values.spinning, scene), "duty-cycle-spins"),
        _check("pre-allocation", partial(values.preallocated, scene), "preallocated"),
        _check("sources", partial(values.contradicting, scene, settings.provenance), "sources-contradict"),
        _check("units", partial(values.units, scene, history, url), "unit-mixed"),
        _check("values", partial(values.impossible, scene), "blank-values hami-memory-impossible hami-zero-while-busy"),
        _check("counters", partial(values.untrusted, scene), "counter-untrusted"),
        _check("driver", partial(values.resets, scene), "driver-reset"),
        _check("renames", partial(values.vanished, scene), "metric-vanished"),
        _check("pods on cards", partial(labels.pods_named, scene), "pods-missing pods-partly-missing"),
        _check("pod labels", partial(labels.pod_labels, scene), "honor-labels pod-labels-old"),
        _check("speakers", partial(labels.speakers, scene, settings.provenance), "target-untrusted"),
        _check("tenants", partial(labels.exporter_as_pod, scene), "exporter-as-pod"),
        _check("node names", partial(labels.hostnames, scene), "hostname-is-no-node"),
        _check("shared cards", partial(labels.shared_cards, scene), "one-pod-wins card-value-copied card-beside-pods"),
        _check("HAMi names", partial(labels.hami, scene), "hami-monitor-missing hami-both-names hami-old-names"),
        _check("grants", partial(labels.stale_grants, scene), "hami-stale-grant volcano-pod-ambiguous"),
        _check("copies", partial(labels.cards_once, scene), "card-scraped-twice several-clusters"),
        _check("coverage", partial(labels.measured_nodes, scene), "node-unmeasured pod-silent"),
        _check("card models", partial(labels.card_models, scene), "card-model-unknown"),
        _check("identities", partial(labels.identities, scene), "card-identity-changed pod-name-reused"),
        _check("clock", partial(server.clock, scene), "clock-skew samples-in-future"),
        _check("history", partial(server.kept, scene), "history-short"),
        _check("interval", partial(server.interval, scene), "interval-long"),
        _check("query limits", partial(server.limits, scene), "query-limit"),
        _check("rules", partial(server.rules, scene, url), "recording-lags"),
        _check("remote write", partial(server.remote_write, scene, url), "remote-write-fails"),
        _check("relabelling", partial(server.dropped, scene), "metric-dropped"),
        _check("targets", partial(server.targets, scene), "target-down"),
    )  # fmt: skip


def asked_server(scan: ScanSettings) -> tuple[Scene, PrometheusHistory, str]:
    """A server that is asked once and not patiently: what checks share of it, its samples, its address.

    Raises:
        Misconfigured: the address, a file or a matcher can't be used.
    """
    endpoint = scan_endpoint(scan)
    http = HttpClient(endpoint, _AGENT)
    options = replace(
        scan_options(scan, endpoint), bytes_max=_ANSWER_BYTES_MAX, bytes_setting=None,
        seconds_max=_QUERY_SECONDS_MAX, series_max=_SERIES_MAX, attempts_max=1, take_partial=True,
    )  # fmt: skip
    history = PrometheusHistory(http, replace(options, bytes_max=_HISTORY_BYTES_MAX), pause=time.sleep)
    return Scene(PrometheusQuery(http, options), scan), history, endpoint.server


def _check(name: str, look: Look, codes: str, needs: str | None = REACH) -> Check:
    full = " ".join(f"prometheus-{code}" for code in codes.split())
    return a_check(Area.PROMETHEUS, name, look, full, seconds_max=30.0, needs=needs)


def _reach(scene: Scene) -> Iterator[Diagnosis]:
    """Whether it answers, as what, and whether it has cards."""
    server_url = scene.ask.server
    try:
        scene.ask.number("vector(1)")
        names = scene.names
    except Unavailable as exc:
        yield finding("prometheus-unreachable", exc.said, subject=server_url)
        return
    except (Misconfigured, Corrupt) as exc:
        yield finding("prometheus-refuses", exc.said, subject=server_url)
        return
    told = scene.ask.state("/api/v1/status/buildinfo")
    version = told.get("version", "") if isinstance(told, dict) else ""
    if scene.ask.work.partial:
        yield finding("prometheus-partial", scene.ask.work.partial[0], subject=server_url)
    if scene.base is None and not scene.has(*OTHER_CARD_NAMES):
        text = sentence("doctor.found.other_metrics", names=len(names))
        yield finding("prometheus-no-cards", text, subject=server_url)
        return
    answer = sentence("doctor.found.answers", server=server_url)
    if version:
        answer = sentence("doctor.found.answers_as", server=server_url, version=version)
    yield well(answer)
