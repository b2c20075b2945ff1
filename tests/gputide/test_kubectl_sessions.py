"""Which cluster a call of `kubectl gputide` means: the one that kubectl would, and copies of no other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from fleet.errors import Misconfigured
from gputide.cli import arranged
from gputide.kubectl.program import KUBECTL_VERBS, app
from gputide.kubectl.sessions import data_path, plugin_session
from gputide.session import Session


@pytest.fixture
def kubeconfig(tmp_path: Path) -> Path:
    return written(tmp_path / "kubeconfig", "a")


def written(path: Path, current: str) -> Path:
    names = ("a", "b")
    document = {
        "current-context": current,
        "clusters": [{"name": name, "cluster": {"server": f"https://{name}.example:6443"}} for name in names],
        "users": [{"name": "u", "user": {"token": "secret"}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": "u"}} for name in names],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document), encoding="utf-8")
    return path


def session(*assignments: str, kubeconfig: Path | None = None, context: str | None = None, **environ: str) -> Session:
    return plugin_session(kubeconfig=kubeconfig, context=context, config=None, assignments=assignments, environ=environ)


def test_named_kubeconfig_is_meant_in_a_pod_too(kubeconfig: Path, tmp_path: Path) -> None:
    """Without a path of a kubeconfig, a pod's own cluster would be frozen or changed instead."""
    assert session(KUBECONFIG=str(kubeconfig), HOME="/nowhere").settings.enforcer.kubeconfig == kubeconfig
    usual = written(tmp_path / ".kube" / "config", "a")
    assert session(HOME=str(tmp_path)).settings.enforcer.kubeconfig == usual
    assert session(HOME="/nowhere").settings.enforcer.kubeconfig is None
    own = session(f"enforcer.kubeconfig={usual}", KUBECONFIG=str(kubeconfig))
    assert own.settings.enforcer.kubeconfig == usual


def test_context_that_no_kubeconfig_has_is_refused() -> None:
    with pytest.raises(Misconfigured, match="cannot use context prod: there is no kubeconfig"):
        session(context="prod", HOME="/nowhere")
    with pytest.raises(Misconfigured, match="several files; name one by --kubeconfig"):
        session(KUBECONFIG="/a:/b")


def test_clusters_have_no_copies_in_common(kubeconfig: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = data_path(session(KUBECONFIG=str(kubeconfig)))
    assert data_path(session(KUBECONFIG=str(kubeconfig))) == first
    written(kubeconfig, "b")
    assert data_path(session(KUBECONFIG=str(kubeconfig))) != first
    found = set()
    for folder in ("one", "two"):
        written(tmp_path / folder / "config", "a")
        monkeypatch.chdir(tmp_path / folder)
        found.add(data_path(session(kubeconfig=Path("config"))))
    assert len(found) == 2


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-n search top", "top -n search"),
        ("-A top cards", "top -A cards"),
        ("--namespace=search --context prod why p", "--context prod why --namespace=search p"),
        ("top -n top --kubeconfig k", "--kubeconfig k top -n top"),
    ],
)
def test_options_of_kubectl_may_stand_before_the_verb(given: str, meant: str) -> None:
    program = typer.main.get_command(app)
    found = arranged(program, typer.Context(program), given.split())  # type: ignore[arg-type]
    assert found.arguments == meant.split()


@pytest.mark.parametrize("verb", [verb.name for verb in KUBECTL_VERBS])
def test_help_of_a_verb_asks_no_cluster(tmp_path: Path, verb: str) -> None:
    nowhere = ["--kubeconfig", str(tmp_path / "missing")]
    said = CliRunner().invoke(app, [*nowhere, verb, "--help"])
    assert said.exit_code == 0, said.exception
    assert f"kubectl gputide {verb}" in said.output
    # A freeze of the folder of copies would be said to stop every change, and stop nobody's but ours.
    assert "--freeze" not in said.output
