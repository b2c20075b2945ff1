"""Plays a folder of `scenarios/` on a real API server: `run.sh` as a user types it, then what must come out.

`fleet.toml` says which services stand on which cards (`bench.recorded_fleet`), `gputide.toml` holds the settings, and
`expected.toml` bounds a few values of what the verbs wrote, each with the reason. `objects.yaml`, where there is one,
stands on the cluster too, and with `demand.toml` node agents answer (`bench.scenario_agents`). Once `run.sh` has undone
everything, every object must be as it was before it began.
"""

from __future__ import annotations

import json
import operator
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml

from bench.live_cluster import admitted_plane, programs
from bench.measured_run import GPUTIDE, ROOT, print_bar, print_unmeasured
from bench.recorded_fleet import stand_up_fleet
from bench.scenario_agents import agents
from fleet.errors import Misconfigured, Unavailable
from gputide.operate.engine_cache import default_cache_path
from tests.cluster.api import Api
from tests.cluster.hami_plugins import EFFECTIVE_GPU, HamiPlugins
from tests.cluster.mgpu_rules import MgpuRules
from tests.cluster.played_backends import (
    ClaimsPlayed,
    HamiPlayed,
    PlayedBackend,
    PluginPlayed,
    RulesPlayed,
    played_backends,
)
from tests.engines.go_peers import GoPeers, build_go_peers

BAR = "run.sh ends well, what comes out is within its bounds, and undo leaves every object byte for byte as it was"
KEPT_FOLDER_VARIABLE = "SCENARIO_KEEP"
"""Names the folder that all that was written is copied to."""

HOLDS = {"equals": operator.eq, "min": operator.ge, "max": operator.le}
PLAYED: dict[str, PlayedBackend] = {
    played.name: played
    for played in (
        PluginPlayed("whole_cards"),
        *played_backends(),
        HamiPlayed(name="effectivegpu"),
        RulesPlayed(name="mgpu", rules=MgpuRules()),
        PluginPlayed("nvidia_time_slicing"),
        PluginPlayed("nvidia_mps"),
        PluginPlayed("mig"),
        ClaimsPlayed(name="dra_consumable", is_counted=True),
    )
}
"""Backends by the name that the setting `enforcer.backend` gives."""

_PLUGINS: dict[str, tuple[str, ...]] = {"hami": (), "effectivegpu": EFFECTIVE_GPU}
_KINDS = (
    "/api/v1/nodes", "/api/v1/configmaps", "/apis/apps/v1/daemonsets", "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets", "/apis/batch/v1/jobs", "/apis/resource.k8s.io/v1/resourceclaimtemplates",
    "/apis/resource.k8s.io/v1/resourceclaims",
)  # fmt: skip
_OF_SERVER = ("resourceVersion", "generation", "managedFields")
_OF_CONTROLLERS = ("deployment.kubernetes.io/", "hami.io/mutex.lock")
"""Beginnings of annotations; HAMi's plugin takes its lock off a node a moment after a pod is ready."""


def play(name: str, backend: str | None = None) -> None:
    """Play one scenario on the backend of its settings, or on this one where they name none, and print its line."""
    folder = ROOT / "scenarios" / name
    settings = tomllib.loads((folder / "gputide.toml").read_text(encoding="utf-8"))
    name = name if backend is None else f"{name}-{backend}"
    backend = backend or settings["enforcer"]["backend"]
    try:
        found = programs()
        peers = build_go_peers(default_cache_path(), tell=lambda text: None)
    except Unavailable as absence:
        print_unmeasured(f"scenario-{name}", BAR, str(absence))
        return
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as parts:
        here = Path(scratch) / name
        shutil.copytree(folder, here)
        played = PLAYED[backend]
        ground = parts.enter_context(admitted_plane(found, Path(scratch) / "plane", played))
        if played.name in _PLUGINS:
            parts.enter_context(HamiPlugins(ground.api, *_PLUGINS[played.name]))
        fleet = stand_up_fleet(folder / "fleet.toml", ground.api, ground.approver, played)
        if (here / "objects.yaml").exists():
            for manifest in yaml.safe_load_all((here / "objects.yaml").read_text(encoding="utf-8")):
                ground.api.apply(manifest)
        (here / "fleet.pickle").write_bytes(pickle.dumps(fleet))
        before = objects(ground.api)
        environ = {"GPUTIDE_ENFORCER__KUBECONFIG": str(ground.approver), "GPUTIDE_ENFORCER__BACKEND": backend}
        if (here / "demand.toml").exists():
            asked = agents(ground.api, played, fleet.inventory.cards, here / "demand.toml")
            environ["GPUTIDE_RELIEF__AGENTS"] = ",".join(parts.enter_context(asked))
        said = _run(here, environ, peers)
        (here / "said.txt").write_text(said.stdout + said.stderr, encoding="utf-8")
        after = objects(ground.api)
        missed = [f"run.sh: {said.stderr.strip()[-600:]}"] if said.returncode else list(missed_checks(here, backend))
        came = {} if said.returncode else _came_of(here)
        if kept := os.environ.get(KEPT_FOLDER_VARIABLE):
            shutil.copytree(here, kept, dirs_exist_ok=True)
    # gputide may delete nothing, so claims that it made stay, and nobody names them any more.
    left = {name for name in after if name not in before and name.startswith("resourceclaim")}
    changed = [
        f"{name}: {_differs(before.get(name, ''), after.get(name, ''))}"
        for name in sorted((before.keys() | after.keys()) - left)
        if before.get(name) != after.get(name)
    ]
    print_bar(
        f"scenario-{name}", f"{len(missed)} checks missed, {len(changed)} of {len(before)} objects changed", BAR,
        holds=not missed and not changed, missed=missed, changed=changed[:5], claims_left=len(left), **came,
    )  # fmt: skip


def _came_of(here: Path) -> dict[str, Any]:
    """What a plan promised, and what `verify` says of it."""
    plan, outcome = (json.loads((here / name).read_text(encoding="utf-8")) for name in ("plan.json", "verify.json"))
    return {
        "planned": plan["totals"]["cards_freed"], "freed": outcome["realised_cards_freed"],
        "harm": outcome["verdict"]["observed_ratio"], "verdict": outcome["verdict"]["level"],
    }  # fmt: skip


def _differs(before: str, after: str) -> str:
    """Where two texts begin to differ."""
    alike = next((at for at, pair in enumerate(zip(before, after, strict=False)) if pair[0] != pair[1]), 0)
    start = max(0, alike - 60)
    return f"{before[start : start + 160]!r}, now {after[start : start + 160]!r}"


def objects(api: Api) -> dict[str, str]:
    """Text of every object that a change could touch, without what the server numbers and controllers count."""
    found = {}
    for path in _KINDS:
        for one in api.ask("GET", path)["items"]:
            if any(owner["kind"] == "Pod" for owner in one["metadata"].get("ownerReferences", ())):
                # A claim that lives and dies with its pod.
                continue
            own = {key: value for key, value in one["metadata"].items() if key not in _OF_SERVER}
            notes = own.get("annotations", {})
            own["annotations"] = {key: value for key, value in notes.items() if not key.startswith(_OF_CONTROLLERS)}
            name = f"{path.rpartition('/')[2]} {own.get('namespace', '')}/{own['name']}"
            found[name] = json.dumps([own, one.get("spec"), one.get("data")], sort_keys=True)
    return found


def missed_checks(here: Path, backend: str) -> Iterator[str]:
    """What of `expected.toml` does not hold of what was written, in words; some checks are for some backends alone.

    Raises:
        Misconfigured: a check names no file, or bounds nothing.
    """
    for check in tomllib.loads((here / "expected.toml").read_text(encoding="utf-8"))["checks"]:
        if backend not in check.get("backends", (backend,)):
            continue
        bounds = {word: check[word] for word in HOLDS if word in check}
        if not bounds or not check["files"]:
            raise Misconfigured(f"cannot check {check['path']}: it needs files and one of {', '.join(HOLDS)}")
        for name in check["files"]:
            # JSON is YAML, and rules for Prometheus are YAML alone.
            found = values_at(yaml.safe_load((here / name).read_text(encoding="utf-8")), check["path"].split("."))
            if not found:
                yield f"{name}: nothing is at {check['path']}: {check['why']}"
            for value in found:
                if value is None or not all(HOLDS[word](value, bound) for word, bound in bounds.items()):
                    yield f"{name}: {check['path']} is {value}, not {bounds}: {check['why']}"


def values_at(document: Any, path: Sequence[str]) -> list[Any]:
    """What stands at a path of keys, each value to be held against the bounds; empty where a list has no item for it.

    Of a list `key=value` keeps some items, `#` counts them, a key of a ratio gives that of each, and another the sum.
    """
    if not path:
        return [document]
    word, rest = path[0], path[1:]
    if not isinstance(document, list):
        return values_at(document[word], rest)
    if word == "#":
        return [len(document)]
    key, is_chosen, value = word.partition("=")
    if is_chosen:
        kept = [one for one in document if str(one.get(key)) == value]
        return values_at(kept, rest) if rest else kept
    found = [value for one in document for value in values_at(one, path)]
    if path[-1].endswith("_ratio") or None in found or (not found and path[-1] != "#"):
        return found
    return [round(sum(found), 6)]


def _run(here: Path, own: Mapping[str, str], peers: GoPeers) -> subprocess.CompletedProcess[str]:
    """Call `run.sh` where the program, its settings, `record`, `probe` and Prometheus' `promtool` are at hand."""
    hands = here / "bin"
    hands.mkdir()
    modules = {
        "record": "bench.recorded_fleet fleet.pickle", "look": "bench.scenario_stands fleet.pickle",
        "probe": "bench.probed_node",
    }  # fmt: skip
    for name, module in modules.items():
        (hands / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        (hands / name).chmod(0o755)
    environ = {
        **os.environ, "PYTHONPATH": str(ROOT),
        "PATH": f"{hands}:{GPUTIDE.parent}:{peers.promtool.parent}:{os.environ['PATH']}",
        "GPUTIDE_CONFIG": "gputide.toml", "GPUTIDE_DATA_DIR": "data", **own,
    }  # fmt: skip
    return subprocess.run(["bash", "run.sh"], cwd=here, env=environ, check=False, capture_output=True, text=True)
