"""A plan as files: applied by hand, they lead where the rollout would."""

from __future__ import annotations

import copy
import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.backends.hami import HamiBackend
from enforcer.emit.files import kubectl_files
from enforcer.emit.kustomize import COMPONENT_FILE, commit_branch, helm_files, kustomize_files
from enforcer.emit.object_patch import ObjectPatch, object_patches, of_repositories
from enforcer.kubernetes.kinds import kind_named
from enforcer.manifest import field_of
from enforcer.preview import ObjectDiff, preview
from fleet.errors import Misconfigured, Refused, Unavailable
from tests.enforcer.builders import NOW, a_cluster, standard_plan

Json = dict[str, Any]


@pytest.fixture
def patches(tmp_path: Path) -> tuple[ObjectPatch, ...]:
    """Return the patches of a plan of two stages and three recommendations."""
    found = preview(standard_plan(), a_cluster(tmp_path), HamiBackend(NOW))
    return object_patches([diff for stage in found for diff in stage.objects])


def commands(script: str) -> list[list[str]]:
    return [shlex.split(line) for line in script.splitlines() if line.startswith("kubectl")]


def patched(manifest: Json, operations: list[Json]) -> Json:
    """A manifest after a JSON patch, by the letter of RFC 6902 as far as it is used."""
    found = copy.deepcopy(manifest)
    for operation in operations:
        parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
        holder: Any = found
        for part in parts[:-1]:
            holder = holder[int(part)] if isinstance(holder, list) else holder[part]
        key: Any = int(parts[-1]) if isinstance(holder, list) else parts[-1]
        if operation["op"] == "test":
            assert holder[key] == operation["value"], operation
        elif operation["op"] == "remove":
            del holder[key]
        else:
            assert operation["op"] == "add" or key in holder, operation
            holder[key] = operation["value"]
    return found


def merged(base: Any, patch: Any) -> Any:
    """Strategic merge, as far as it is used: maps by key, lists of named items by name."""
    if isinstance(patch, list) and all(isinstance(item, Mapping) and "name" in item for item in patch):
        found = {item["name"]: item for item in base or []}
        for item in patch:
            if item.get("$patch") == "delete":
                found.pop(item["name"], None)
            else:
                found[item["name"]] = merged(found.get(item["name"], {}), item)
        return list(found.values())
    if isinstance(patch, Mapping):
        result = dict(base or {})
        for key, value in patch.items():
            if value is None:
                result.pop(key, None)
            else:
                result[key] = merged(result.get(key), value)
        return result
    return patch


def spoken(manifest: Mapping[str, Any]) -> Json:
    found = {key: copy.deepcopy(value) for key, value in manifest.items() if key != "status"}
    for field in ("resourceVersion", "uid", "generation", "creationTimestamp"):
        found["metadata"].pop(field, None)
    return found


def test_script_applies_what_the_preview_shows_and_the_other_takes_it_back(patches: tuple[ObjectPatch, ...]) -> None:
    files = kubectl_files("p1", patches)
    before = {patch.key: spoken(patch.before) for patch in reversed(patches) if patch.is_whole}
    objects = copy.deepcopy(before)
    for script in ("apply.sh", "restore.sh"):
        ordered = patches if script == "apply.sh" else tuple(reversed(patches))
        for patch, words in zip(ordered, commands(files[script]), strict=True):
            assert words[2:4] == [patch.kind.resource, patch.name]
            if patch.is_whole:
                operations = json.loads(words[-1])
                plain = [entry for entry in operations if entry["path"] != "/metadata/resourceVersion"]
                objects[patch.key] = patched(objects[patch.key], plain)
        if script == "apply.sh":
            after = {patch.key: spoken(patch.after) for patch in patches if patch.is_whole}
            assert objects == after
    assert objects == before


def test_first_patch_of_an_object_depends_on_its_version(patches: tuple[ObjectPatch, ...]) -> None:
    for patch, words in zip(patches, commands(kubectl_files("p1", patches)["apply.sh"]), strict=True):
        assert (patch.resource_version or "no version") in words[-1]


def test_strategic_patch_leads_to_the_same_object_whatever_the_order_of_its_containers(
    patches: tuple[ObjectPatch, ...],
) -> None:
    seen = 0
    for patch in patches:
        if not (patch.is_whole and patch.merges_by_name):
            continue
        base = spoken(patch.before)
        containers = base["spec"]["template"]["spec"]["containers"]
        containers.insert(0, {"name": "sidecar", "image": "proxy"})
        result = merged(base, patch.strategic_patch)
        assert result["spec"]["template"]["spec"]["containers"][0] == {"name": "sidecar", "image": "proxy"}
        for path in ("spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]", "spec.replicas"):
            assert field_of(result, path) == field_of(dict(patch.after), path)
        seen += 1
    assert seen >= 3


def test_component_names_every_file_and_no_pod(patches: tuple[ObjectPatch, ...]) -> None:
    files = kustomize_files(of_repositories(patches))
    component = yaml.safe_load(files[COMPONENT_FILE])
    assert (component["kind"], [entry["path"] for entry in component["patches"]]) == (
        "Component",
        [name for name in files if name != COMPONENT_FILE],
    )
    kinds = {entry["target"]["kind"] for entry in component["patches"]}
    assert kinds == {"Deployment", "Notebook"}
    notebook = next(entry for entry in component["patches"] if entry["target"]["kind"] == "Notebook")
    assert notebook["target"]["group"] == "kubeflow.org"
    # Kustomize knows nothing of a notebook's lists.
    assert isinstance(yaml.safe_load(files[notebook["path"]]), list)


def test_helm_gets_a_post_renderer_with_the_same_component(patches: tuple[ObjectPatch, ...]) -> None:
    own = of_repositories(patches)
    files = helm_files("p1", own)
    assert {name.removeprefix("component/"): text for name, text in files.items() if name != "post-render.sh"} == dict(
        kustomize_files(own)
    )
    assert subprocess.run(["sh", "-n"], input=files["post-render.sh"], text=True, check=False).returncode == 0


def a_patch(
    name: str, *, namespace: str = "team", gpumem: str = "4000", recommendation: str = "slice-1"
) -> ObjectPatch:
    def manifest(limits: Json, marks: Json) -> Json:
        template = {"spec": {"containers": [{"name": "server", "resources": {"limits": limits}}]}}
        metadata = {"namespace": namespace, "name": name, "resourceVersion": "1", **marks}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": {"template": template}}

    return ObjectPatch(
        kind=kind_named("Deployment"), namespace=namespace, name=name, recommendation=recommendation,
        resource_version="1", is_whole=True, before=manifest({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "24"}, {}),
        after=manifest(
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": gpumem}, {"annotations": {"gputide.io/plan-id": "p1"}}
        ),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("written", "served"), [("4000", "4k"), ("40960", "40960"), ("12000000", "12M"), ("0", "0"), ("500", "500")]
)
def test_way_back_expects_amounts_as_the_server_writes_them(written: str, served: str) -> None:
    (words,) = commands(kubectl_files("p1", [a_patch("a", gpumem=written)])["restore.sh"])
    tests = [entry for entry in json.loads(words[-1]) if entry["op"] == "test" and entry["path"].endswith("gpumem")]
    assert [entry["value"] for entry in tests] == [served]


def test_target_means_one_object_though_kustomize_reads_its_name_as_an_expression() -> None:
    component = yaml.safe_load(kustomize_files([a_patch("a.b")])[COMPONENT_FILE])
    (target,) = (entry["target"] for entry in component["patches"])
    assert [re.fullmatch(target["name"], name) is not None for name in ("a.b", "axb")] == [True, False]


def test_manifest_that_names_no_namespace_is_patched_unless_two_could_be_meant() -> None:
    component = yaml.safe_load(
        kustomize_files([a_patch("a"), a_patch("b"), a_patch("b", namespace="x")])[COMPONENT_FILE]
    )
    # Kustomize takes a manifest without a namespace for one of `default`.
    assert [entry["target"]["namespace"] for entry in component["patches"]] == ["(team|default)", "team", "x"]


def test_file_of_an_object_with_the_longest_name_has_a_name_that_systems_take() -> None:
    patches = [a_patch("a" * 253), a_patch("a" * 253, namespace="x" * 63)]
    names = [name for name in kustomize_files(patches) if name != COMPONENT_FILE]
    assert len(names) == 2
    assert max(map(len, names)) <= 255


def test_text_of_a_plan_can_not_leave_its_comment() -> None:
    patch = a_patch("a", recommendation="slice-1\nrm -rf $HOME")
    (script, _), kustomize = kubectl_files("p1", [patch]).values(), kustomize_files([patch])
    assert not [line for line in script.splitlines() if line.startswith("rm")]
    assert [line for text in kustomize.values() for line in text.splitlines() if line.startswith("rm")] == []


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl holds Kustomize")
def test_release_without_namespaces_is_patched_and_a_foreign_one_is_refused(tmp_path: Path) -> None:
    for name, text in helm_files("p1", [a_patch("a.b")]).items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def release(*names: str) -> subprocess.CompletedProcess[str]:
        manifests = [copy.deepcopy(dict(a_patch(name).before)) for name in names]
        for manifest in manifests:
            del manifest["metadata"]["namespace"]
        script = ["sh", str(tmp_path / "post-render.sh")]
        return subprocess.run(script, input=yaml.safe_dump_all(manifests), capture_output=True, text=True, check=False)

    done = release("a.b", "axb")
    limits = {
        found["metadata"]["name"]: field_of(
            found, "spec.template.spec.containers[server].resources.limits[nvidia.com/gpumem]"
        )
        for found in yaml.safe_load_all(done.stdout)
    }
    assert limits == {"a.b": "4000", "axb": "24"}
    foreign = release("axb")
    assert (foreign.returncode, foreign.stdout) == (1, "")
    assert "changes none of its objects" in foreign.stderr


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{name}_NAME", "somebody")
        monkeypatch.setenv(f"GIT_{name}_EMAIL", "somebody@example.org")
    folder = tmp_path / "repository"
    folder.mkdir()
    for words in (("init", "-q"), ("commit", "-q", "--allow-empty", "-m", "first")):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    return folder


def git(repository: Path, *words: str) -> str:
    return subprocess.run(["git", "-C", str(repository), *words], check=True, capture_output=True, text=True).stdout


def test_branch_has_one_commit_per_recommendation(patches: tuple[ObjectPatch, ...], repository: Path) -> None:
    own = of_repositories(patches)
    branch = commit_branch(repository, "p1", own)
    subjects = git(repository, "log", "--format=%s", "--reverse", f"HEAD..{branch}").splitlines()
    assert subjects == [f"gputide {name} of plan p1" for name in dict.fromkeys(patch.recommendation for patch in own)]
    # Each commit alone is a component that names what is there.
    for number in range(len(subjects)):
        commit = f"{branch}~{number}"
        listed = set(git(repository, "ls-tree", "--name-only", f"{commit}:gputide/p1").split())
        component = yaml.safe_load(git(repository, "show", f"{commit}:gputide/p1/{COMPONENT_FILE}"))
        assert {entry["path"] for entry in component["patches"]} | {COMPONENT_FILE} == listed
    assert git(repository, "status", "--porcelain") == ""
    assert not (repository / "gputide").exists()


def test_branch_that_is_there_and_folder_that_is_no_repository_are_refused(
    patches: tuple[ObjectPatch, ...], repository: Path, tmp_path: Path
) -> None:
    commit_branch(repository, "p1", of_repositories(patches))
    with pytest.raises(Refused, match="there already"):
        commit_branch(repository, "p1", of_repositories(patches))
    with pytest.raises(Misconfigured, match="no Git repository"):
        commit_branch(tmp_path, "p1", patches)


def test_branch_that_could_not_be_finished_is_taken_away_again(
    patches: tuple[ObjectPatch, ...], repository: Path
) -> None:
    hook = repository / ".git" / "hooks" / "pre-commit"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\necho not today >&2\nexit 1\n")
    hook.chmod(0o755)
    with pytest.raises(Unavailable, match="not today"):
        commit_branch(repository, "p1", of_repositories(patches))
    assert git(repository, "branch", "--list", "gputide/*") == ""
    assert len(git(repository, "worktree", "list").splitlines()) == 1
    hook.unlink()
    assert commit_branch(repository, "p1", of_repositories(patches)) == "gputide/p1"


def test_plan_that_was_merged_already_is_refused(patches: tuple[ObjectPatch, ...], repository: Path) -> None:
    branch = commit_branch(repository, "p1", of_repositories(patches))
    git(repository, "merge", "-q", "--ff-only", branch)
    git(repository, "branch", "-D", branch)
    with pytest.raises(Refused, match="holds gputide/p1 already"):
        commit_branch(repository, "p1", of_repositories(patches))
    assert git(repository, "branch", "--list", "gputide/*") == ""


def test_words_of_a_tenant_stay_words(tmp_path: Path) -> None:
    hostile = "$(touch pwned)'; touch pwned; #\n- op: remove"
    before = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a", "annotations": {}}}
    after = copy.deepcopy(before)
    after["metadata"]["annotations"]["note"] = hostile  # type: ignore[index]
    diff = ObjectDiff(
        kind="Deployment", namespace="team", name="a", recommendation="slice-1", resource_version="1",
        before=yaml.safe_dump(before), after=yaml.safe_dump(after),
    )  # fmt: skip
    (patch,) = object_patches([diff])
    script = kubectl_files("p1", [patch])["apply.sh"].replace("kubectl patch", "printf '%s\\n' patch")
    said = subprocess.run(["sh"], input=script, text=True, capture_output=True, cwd=tmp_path, check=True).stdout
    assert json.loads(said.splitlines()[-1])[-1]["value"] == hostile
    assert not (tmp_path / "pwned").exists()
    (text,) = [text for name, text in kustomize_files([patch]).items() if name != COMPONENT_FILE]
    assert yaml.safe_load(text)["metadata"]["annotations"]["note"] == hostile


CLAIM = "kind: ResourceClaimTemplate\nmetadata:\n  name: it's-ours\n  namespace: team\n"


def test_objects_that_patches_name_are_made_before_them(patches: tuple[ObjectPatch, ...]) -> None:
    files = kubectl_files("p1", patches, [CLAIM])
    first = next(line for line in files["apply.sh"].splitlines() if line.startswith(("printf", "kubectl")))
    assert first.startswith("printf")
    (words, *_) = [shlex.split(part) for part in [files["apply.sh"].partition("set -eu\n")[2].partition("\n#")[0]]]
    assert words[:3] == ["printf", "%s\\n", CLAIM]
    assert words[3:] == ["|", "kubectl", "apply", "--server-side", "--field-manager=gputide", "--filename=-"]
    assert "it's-ours" not in files["restore.sh"]
    component = kustomize_files(patches, [CLAIM, CLAIM])
    assert yaml.safe_load(component["kustomization.yaml"])["resources"] == ["made.yaml"]
    assert len(list(yaml.safe_load_all(component["made.yaml"]))) == 2
    assert "component/made.yaml" in helm_files("p1", patches, [CLAIM])
    assert "resources" not in yaml.safe_load(kustomize_files(patches)["kustomization.yaml"])
