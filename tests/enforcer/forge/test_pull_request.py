"""A plan as a pull request: against GitHub's and GitLab's REST on a real repository."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from enforcer.emit.object_patch import ObjectPatch
from enforcer.forge.forge import Forge, ForgeRequest, RequestState
from enforcer.forge.pull_request import Draft, draft, open_forge, send
from enforcer.forge.rest import is_plain_path
from enforcer.kubernetes.kinds import kind_named
from fleet.errors import Corrupt, Misconfigured, Refused, Unavailable
from fleet.settings.forge import ForgeKind, ForgeSettings
from tests.forge_double import TOKEN, ForgeDouble, forge_double

PLAN = "7f3a" * 16
BRANCH = f"gputide/{PLAN}"
RANKER = """\
# Owned by search. Ask before you scale.
apiVersion: v1
kind: Service
metadata: {name: ranker, namespace: search}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: ranker      # no namespace: Kustomize sets it
spec:
  replicas: 4       # four since May
  template:
    spec:
      containers:
      - name: proxy
        image: "proxy:1"
      - name: server
        resources:
          limits:
            nvidia.com/gpu: 1
            nvidia.com/gpumem: 24k   # a whole card
"""
EDITED = """\
@@ -7,6 +7,8 @@
 kind: Deployment
 metadata:
   name: ranker      # no namespace: Kustomize sets it
+  annotations:
+    gputide.io/plan-id: p1
 spec:
   replicas: 4       # four since May
   template:
@@ -18,4 +20,4 @@
         resources:
           limits:
             nvidia.com/gpu: 1
-            nvidia.com/gpumem: 24k   # a whole card
+            nvidia.com/gpumem: '4000'   # a whole card"""


def a_patch(
    name: str = "ranker", *, was: str = "24000", wanted: str = "4000", namespace: str = "search"
) -> ObjectPatch:
    def manifest(amount: str, marks: dict[str, Any]) -> dict[str, Any]:
        server = {"name": "server", "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": amount}}}
        containers = [{"name": "injected", "image": "mesh"}, server]
        metadata = {"namespace": namespace, "name": name, "resourceVersion": "1", **marks}
        spec = {"replicas": 4, "template": {"spec": {"containers": containers}}}
        return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": metadata, "spec": spec}

    return ObjectPatch(
        kind=kind_named("Deployment"), namespace=namespace, name=name, recommendation="slice-1",
        resource_version="1", is_whole=True, before=manifest(was, {}),
        after=manifest(wanted, {"annotations": {"gputide.io/plan-id": "p1"}}),
    )  # fmt: skip


@pytest.fixture(params=["github", "gitlab"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ForgeDouble]:
    with forge_double(request.param, tmp_path / "repository.git") as found:
        found.write("main", {"clusters/a/ranker.yaml": RANKER, "README.md": "# fleet\n"})
        yield found


@pytest.fixture
def settings(server: ForgeDouble, tmp_path: Path) -> ForgeSettings:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    return ForgeSettings(
        kind=ForgeKind(server.kind), url=server.url, repository="team/fleet", path="clusters/a", token_file=token
    )


@pytest.fixture
def forge(settings: ForgeSettings) -> Forge:
    return open_forge(settings)


def sent(forge: Forge, settings: ForgeSettings, *patches: ObjectPatch, body: str = "why") -> tuple[ForgeRequest, bool]:
    return send(forge, draft(forge, settings, PLAN, patches), title="free 3 cards", body=body)


def test_dry_run_shows_the_smallest_diff_and_sends_nothing(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    found = draft(forge, settings, PLAN, [a_patch()])
    assert "\n".join(found.text.splitlines()[2:]) == EDITED
    assert (found.branch, found.component, found.request) == (BRANCH, None, None)
    assert {call.method for call in server.calls} == {"GET"}
    assert server.head(BRANCH) is None


def test_request_is_opened_once_and_a_second_call_changes_nothing(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    base = server.head("main")
    request, is_changed = sent(forge, settings, a_patch())
    assert (request.number, request.state, is_changed) == (1, RequestState.OPEN, True)
    assert server.requests == [
        {"number": 1, "head": BRANCH, "base": "main", "state": "open", "title": "free 3 cards", "body": "why"}
    ]
    text = server.read(BRANCH, "clusters/a/ranker.yaml")
    assert text.count("\n") == RANKER.count("\n") + 2
    assert server.git("rev-parse", f"{BRANCH}^") == base
    head, calls = server.head(BRANCH), len(server.calls)
    assert sent(forge, settings, a_patch()) == (request, False)
    assert {call.method for call in server.calls[calls:]} == {"GET"}
    assert (server.head(BRANCH), server.head("main")) == (head, base)


def test_further_stage_and_other_words_go_to_the_same_request(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    server.write("main", {"clusters/a/embed.yml": RANKER.replace("ranker", "embed")})
    sent(forge, settings, a_patch())
    first = server.head(BRANCH)
    request, is_changed = sent(forge, settings, a_patch(), a_patch("embed"), body="more")
    assert (request.number, is_changed, request.body) == (1, True, "more")
    assert server.git("rev-parse", f"{BRANCH}^") == first
    assert "'4000'" in server.read(BRANCH, "clusters/a/embed.yml")
    assert len(server.requests) == 1


def test_what_people_change_on_the_branch_stays(forge: Forge, settings: ForgeSettings, server: ForgeDouble) -> None:
    sent(forge, settings, a_patch())
    mended = server.read(BRANCH, "clusters/a/ranker.yaml").replace("replicas: 4", "replicas: 3")
    by_people = server.write(BRANCH, {"clusters/a/ranker.yaml": mended})
    assert sent(forge, settings, a_patch())[1] is False
    assert server.head(BRANCH) == by_people


def test_file_that_somebody_changed_is_a_conflict(forge: Forge, settings: ForgeSettings, server: ForgeDouble) -> None:
    first = draft(forge, settings, PLAN, [a_patch()])
    sent(forge, settings, a_patch())
    other = server.read(BRANCH, "clusters/a/ranker.yaml").replace("'4000'", "9000")
    kept = server.write(BRANCH, {"clusters/a/ranker.yaml": other})
    with pytest.raises(Refused, match="gpumem is 9000, in the cluster 24000"):
        sent(forge, settings, a_patch())
    with pytest.raises(Refused, match="already exists"):
        send(forge, first, title="t", body="b")
    assert server.head(BRANCH) == kept


def test_branch_that_grew_since_it_was_read_is_not_written_over(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    sent(forge, settings, a_patch())
    drafted = draft(forge, settings, PLAN, [a_patch(was="24000", wanted="4000"), a_patch("left")])
    changed = {one.path: "theirs\n" for one in drafted.files}
    kept = server.write(BRANCH, changed)
    with pytest.raises(Refused, match=r"fast forward|file with this name"):
        send(forge, drafted, title="t", body="b")
    assert server.head(BRANCH) == kept


def test_object_without_a_file_or_with_two_becomes_a_component(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    twice = RANKER.replace("ranker", "embed")
    server.write("main", {"clusters/a/one.yaml": twice, "clusters/a/two.yaml": twice, "other/gone.yaml": RANKER})
    found = draft(forge, settings, PLAN, [a_patch(), a_patch("embed"), a_patch("gone")])
    assert [(one.is_edited, one.why) for one in found.placed] == [
        (True, ""), (False, "2 places hold it"), (False, "no file holds it"),
    ]  # fmt: skip
    assert found.component == f"clusters/a/gputide/{PLAN}"
    send(forge, found, title="t", body="b")
    component = yaml.safe_load(server.read(BRANCH, f"{found.component}/kustomization.yaml"))
    assert [one["target"]["name"] for one in component["patches"]] == ["embed", "gone"]
    assert draft(forge, settings, PLAN, [a_patch(), a_patch("embed"), a_patch("gone")]).files == ()


def test_component_keeps_the_patches_of_stages_that_were_sent_before(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    sent(forge, settings, a_patch("first"))
    server.merge()
    sent(forge, settings, a_patch("second"))
    folder = f"clusters/a/gputide/{PLAN}"
    component = yaml.safe_load(server.read(BRANCH, f"{folder}/kustomization.yaml"))
    assert [one["target"]["name"] for one in component["patches"]] == ["first", "second"]
    for entry in component["patches"]:
        assert f"name: {entry['target']['name']}\n" in server.read(BRANCH, f"{folder}/{entry['path']}")
    assert draft(forge, settings, PLAN, [a_patch("first"), a_patch("second")]).files == ()


def test_component_that_grows_by_another_namespace_leaves_manifests_without_one_alone(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    sent(forge, settings, a_patch("api", namespace="one"))
    path = f"clusters/a/gputide/{PLAN}/kustomization.yaml"
    assert "namespace: (one|default)" in server.read(BRANCH, path)
    sent(forge, settings, a_patch("api", namespace="two"))
    component = yaml.safe_load(server.read(BRANCH, path))
    assert [one["target"]["namespace"] for one in component["patches"]] == ["one", "two"]


def test_json_patch_takes_the_place_of_one_that_is_not_merged_and_follows_one_that_is(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    def rollout(was: str, wanted: str) -> ObjectPatch:
        return replace(a_patch(was=was, wanted=wanted, namespace="far"), kind=kind_named("Rollout"))

    def patches() -> list[str]:
        folder = f"clusters/a/gputide/{PLAN}"
        component = yaml.safe_load(server.read(BRANCH, f"{folder}/kustomization.yaml"))
        return [server.read(BRANCH, f"{folder}/{one['path']}") for one in component["patches"]]

    sent(forge, settings, rollout("24000", "8000"))
    sent(forge, settings, rollout("24000", "4000"))
    (alone,) = patches()
    assert "4000" in alone
    server.merge()
    sent(forge, settings, rollout("4000", "2000"))
    first, second = patches()
    assert first == alone
    assert "2000" in second


def test_component_that_people_made_another_is_left_alone(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    server.write("main", {f"clusters/a/gputide/{PLAN}/kustomization.yaml": "patches: none\n"})
    with pytest.raises(Refused, match="something else than a list of patches"):
        draft(forge, settings, PLAN, [a_patch("first")])


def test_manifests_of_others_are_not_parsed(forge: Forge, settings: ForgeSettings, server: ForgeDouble) -> None:
    others = "---\n".join(RANKER.replace("ranker", f"other-{number}") for number in range(1500))
    server.write("main", {f"clusters/a/others/{number}.yaml": others for number in range(3)})
    began = time.process_time()
    assert draft(forge, settings, PLAN, [a_patch()]).placed[0].is_edited
    assert time.process_time() - began < 4  # parsing 2 MB takes longer


def test_merged_request_is_shown_and_the_next_stage_opens_another(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    sent(forge, settings, a_patch())
    server.merge()
    request, is_changed = sent(forge, settings, a_patch())
    assert (request.number, request.state, is_changed) == (1, RequestState.MERGED, False)
    again, _ = sent(forge, settings, a_patch(), a_patch("later"))
    assert (again.number, again.state) == (2, RequestState.OPEN)


def test_closed_request_stays_closed(forge: Forge, settings: ForgeSettings, server: ForgeDouble) -> None:
    sent(forge, settings, a_patch())
    server.requests[0]["state"] = "closed"
    with pytest.raises(Refused, match="closed without being merged"):
        sent(forge, settings, a_patch())


def test_base_branch_is_never_written(forge: Forge, settings: ForgeSettings, server: ForgeDouble) -> None:
    own = settings.model_copy(update={"base_branch": BRANCH})
    with pytest.raises(Refused, match=r"forge\.base_branch"):
        draft(open_forge(own), own, PLAN, [a_patch()])
    missing = settings.model_copy(update={"base_branch": "trunk"})
    with pytest.raises(Misconfigured, match="no such branch"):
        draft(open_forge(missing), missing, PLAN, [a_patch()])


def test_token_goes_to_no_other_host(forge: Forge, server: ForgeDouble, tmp_path: Path) -> None:
    with forge_double(server.kind, tmp_path / "thief.git") as thief:
        server.redirect = f"{thief.url}/steal"
        with pytest.raises(Misconfigured, match="redirects are not followed"):
            forge.head("main")
        assert thief.calls == []


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://git.example.org/api/v4", "http would show the token"),
        ("https://169.254.169.254/api", "metadata"),
        ("https://[::ffff:169.254.169.254]/", "metadata"),
        ("https://0xa9fea9fe/", "metadata"),
        ("https://me:secret@git.example.org", "password"),
        ("file:///etc/passwd", "expected http"),
    ],
)
def test_address_that_would_leak_the_token_is_refused(settings: ForgeSettings, url: str, said: str) -> None:
    with pytest.raises(Misconfigured, match=said):
        open_forge(settings.model_copy(update={"url": url}))


def test_wrong_token_is_said_and_not_shown(settings: ForgeSettings, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("another-secret-token")
    with pytest.raises(Misconfigured, match=r"401.*forge\.token_file") as raised:
        open_forge(settings).head("main")
    assert "another-secret-token" not in str(raised.value)


def test_repository_that_is_not_there_is_said(settings: ForgeSettings) -> None:
    elsewhere = settings.model_copy(update={"repository": "team/nothing"})
    with pytest.raises(Misconfigured, match=r"no such branch|404"):
        draft(open_forge(elsewhere), elsewhere, PLAN, [a_patch()])


def test_large_tree_is_read_whole_or_not_at_all(forge: Forge, server: ForgeDouble) -> None:
    server.write("main", {f"clusters/a/other/{number}.yaml": "a: 1\n" for number in range(120)})
    head = str(server.head("main"))
    assert len(forge.files(head)) == 121
    if server.kind == "github":  # GitLab has pages, and cuts none
        server.too_long = True
        with pytest.raises(Unavailable, match=r"forge\.path"):
            forge.files(head)


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b'{"commit": {"sha": 7}}', b'{"commit": {"id": null}}'])
def test_answer_that_is_none_is_said(forge: Forge, server: ForgeDouble, answer: bytes, monkeypatch: Any) -> None:
    monkeypatch.setattr("tests.forge_double.json.dumps", lambda _: answer.decode())
    with pytest.raises(Corrupt):
        forge.head("main")


@pytest.mark.parametrize(
    ("path", "is_plain"),
    [
        ("a/b.yaml", True), ("../a", False), ("a/../b", False), ("/a", False), ("a//b", False), (".git/config", False),
        ("a/.GIT/x", False), ("a\\b", False), ("c:x", False), ("a\nb", False), ("a/./b", False), ("", False),
    ],
)  # fmt: skip
def test_path_of_a_forge_stays_in_the_repository(path: str, is_plain: bool) -> None:
    assert is_plain_path(path) is is_plain


@pytest.mark.parametrize("name", ["../../.github/workflows/x", "a/b", "a\nb"])
def test_name_of_an_object_can_not_leave_the_folder(
    name: str, forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    found = draft(forge, settings, PLAN, [a_patch(name)])
    assert found.component is not None
    assert all(one.path.startswith(f"{found.component}/") and ".." not in one.path.split("/") for one in found.files)


@pytest.mark.parametrize("value", ["../x", "team/../x", "team//x", "team/.git", "a b/c", "team/x?y", "team/x#y"])
def test_repository_of_the_settings_is_a_plain_name(value: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"repository|part"):
        ForgeSettings(kind=ForgeKind.GITHUB, repository=value, token_file=tmp_path / "t")


def test_draft_has_nothing_to_send_where_the_repository_says_it(
    forge: Forge, settings: ForgeSettings, server: ForgeDouble
) -> None:
    found: Draft = draft(forge, settings, PLAN, [a_patch()])
    server.write("main", {found.files[0].path: found.files[0].text})
    with pytest.raises(Refused, match="says all"):
        sent(forge, settings, a_patch())
