"""What the options of `kubectl gputide` say, as a session of the command line, and the client that verbs look by."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_path

from fleet.errors import Misconfigured
from fleet.settings.settings import ClusterSettings, Settings, changed_settings, load_settings
from gputide.kubectl.objects import ClusterObjects
from gputide.session import Session, assigned
from wire.kubernetes.access import context_namespace, find_access

_SETTING = "enforcer.kubeconfig"
_UNSET = Settings()


def plugin_session(
    *,
    kubeconfig: Path | None,
    context: str | None,
    config: Path | None,
    assignments: Sequence[str],
    environ: Mapping[str, str],
) -> Session:
    """The session of a call; verbs that change something get a data folder by `session_to_change`.

    A kubeconfig is looked for where kubectl looks: a pod's own cluster is meant only where there is none.

    Raises:
        Misconfigured: unknown setting or bad value; or a context is named, and no kubeconfig has it.
    """
    chosen = {"enforcer.cluster": "kubernetes"}
    if kubeconfig is not None:
        chosen[_SETTING] = str(kubeconfig)
    if context is not None:
        chosen[f"{_SETTING}_context"] = context
    settings = load_settings(config, {**chosen, **assigned(assignments)}, environ)
    if settings.enforcer.kubeconfig is None:
        found = _kubeconfig(environ)
        if found is not None:
            settings = changed_settings(settings, {_SETTING: str(found)})
        elif settings.enforcer.kubeconfig_context is not None:
            raise Misconfigured(
                f"cannot use context {settings.enforcer.kubeconfig_context[:253]}: there is no kubeconfig; name one by "
                "--kubeconfig"
            )
    cache = user_cache_path("gputide", appauthor=False) / "kubectl"
    return Session(data_path=cache, settings=settings, now_override=None, is_quiet=False)


def _kubeconfig(environ: Mapping[str, str]) -> Path | None:
    """The file that kubectl would read; None where there is none."""
    named = environ.get("KUBECONFIG")
    if named:
        if os.pathsep in named:
            raise Misconfigured(f"cannot use KUBECONFIG={named}: several files; name one by --kubeconfig")
        return Path(named)
    usual = Path(environ.get("HOME") or Path.home()) / ".kube" / "config"
    return usual if usual.exists() else None


def data_path(session: Session) -> Path:
    """Folder of the copies of what a cluster keeps: another for each API server, and for each kubeconfig.

    The current context may be another at the next call, and clusters may bear the same name.

    Raises:
        Misconfigured: there is no way into the cluster.
    """
    enforcer = session.settings.enforcer
    server = find_access(enforcer.kubeconfig, enforcer.kubeconfig_context, setting=_SETTING)
    file = None if enforcer.kubeconfig is None else enforcer.kubeconfig.expanduser().resolve()
    name = None if server.tls is None else server.tls.server_name
    place = f"{file} {enforcer.kubeconfig_context} {server.host} {server.port} {server.path} {name}"
    return session.data_path / hashlib.sha256(place.encode()).hexdigest()[:16]


def session_to_change(session: Session) -> Session:
    """The session with a data folder, the cluster's name by its plans, and the backend that these were made for.

    Raises:
        Misconfigured: its plans are of several clusters, and no setting names one.
        Unavailable: the cluster can't be reached.
    """
    settings = session.settings
    session = replace(session, data_path=data_path(session))
    if settings.cluster.name == ClusterSettings().name:
        with cluster_objects(session) as objects:
            names = sorted({str(head["spec"]["cluster"]) for head in objects.plans()})
        if len(names) > 1:
            raise Misconfigured(
                f"cannot choose: this cluster keeps plans of {', '.join(names[:10])}; say --set cluster.name=NAME"
            )
        if names:
            settings = changed_settings(settings, {"cluster.name": names[0]})
    from gputide.container.plans import copied_plans

    session = replace(session, settings=settings)
    newest = copied_plans(session.folder(create=True), settings).newest(settings.cluster.name)
    if newest is not None and settings.enforcer.backend == _UNSET.enforcer.backend:
        settings = changed_settings(settings, {"enforcer.backend": newest.backend})
    return replace(session, settings=settings)


@contextmanager
def cluster_objects(session: Session) -> Iterator[ClusterObjects]:
    """What reads objects of the session's cluster.

    Raises:
        Misconfigured: there is no way into it; or in the block, an object lacks what we know it by.
    """
    enforcer = session.settings.enforcer
    objects = ClusterObjects(enforcer.kubeconfig, enforcer.kubeconfig_context)
    try:
        yield objects
    except KeyError as exc:
        raise Misconfigured(
            f"cannot read what the cluster serves: it says no {exc}; this program and the cluster's gputide are of "
            "different versions"
        ) from exc
    finally:
        objects.close()


def chosen_namespace(session: Session, named: str | None, *, every: bool) -> str | None:
    """The namespace that is meant: the one named, else the context's; None for all.

    Raises:
        Misconfigured: one was named, and all were asked for.
    """
    if every and named is not None:
        raise Misconfigured(f"cannot use -n {named[:253]} with -A: say one namespace, or all")
    if every:
        return None
    enforcer = session.settings.enforcer
    return named or context_namespace(enforcer.kubeconfig, enforcer.kubeconfig_context, setting=_SETTING)
