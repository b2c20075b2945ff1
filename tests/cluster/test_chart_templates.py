"""The chart renders what is meant, refuses values that are not, and calls the program as it can be called."""

from __future__ import annotations

import json
import os
import re
import runpy
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from fleet.selectors import selects_labels
from fleet.settings.settings import load_settings
from fleet.sleeping import ASLEEP_BYTES
from gputide.answers.routers import routers_answer
from gputide.cli import app
from tests.cluster.api import Manifest
from tests.cluster.helm_release import CHART, EVERYTHING, ROOT, HelmRelease, merged, pods_of, profile
from tests.control_plane import KubernetesPrograms
from tests.recommender.builders import plan_of
from tests.recommender.test_rules import CASES as ADVICE_CASES
from tests.recommender.test_rules import OPTIONS as ADVICE_OPTIONS

pytestmark = pytest.mark.cluster

GOLDEN = Path(__file__).with_name("golden")
CASES: dict[str, Manifest] = {
    "default": {"receiver": {"tokensSecret": "senders"}},
    "embedded": merged(profile("embedded"), {"receiver": {"tokensSecret": "senders"}}),
    "engines": merged(profile("engines"), {"receiver": {"tokensSecret": "senders"}}),
    "enforcer": profile("enforcer"),
    "scan": {"source": "scan", "scan": {"url": "http://prometheus.monitoring.svc:9090"}},
    "everything": EVERYTHING,
    "flink-operator": merged(
        profile("engines"),
        {
            "receiver": {"tokensSecret": "senders"},
            "rollup": {
                "flink": {"rest": "", "deployment": {"enabled": True, "image": "registry.example.com/flink:2.2"}}
            },
        },
    ),
}
USAGE = {"tlsSecret": "a", "caBundle": "b", "frontProxyCa": "c", "frontProxyNames": ["d"]}
OUTLINED = ("default", "engines", "everything")


def routers(*models: Manifest, group: str = "a", server: str = "http://server:8000", **options: str) -> Manifest:
    """Values of one router, of one model unless others are named."""
    filled = [{"server": server, "limit": "24GiB", **one} for one in models or ({"name": "qwen"},)]
    return {"router": {"groups": {group: {"cardBytes": "80GiB", "models": filled, **options}}}}


@pytest.fixture(scope="module")
def release(programs: KubernetesPrograms, tmp_path_factory: pytest.TempPathFactory) -> HelmRelease:
    return HelmRelease(
        helm=programs.helm, kubeconfig=None, home=tmp_path_factory.mktemp("helm"), name="gputide", namespace="gputide"
    )


@pytest.fixture(scope="module")
def rendered(release: HelmRelease) -> dict[str, list[Manifest]]:
    return {name: release.template(values) for name, values in CASES.items()}


def test_lint_finds_nothing(release: HelmRelease, tmp_path: Path) -> None:
    every = tmp_path / "everything.yaml"
    every.write_text(yaml.safe_dump(EVERYTHING), encoding="utf-8")
    files = [every, *(CHART / f"values-{name}.yaml" for name in ("embedded", "engines", "enforcer"))]
    for file in files:
        assert "0 chart(s) failed" in release.run("lint", "--strict", str(CHART), "--values", str(file))


@pytest.mark.parametrize("case", OUTLINED)
def test_outline_is_the_golden_one(rendered: dict[str, list[Manifest]], case: str) -> None:
    found = "\n".join(outline(rendered[case])) + "\n"
    path = GOLDEN / f"chart-{case}.txt"
    if os.environ.get("WRITE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    assert found == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("case", CASES)
def test_every_command_line_is_one_that_the_program_takes(rendered: dict[str, list[Manifest]], case: str) -> None:
    words = [
        container["args"]
        for template in pods_of(rendered[case]).values()
        for container in (*template["spec"]["containers"], *template["spec"].get("initContainers", ()))
    ]
    assert words
    for arguments in words:
        parsed(arguments)
    with pytest.raises(Exception, match="No such option"):
        parsed([*words[0], "--no-such-option"])


@pytest.mark.parametrize("case", CASES)
def test_every_setting_is_one_that_the_program_takes(
    rendered: dict[str, list[Manifest]], case: str, tmp_path: Path
) -> None:
    texts = [
        manifest["data"]["gputide.toml"]
        for manifest in rendered[case]
        if manifest["kind"] == "ConfigMap" and "gputide.toml" in manifest.get("data", {})
    ]
    assert texts
    for text in texts:
        file = tmp_path / "gputide.toml"
        file.write_text(text, encoding="utf-8")
        settings = load_settings(file, {}, {})
        assert settings.cluster.name == tomllib.loads(text)["cluster"]["name"]
    for arguments in (c["args"] for t in pods_of(rendered[case]).values() for c in t["spec"]["containers"]):
        given = dict(arguments[place + 1].split("=", 1) for place, word in enumerate(arguments) if word == "--set")
        load_settings(None, given, {})


def test_settings_of_the_user_go_before_those_of_the_chart(release: HelmRelease) -> None:
    values = {"settings": {"cluster": {"time_zone": "Asia/Tokyo"}, "receiver": {"series_max": 7}}}
    (text,) = (
        manifest["data"]["gputide.toml"] for manifest in release.template(values) if manifest["kind"] == "ConfigMap"
    )
    found = tomllib.loads(text)
    assert found["cluster"] == {"name": "default", "time_zone": "Asia/Tokyo"}
    assert found["receiver"] == {"series_max": 7, "tokens_file": "/secrets/senders/tokens"}


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"recever": {}}, "recever"),
        ({"settings": {"receiver": {"serie_max": 7}}}, "serie_max"),
        ({"image": {"digest": "sha256:12"}}, "digest"),
        ({"source": "prometheus"}, "source"),
        ({"receiver": {"port": 80}}, "port"),
        ({"recommend": {"schedule": "daily"}}, "schedule"),
        ({"data": {"accessMode": "ReadWriteOncePod"}}, "accessMode"),
        ({"source": "scan"}, "scan.url"),
        ({"relief": {"enabled": True}}, "enforcer.enabled=true"),
        ({"dashboard": {"access": "token"}}, "dashboard.rightsSecret"),
        ({"dashboard": {"ingress": {"enabled": True}}}, "dashboard.access"),
        ({"admission": {"enabled": True}}, "admission.tlsSecret"),
        ({"usageApi": {"enabled": True}}, "usageApi.tlsSecret"),
        ({"usageApi": {"enabled": True, "port": 8050, **USAGE}}, "dashboard.port and usageApi.port"),
        ({"usageApi": {"enabled": True, "port": 9402, **USAGE}}, "usageApi.port and savings.port"),
        ({"savings": {"port": 9403}}, "ownMetrics.rollup and savings.port"),
        ({"usageApi": {"enabled": True, "tlsSecret": "a", "caBundle": "b"}}, "usageApi.frontProxyCa"),
        (
            {"usageApi": {"enabled": True, "tlsSecret": "a", "caBundle": "b", "frontProxyCa": "c"}},
            "usageApi.frontProxyNames",
        ),
        ({"usageApi": {"enabled": True}, "dashboard": {"enabled": False}}, "dashboard.enabled=true"),
        ({"rollup": {"engine": "flink"}}, "rollup.flink"),
        (
            {"rollup": {"engine": "flink", "flink": {"image": {"repository": "a"}, "stateClaim": "b", "rest": "http://c"}}},
            "settings.bus.kind=kafka",
        ),
        (
            {"server": {"enabled": False}, "receiver": {"enabled": False}, "enforcer": {"enabled": True}},
            "data.existingClaim",
        ),
        ({"dashboard": {"publicUrl": "http://gpus.example.com"}}, "publicUrl"),
        ({"dashboard": {"access": "token", "rightsSecret": "a", "clientCaSecret": "b"}}, "dashboard.tlsSecret"),
        (
            {"dashboard": {"access": "oidc", "rightsSecret": "a", "publicUrl": "https://a"}},
            "settings.dashboard.oidc_issuer",
        ),
        ({"dashboard": {"access": "token", "rightsSecret": "a", "ingress": {"enabled": True}}}, "dashboard.publicUrl"),
        ({"agent": {"enabled": True}, "nodes": {"vgpuFolder": ""}}, "nodes.vgpuFolder"),
        ({"nodes": {"namespace": "n" * 64}}, "nodes.namespace"),
        ({"server": {"enabled": False}}, "receiver.enabled=false"),
        ({"enforcer": {"enabled": True, "impersonatedUsers": ["ann", "*"]}}, "enforcer.impersonatedUsers"),
        (routers(server="URL of the server of chat/Deployment/qwen"), "/router/groups/a/models/0/server"),
        (routers(group="g" * 16), "g" * 16),
        (routers({"name": "qwen"}, {"name": "qwen"}), "the Service qwen"),
        (routers(clientCaSecret="clients"), "router.groups.a.clientCaSecret"),
    ],
)  # fmt: skip
def test_values_that_do_not_fit_are_refused_by_name(release: HelmRelease, values: Manifest, said: str) -> None:
    assert said in release.refused(values)


@pytest.mark.parametrize("name", ["123", "1e3", "true", "my.release", "a" * 39 + ".b" + "c" * 12])
def test_names_are_ones_that_the_api_server_takes(release: HelmRelease, name: str) -> None:
    for manifest in replace(release, name=name).template(EVERYTHING):
        meta = manifest["metadata"]
        longest = {"CronJob": 52, "Service": 63}.get(manifest["kind"], 253)
        letters = r"[a-z]([-a-z0-9]*[a-z0-9])?" if manifest["kind"] == "Service" else r"[a-z0-9]([-.a-z0-9]*[a-z0-9])?"
        assert len(meta["name"]) <= longest, meta["name"]
        assert re.fullmatch(letters, meta["name"]), meta["name"]
        for label, value in meta["labels"].items():
            assert isinstance(value, str), (label, value)
            assert re.fullmatch(r"[A-Za-z0-9]([-._A-Za-z0-9]{0,61}[A-Za-z0-9])?", value), (label, value)


def test_large_numbers_of_settings_are_written_out(release: HelmRelease) -> None:
    values = {"nodeExporter": {"settings": {"receiver.series_max": 20_000_000, "exporter.interval_seconds": 0.5}}}
    words = pods_of(release.template(values))["DaemonSet/gputide-exporter"]["spec"]["containers"][0]["args"]
    given = dict(words[place + 1].split("=", 1) for place, word in enumerate(words) if word == "--set")
    settings = load_settings(None, given, {})
    assert (settings.receiver.series_max, settings.exporter.interval_seconds) == (20_000_000, 0.5)


@pytest.mark.parametrize("case", ["default", "scan", "everything", "enforcer"])
def test_whoever_mounts_a_volume_of_one_node_goes_where_it_is_mounted(
    rendered: dict[str, list[Manifest]], case: str
) -> None:
    mounting = [template for template in pods_of(rendered[case]).values() if is_on_volume(template["spec"])]
    assert mounting
    for template in mounting:
        (term,) = template["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        # Its own label too: the server starts anew beside who holds the volume, and the first of them anywhere.
        assert term["labelSelector"]["matchLabels"] == {"gputide.io/volume": "gputide-data"}
        assert template["metadata"]["labels"]["gputide.io/volume"] == "gputide-data"


def test_volume_of_many_nodes_binds_nobody(release: HelmRelease) -> None:
    templates = pods_of(release.template(EVERYTHING | {"data": {"accessMode": "ReadWriteMany"}}))
    assert not [name for name, template in templates.items() if "affinity" in template["spec"]]


def test_web_app_is_probed_as_it_listens(release: HelmRelease) -> None:
    def probe(**values: str) -> Any:
        app = {"access": "token", "rightsSecret": "rights", **values}
        pod = pods_of(release.template({"dashboard": app}))["Deployment/gputide"]["spec"]
        (found,) = (one["readinessProbe"] for one in pod["containers"] if one["name"] == "dashboard")
        return found.get("httpGet", found.get("tcpSocket"))

    assert probe() == {"path": "/healthz", "port": "web"}
    assert probe(tlsSecret="t") == {"path": "/healthz", "port": "web", "scheme": "HTTPS"}
    assert probe(tlsSecret="t", clientCaSecret="c") == {"port": "web"}


@pytest.mark.parametrize(
    ("values", "url"),
    [
        ({"ingress": {"enabled": True, "host": "gpus.example.com"}}, "https://gpus.example.com"),
        ({"tlsSecret": "web-tls"}, "https://gputide-dashboard.gputide.svc"),
        ({"tlsSecret": "web-tls", "publicUrl": "https://a.example.com"}, "https://a.example.com"),
    ],
)
def test_web_app_answers_to_the_name_that_it_is_given(release: HelmRelease, values: Manifest, url: str) -> None:
    manifests = release.template({"dashboard": {"access": "token", "rightsSecret": "rights", **values}})
    (text,) = (one["data"]["gputide.toml"] for one in manifests if one["kind"] == "ConfigMap")
    assert tomllib.loads(text)["dashboard"]["public_url"] == url
    (service,) = (
        one for one in manifests if one["metadata"]["name"] == "gputide-dashboard" and one["kind"] == "Service"
    )
    assert service["spec"]["ports"][0]["port"] == (443 if "tlsSecret" in values else 80)


def test_node_parts_fit_other_nodes(release: HelmRelease) -> None:
    values = {
        "nodes": {"kubeletFolder": "/var/lib/k0s/kubelet", "vgpuFolder": ""},
        "nodeExporter": {"privileged": True},
    }
    pod = pods_of(release.template(values))["DaemonSet/gputide-exporter"]["spec"]
    assert [one["hostPath"]["path"] for one in pod["volumes"]] == ["/var/lib/k0s/kubelet/pod-resources"]
    (container,) = pod["containers"]
    assert [one["mountPath"] for one in container["volumeMounts"]] == ["/var/lib/kubelet/pod-resources"]
    assert container["securityContext"] == {"privileged": True, "readOnlyRootFilesystem": True, "runAsUser": 0}


def test_own_metrics_have_a_port_a_way_for_scrapers_and_a_monitor_or_none_of_them(release: HelmRelease) -> None:
    scrapers = [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]
    values = merged(EVERYTHING, {"networkPolicy": {"scrapers": scrapers}})
    processes = ("rollup", "notify", "controller", "planner", "tide", "relief", "agent", "admission", "router")
    shown = release.template(values)
    containers = [container for template in pods_of(shown).values() for container in template["spec"]["containers"]]
    found = {
        port["name"].removeprefix("own-"): (container, port["containerPort"])
        for container in containers
        for port in container.get("ports", ())
        if port["name"].startswith("own-")
    }
    assert set(found) == set(processes)
    for container, port in found.values():
        assert f"exporter.own_listen=0.0.0.0:{port}" in container["args"]
        mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/secrets/scrapers", "/secrets/exporter-tls"} <= mounted
    ways = {
        rule["ports"][0]["port"]: rule["from"]
        for manifest in shown if manifest["kind"] == "NetworkPolicy"
        for rule in manifest["spec"].get("ingress", ()) if "from" in rule
    }  # fmt: skip
    assert [ways[port] for _, port in found.values()] == [scrapers] * len(processes)
    assert {f"own-{name}" for name in processes} <= monitored(shown)
    hidden = release.template(merged(values, {"ownMetrics": dict.fromkeys(processes, 0)}))
    assert not {name for name in monitored(hidden) if name.startswith("own-")}
    assert "exporter.own_listen=" not in yaml.safe_dump_all(hidden)


@pytest.mark.parametrize(("scrapers", "admitted"), [
    (None, {"gputide", "monitoring", "openshift-monitoring"}),
    ([{"namespaceSelector": {}}], {"gputide", "monitoring", "openshift-monitoring", "team-a"}),
    ([], set()),
])  # fmt: skip
def test_ports_that_show_tenants_use_let_in_who_scrapes_and_no_tenant(
    release: HelmRelease, scrapers: list[Manifest] | None, admitted: set[str]
) -> None:
    values = merged(EVERYTHING, {} if scrapers is None else {"networkPolicy": {"scrapers": scrapers}})
    shown = release.template(values)
    ways = [
        rule for manifest in shown if manifest["kind"] == "NetworkPolicy"
        for rule in manifest["spec"].get("ingress", ())
    ]  # fmt: skip
    assert {"metrics", "savings"} <= monitored(shown)
    ports = {
        port["containerPort"] for template in pods_of(shown).values() for container in template["spec"]["containers"]
        for port in container.get("ports", ())
        if port["name"].startswith("own-") or port["name"] in ("metrics", "savings")
    }  # fmt: skip
    for port in ports:
        peers = [peer for rule in ways if rule["ports"][0]["port"] == port for peer in rule["from"]]
        assert {name for name in ("gputide", *sorted(admitted), "team-a") if _lets_in(peers, name)} == admitted


def _lets_in(peers: list[Manifest], namespace: str) -> bool:
    """Whether some peer is all pods of a namespace, by the label that each has with its own name."""
    labels = {"kubernetes.io/metadata.name": namespace}
    return any(selects_labels(peer["namespaceSelector"], labels) and "podSelector" not in peer for peer in peers)


def monitored(manifests: list[Manifest]) -> set[str]:
    """Names of the ports that PodMonitors scrape."""
    monitors = [manifest for manifest in manifests if manifest["kind"] == "PodMonitor"]
    return {endpoint["port"] for monitor in monitors for endpoint in monitor["spec"]["podMetricsEndpoints"]}


def test_services_of_a_router_lead_to_the_ports_of_their_models(rendered: dict[str, list[Manifest]]) -> None:
    found = [
        one for one in rendered["everything"]
        if one["metadata"]["labels"]["app.kubernetes.io/name"] == "gputide-router-a100-3"
    ]  # fmt: skip
    (text,) = (one["data"]["gputide.toml"] for one in found if one["kind"] == "ConfigMap")
    ((name, template),) = pods_of(found).items()
    (container,) = template["spec"]["containers"]
    ports = {one["name"]: one["containerPort"] for one in container["ports"]}
    services = {one["metadata"]["name"]: one["spec"] for one in found if one["kind"] == "Service"}
    section = tomllib.loads(text)["router"]
    assert section["wait_seconds"] == 12
    for model in section["models"]:
        service = services.pop(model["name"])
        assert f"0.0.0.0:{ports[service['ports'][0]['targetPort']]}" == model["listen"]
        assert service["selector"].items() <= template["metadata"]["labels"].items()
    assert not services
    (policy,) = (one["spec"] for one in found if one["kind"] == "NetworkPolicy")
    assert {rule["ports"][0]["port"] for rule in policy["ingress"]} == set(ports.values())
    (deployment,) = (one["spec"] for one in found if f"{one['kind']}/{one['metadata']['name']}" == name)
    assert (deployment["replicas"], deployment["strategy"]) == (1, {"type": "Recreate"})
    assert template["spec"]["terminationGracePeriodSeconds"] > 60
    assert template["spec"]["priorityClassName"] == "chat"
    # By it the servers' own policies let it in, and nobody else.
    assert template["metadata"]["labels"]["gputide.io/role"] == "router"


def test_routers_of_a_plan_are_installed_once_their_servers_are_named(release: HelmRelease, tmp_path: Path) -> None:
    plan = plan_of(ADVICE_CASES["sleep"], **ADVICE_OPTIONS["sleep"])
    values = yaml.safe_load(yaml.safe_dump(routers_answer(plan).document))
    refusal = release.refused(values)
    routed = [model for group in values["router"]["groups"].values() for model in group["models"]]
    assert len(routed) == len(plan.by_hand) == 4
    for place, model in enumerate(routed):
        assert model["server"] in refusal
        model["server"] = f"http://server-{place}.team.svc:8000"
    found = release.template(values)
    texts = [
        one["data"]["gputide.toml"]
        for one in found
        if one["kind"] == "ConfigMap" and "-router-" in one["metadata"]["name"]
    ]
    assert len(texts) == 2
    for text in texts:
        (tmp_path / "gputide.toml").write_text(text, encoding="utf-8")
        router = load_settings(tmp_path / "gputide.toml", {}, {}).router
        assert router.card_bytes == plan.placement[0].framebuffer_bytes
        assert router.wait_seconds == 10.0
        least = max(model.limit for model in router.models) + ASLEEP_BYTES * (len(router.models) - 1)
        assert least <= router.card_bytes
    names = {one["metadata"]["name"] for one in found if one["kind"] == "Service"}
    assert {model["name"] for model in routed} <= names


def test_pods_of_critical_classes_have_the_quota_that_some_clusters_ask_for(
    rendered: dict[str, list[Manifest]],
) -> None:
    quotas = {
        (quota["metadata"]["namespace"], name)
        for quota in rendered["everything"]
        if quota["kind"] == "ResourceQuota"
        for name in quota["spec"]["scopeSelector"]["matchExpressions"][0]["values"]
    }
    assert quotas == {("gputide-nodes", "system-node-critical"), ("gputide", "system-cluster-critical")}


def test_rules_and_dashboards_are_carried_as_they_are(rendered: dict[str, list[Manifest]]) -> None:
    (rule,) = (manifest for manifest in rendered["everything"] if manifest["kind"] == "PrometheusRule")
    assert rule["spec"] == yaml.safe_load((CHART / "files" / "rules.yaml").read_text(encoding="utf-8"))
    assert sum(len(group["rules"]) for group in rule["spec"]["groups"]) > 20
    carried = {
        name: json.loads(text)
        for manifest in rendered["everything"]
        if "grafana_dashboard" in manifest["metadata"].get("labels", {})
        for name, text in manifest["data"].items()
    }
    assert carried == {path.name: json.loads(path.read_bytes()) for path in (CHART / "files" / "dashboards").iterdir()}


def test_pages_of_the_documentation_are_what_the_chart_renders(programs: KubernetesPrograms) -> None:
    made = runpy.run_path(str(ROOT / "deploy" / "helm" / "generate.py"))["manifest_pages"](programs.helm)
    assert set(made) == {path.name for path in (ROOT / "docs").glob("*.yaml")}
    for name, text in made.items():
        assert (ROOT / "docs" / name).read_text(encoding="utf-8") == text, f"run python deploy/helm/generate.py: {name}"


def is_on_volume(spec: Manifest) -> bool:
    return any(one.get("persistentVolumeClaim", {}).get("claimName") == "gputide-data" for one in spec["volumes"])


def parsed(arguments: list[str]) -> None:
    """Read a command line as the program would, down to the last verb, and call nothing."""
    command: Any = typer.main.get_command(app)
    name, left = "gputide", list(arguments)
    while True:
        context = command.make_context(name, left)
        left = [*getattr(context, "_protected_args", ()), *context.args]
        if not isinstance(command, TyperGroup) or not left:
            assert not left, f"{left} is left over of {arguments}"
            return
        verb, command, left = command.resolve_command(context, left)
        name = str(verb)


def outline(manifests: list[Manifest]) -> Iterator[str]:
    """What matters of a release, a line each: objects, rights, who runs what as whom, with what mounted."""
    for manifest in sorted(manifests, key=lambda one: (one["kind"], one["metadata"]["name"])):
        meta = manifest["metadata"]
        where = meta.get("namespace", "cluster")
        yield f"{manifest['kind']} {where}/{meta['name']}"
        for rule in manifest.get("rules", ()):
            named = f" named {','.join(rule['resourceNames'])}" if "resourceNames" in rule else ""
            groups = ",".join(group or "core" for group in rule["apiGroups"])
            yield f"  may {','.join(rule['verbs'])} {','.join(rule['resources'])} of {groups}{named}"
        if manifest["kind"] == "NetworkPolicy":
            spec = manifest["spec"]
            for way in ("ingress", "egress"):
                ports = [str(port["port"]) for rule in spec.get(way, ()) for port in rule["ports"]]
                yield f"  {way}: {','.join(ports) or 'none'}" if way.title() in spec["policyTypes"] else f"  {way}: any"
        for template in pods_of([manifest]).values():
            yield from _pod(template["spec"])


def _pod(spec: Manifest) -> Iterator[str]:
    rights = spec.get("securityContext", {})
    user = rights.get("runAsUser", "its containers'")
    token = "" if spec.get("automountServiceAccountToken", True) else " without token"
    host = " in the host's process ids" if spec.get("hostPID") else ""
    yield f"  as {spec['serviceAccountName']}{token}, user {user}{host}"
    for container in (*spec.get("initContainers", ()), *spec["containers"]):
        own = container["securityContext"]
        assert own["capabilities"] == {"drop": ["ALL"]}, container["name"]
        assert not own["allowPrivilegeEscalation"], container["name"]
        assert own["readOnlyRootFilesystem"], container["name"]
        yield f"  {container['name']} {container['image']}: {' '.join(container['args'][4:])}"
        probes = [kind for kind in ("readinessProbe", "livenessProbe") if kind in container]
        yield f"    probes {','.join(probes) or 'none'}; mounts {' '.join(_mounts(container))}"
    for volume in spec.get("volumes", ()):
        if "hostPath" in volume:
            yield f"  host {volume['hostPath']['path']}"


def _mounts(container: Manifest) -> Iterator[str]:
    for mount in container["volumeMounts"]:
        yield f"{mount['mountPath']}{'' if mount.get('readOnly') else ' (written)'}"
