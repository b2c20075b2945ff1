"""promtool itself plays the rules: one fleet, told by each exporter in its own words, gets the same answers."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from dashboards.grafana.shipped import prometheus_rule, rule_files, yaml_text
from fleet.settings.settings import AnalyzerSettings, Settings
from fleet.units import GIB
from tests.engines.go_peers import GoPeers
from tests.engines.grafana_fleet import (
    CARDS,
    MODEL,
    A,
    B,
    C,
    D,
    Series,
    dcgm_and_hami_words,
    dcgm_and_old_hami_words,
    gputide_words,
    own_processes,
    savings_words,
)

pytestmark = pytest.mark.engines

# Idle after two hours instead of a day: what is played is shorter, the rules are the same.
SETTINGS = Settings(analyzer=AnalyzerSettings(idle_seconds=7200))
OWN_HOURS = 6
OWN_STEPS = OWN_HOURS * 60
GROWING = ("refused_full_total", "corrupt_bodies_total", "reviews_total")
RANK = 'gputide:workload:activity_ratio:max5m{cluster="c1",namespace="ads",workload="rank",workload_kind="Deployment"}'
WORDS = [gputide_words, dcgm_and_hami_words, dcgm_and_old_hami_words]


def test_rule_files_and_the_operators_object_are_valid(go_peers: GoPeers, tmp_path: Path) -> None:
    for name, text in rule_files(SETTINGS).items():
        (tmp_path / name).write_text(text)
    groups = prometheus_rule(SETTINGS, namespace="monitoring")["spec"]
    (tmp_path / "operator.rules.yaml").write_text(yaml_text(groups))
    for path in sorted(tmp_path.iterdir()):
        promtool(go_peers, "check", "rules", "--lint=all", "--lint-fatal", str(path))


@pytest.mark.parametrize("words", WORDS)
def test_each_exporters_words_get_the_same_states_and_alerts(
    words: Callable[[], tuple[Series, ...]], go_peers: GoPeers, tmp_path: Path
) -> None:
    states = {A: "idle_held", B: "busy", C: "free", D: "untrusted"}
    held = {"research": (A, "nb"), "chat": (B, "chat"), "batch": (B, "etl"), "ads": (D, "rank")}
    fired = {
        "GputideCardsIdleHeld": 1,
        "GputideFramebufferLow": 1,
        "GputideCardHot": 1,
        "GputideCardXid": 1,
        "GputideProgramXid": 1,
        "GputideCounterUntrusted": 1,
        "GputideLowPriorityBesideHigh": 1,
    }
    play(
        go_peers,
        tmp_path,
        words(),
        [
            (
                "max by (card, state) (gputide:card:state)",
                {f'{{card="{c}", state="{s}"}}': 1 for c, s in states.items()},
            ),
            (
                "max by (namespace, card, workload) (gputide:slice:workload)",
                {f'{{card="{c}", namespace="{n}", workload="{w}"}}': 1 for n, (c, w) in held.items()},
            ),
            (
                "max by (card) (gputide:card:tenants)",
                {f'{{card="{A}"}}': 1, f'{{card="{B}"}}': 2, f'{{card="{D}"}}': 1},
            ),
            ("sum by (card) (gputide:card:framebuffer_used_bytes)", {
                f'{{card="{A}"}}': 20 * 2**30, f'{{card="{B}"}}': 23.8 * 2**30, f'{{card="{C}"}}': 0,
                f'{{card="{D}"}}': 6 * 2**30,
            }),
            ("max by (card) (gputide:card:xid_last15m)", {f'{{card="{C}"}}': 13, f'{{card="{D}"}}': 79}),
            ("max by (card) (gputide:card:low_beside_high)", {f'{{card="{B}"}}': 0.3}),
            ('sum by (namespace, state) (gputide:namespace:cards)', {
                '{namespace="research", state="idle_held"}': 1, '{namespace="chat", state="busy"}': 0.5,
                '{namespace="batch", state="busy"}': 0.5, '{namespace="ads", state="untrusted"}': 1,
            }),
            (
                'count by (alertname) (ALERTS{alertstate="firing"})',
                {f'{{alertname="{name}"}}': count for name, count in fired.items()},
            ),
        ],
    )  # fmt: skip


def test_two_exporters_of_one_fleet_count_each_card_once(go_peers: GoPeers, tmp_path: Path) -> None:
    both = (*gputide_words(), *dcgm_and_hami_words())
    play(
        go_peers,
        tmp_path,
        both,
        [
            ("count(gputide:card:activity_ratio)", {"{}": 4}),
            ("count(gputide:card:state)", {"{}": 4}),
            ("count(gputide:slice:granted)", {"{}": 4}),
            ("sum(gputide:card:framebuffer_used_bytes)", {"{}": 49.8 * 2**30}),
        ],
        hours=2,
    )


GRANTED = "namespace, container, node, card, workload, framebuffer_bytes, framebuffer_granted_bytes"
SAID = "pod, workload_kind, priority, server, cpu_request_cores, memory_request_bytes, labels, started_at"


@pytest.mark.parametrize("words", WORDS[1:])
def test_without_our_exporters_the_rules_say_who_was_granted_what(
    words: Callable[[], tuple[Series, ...]], go_peers: GoPeers, tmp_path: Path
) -> None:
    size = f'framebuffer_bytes="{24 * GIB}"'
    held = [
        ("ads", D, "node-2", "rank", 12), ("batch", B, "node-1", "etl", 8), ("chat", B, "node-1", "chat", 16),
        ("research", A, "node-1", "nb", None),
    ]  # fmt: skip
    grants = {
        f'{{namespace="{namespace}", container="main", node="{node}", card="{card}", workload="{workload}", {size}'
        + ("" if granted is None else f', framebuffer_granted_bytes="{granted * GIB}"')
        + "}": 1.0
        for namespace, card, node, workload, granted in held
    }
    cards = {f'{{node="{card.node}", card="{card.uuid}", {size}}}': 1.0 for card in CARDS}
    chat = (
        '{pod="chat-7f9c4d5b6f-x2x4z", workload_kind="Deployment", priority="high", server="vllm/vllm-openai:v0.9", '
        'cpu_request_cores="4.5", memory_request_bytes="1073741824", started_at="1700000000", '
        r'labels="{\"gputide.io/opt-out\":\"true\",\"gputide.io/server\":\"vllm\"}"}'
    )
    play(
        go_peers,
        tmp_path,
        (*words(), *chat_by_kube_state_metrics()),
        [
            (f"group by ({GRANTED}) (gputide:slice:info)", grants),
            ("group by (node, card, framebuffer_bytes, mig_mode) (gputide:card:info)", cards),
            (
                "group by (node, cpu_cores, memory_bytes, provider_id) (gputide:node:info)",
                {
                    '{node="node-1", cpu_cores="96", memory_bytes="1099511627776", provider_id="aws:///a/i-1"}': 1.0,
                    '{node="node-2"}': 1.0,
                },
            ),
            (f'group by ({SAID}) (gputide:slice:info{{namespace="chat"}})', {chat: 1.0}),
        ],
        hours=2,
    )


def chat_by_kube_state_metrics() -> tuple[Series, ...]:
    """What kube-state-metrics says of the busy service's pod, of a container beside it, and of one node."""
    pod = {"namespace": "chat", "pod": "chat-7f9c4d5b6f-x2x4z"}
    main, proxy = {**pod, "container": "main"}, {**pod, "container": "proxy"}
    requests = "kube_pod_container_resource_requests"
    return (
        Series(name=requests, labels={**main, "resource": "cpu"}, value=4.5),
        Series(name=requests, labels={**main, "resource": "memory"}, value=2**30),
        Series(name=requests, labels={**main, "resource": "nvidia_com_priority"}, value=0),
        Series(name=requests, labels={**proxy, "resource": "cpu"}, value=1),
        Series(name="kube_pod_container_info", labels={**main, "image_spec": "vllm/vllm-openai:v0.9"}, value=1),
        Series(name="kube_pod_container_info", labels={**proxy, "image_spec": "envoy:1"}, value=1),
        Series(name="kube_pod_created", labels=pod, value=1_700_000_000),
        Series(
            name="kube_pod_labels",
            labels={
                **pod, "label_gputide_io_opt_out": "true", "label_gputide_io_server": "vllm",
                "label_gputide_io_isolation": r'hard\",\"gputide.io/apart',
            },
            value=1,
        ),
        Series(name="kube_node_status_allocatable", labels={"node": "node-1", "resource": "cpu"}, value=96),
        Series(name="kube_node_status_allocatable", labels={"node": "node-1", "resource": "memory"}, value=2**40),
        Series(name="kube_node_info", labels={"node": "node-1", "provider_id": "aws:///a/i-1"}, value=1),
    )  # fmt: skip


def test_where_our_exporters_speak_the_rules_name_nobody_else(go_peers: GoPeers, tmp_path: Path) -> None:
    own = [
        *gputide_words(),
        *(Series(name="gputide_card_info", labels={"node": card.node, "card": card.uuid}, value=1) for card in CARDS),
        Series(name="gputide_node_info", labels={"cluster": "c1", "node": "node-1"}, value=1),
    ]
    play(
        go_peers,
        tmp_path,
        (*own, *dcgm_and_hami_words()),
        [
            ("count(gputide:slice:info)", {}),
            ("count(gputide:card:info)", {}),
            ("count by (node) (gputide:node:info)", {'{node="node-2"}': 1.0}),
        ],
        hours=2,
    )


def test_a_card_that_two_jobs_scrape_under_two_names_of_its_node_is_granted_once(
    go_peers: GoPeers, tmp_path: Path
) -> None:
    labels = {"UUID": A, "modelName": MODEL, "exported_namespace": "ns", "exported_pod": "p"}
    play(
        go_peers,
        tmp_path,
        [
            Series(name=f"DCGM_FI_DEV_{name}", labels={**labels, "Hostname": node}, value=1024)
            for node in ("n1", "10.0.0.1")
            for name in ("FB_USED", "FB_FREE", "GPU_UTIL")
        ],
        [("count(gputide:slice:info)", {"{}": 1.0}), ("count(gputide:card:info)", {"{}": 1.0})],
        hours=2,
        only=("gputide-cards", "gputide-slices", "gputide-inventory"),
    )


def test_shared_cards_of_dcgm_exporter_are_counted_as_they_are_shared(go_peers: GoPeers, tmp_path: Path) -> None:
    def of(uuid: str, pod: str, **more: str) -> dict[str, str]:
        return {
            "UUID": uuid,
            "Hostname": "n",
            "modelName": "M",
            "exported_namespace": "ns",
            "exported_pod": pod,
            **more,
        }

    found = []
    for number, (pod, busy) in enumerate((("mig-0", 0.9), ("mig-1", 0.1))):
        labels = of(A, pod, GPU_I_ID=str(number), GPU_I_PROFILE="3g.20gb")
        found.append(Series(name="DCGM_FI_PROF_GR_ENGINE_ACTIVE", labels=labels, value=busy))
        found.append(Series(name="DCGM_FI_DEV_FB_USED", labels=labels, value=1024 * (number + 1)))
        found.append(Series(name="DCGM_FI_DEV_FB_FREE", labels=labels, value=20_480 - 1024 * (number + 1)))
        # Without the per-process mode each pod repeats the card's own figure; with it, it has its own.
        found.append(Series(name="DCGM_FI_DEV_FB_USED", labels=of(B, f"r-{number}", vgpu=str(number)), value=4096))
        labels = of(C, f"p-{number}", vgpu=str(number), pod_uid=f"u{number}")
        found.append(Series(name="DCGM_FI_DEV_FB_USED", labels=labels, value=1024))
    play(
        go_peers,
        tmp_path,
        found,
        [
            (
                "sum by (card) (gputide:card:framebuffer_used_bytes)",
                {f'{{card="{A}"}}': 3 * 2**30, f'{{card="{B}"}}': 4 * 2**30, f'{{card="{C}"}}': 2 * 2**30},
            ),
            ("sum by (card) (gputide:card:activity_ratio)", {f'{{card="{A}"}}': 0.9}),
            (
                "sum by (card, pod, mig_profile, framebuffer_bytes) (gputide:slice:info)",
                {
                    f'{{card="{A}", pod="mig-{number}", mig_profile="3g.20gb", framebuffer_bytes="{40 * GIB}"}}': 1.0
                    for number in range(2)
                },
            ),
            (
                "sum by (card, mig_mode) (gputide:card:info)",
                {f'{{card="{A}", mig_mode="true"}}': 1.0},
            ),
            (
                "sum by (pod) (gputide:slice:framebuffer_used_bytes)",
                {
                    '{pod="mig-0"}': 2**30,
                    '{pod="mig-1"}': 2 * 2**30,
                    '{pod="p-0"}': 2**30,
                    '{pod="p-1"}': 2**30,
                },
            ),
        ],
        hours=2,
    )


def test_gputides_own_processes_are_watched(go_peers: GoPeers, tmp_path: Path) -> None:
    fired = (
        "GputidePlanHarms", "GputidePlanSavesLess", "GputidePlanWaits", "GputideWarehouseBehind",
        "GputideOffPeakPromiseBroken", "GputideClusterSilent",
        "GputideRemoteWriteBehind", "GputideReceiverRefuses", "GputideReceiverCorruptBodies", "GputideExporterStale",
        "GputideRollupStalled", "GputidePodsUnpinned",
    )  # fmt: skip
    play(
        go_peers,
        tmp_path,
        (*(one for one in own_processes() if not one.name.endswith(GROWING)), *savings_words()),
        [
            (
                'count by (alertname) (ALERTS{alertstate="firing"})',
                {f'{{alertname="{name}"}}': 1.0 for name in fired} | {'{alertname="GputideEnforcerStalled"}': 3.0},
            )
        ],
        more={
            **{one.selector: f"0+1x{OWN_STEPS}" for one in own_processes() if one.name.endswith(GROWING)},
            # At work in an hour in which it is promised to be low.
            RANK: f"0.8x{OWN_STEPS}",
        },
        hours=OWN_HOURS,
    )


def test_two_quiet_weeks_are_a_promise_and_breaking_it_is_told(go_peers: GoPeers, tmp_path: Path) -> None:
    # Four minutes a step: at work by day, at rest by night, and in the third week's first night at work.
    day = "0.9x179 0x179"
    series = 'gputide:workload:activity_ratio:max5m{namespace="ads",workload="rank",workload_kind="Deployment"}'
    nights = " ".join([day] * 14)
    play(
        go_peers,
        tmp_path,
        (),
        [
            ("max by (workload) (gputide:workload:off_peak_limit_ratio)", {'{workload="rank"}': 0.2 * 0.9}),
            ('count by (alertname) (ALERTS{alertstate="firing"})', {'{alertname="GputideOffPeakPromiseBroken"}': 1}),
        ],
        more={series: f"{nights} 0.9x359"},
        interval="4m",
        at="14d18h",
        only=("gputide-promises", "gputide-alerts-services"),
    )


def play(
    peers: GoPeers,
    folder: Path,
    series: Sequence[Series],
    expected: Sequence[tuple[str, dict[str, float]]],
    *,
    more: dict[str, str] | None = None,
    interval: str = "1m",
    hours: int = 4,
    at: str | None = None,
    only: tuple[str, ...] = (),
) -> None:
    """Let promtool play the rules over the series and compare what they say at the end."""
    for name, text in rule_files(SETTINGS).items():
        content: dict[str, Any] = yaml.safe_load(text)
        if only:
            # Weeks are played: a look at each step does.
            content["groups"] = [
                {**group, "interval": interval} for group in content["groups"] if group["name"] in only
            ]
        (folder / name).write_text(yaml.safe_dump(content))
    inputs = [{"series": one.selector, "values": one.notation(hours * 60)} for one in series]
    inputs += [{"series": selector, "values": values} for selector, values in (more or {}).items()]
    test = {
        "rule_files": sorted(rule_files(SETTINGS)),
        "evaluation_interval": interval,
        "tests": [
            {
                "interval": interval,
                "input_series": inputs,
                "promql_expr_test": [
                    {
                        "expr": expression,
                        "eval_time": at or f"{hours - 1}h59m",
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in rows.items()],
                    }
                    for expression, rows in expected
                ],
            }
        ],
    }
    path = folder / "rules.test.yaml"
    path.write_text(yaml.safe_dump(test, sort_keys=False))
    promtool(peers, "test", "rules", str(path))


def promtool(peers: GoPeers, *arguments: str) -> None:
    """Run promtool; its complaint is the failure."""
    done = subprocess.run([str(peers.promtool), *arguments], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
