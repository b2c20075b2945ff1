"""What the options of `kubectl gputide` say, as a session of the command line, and the client that verbs look by."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from platformdirs import user_cache_path

from fleet.errors import Misconfigured
from fleet.settings.settings import ClusterSettings, Settings, changed_settings, load_settings
from gputide.kubectl.objects import ClusterObjects
from gputide.session import Session, assigned
from wire.kubernetes.access import context_namespace

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
    """The session of a call.

    Its data folder holds copies of what the cluster keeps, one per kubeconfig and context.

    Raises:
        Misconfigured: unknown setting or bad value.
    """
    chosen = {"enforcer.cluster": "kubernetes"}
    if kubeconfig is not None:
        chosen[_SETTING] = str(kubeconfig)
    if context is not None:
        chosen[f"{_SETTING}_context"] = context
    settings = load_settings(config, {**chosen, **assigned(assignments)}, environ)
    place = f"{kubeconfig or environ.get('KUBECONFIG')} {context}"
    folder = user_cache_path("gputide", appauthor=False) / "kubectl" / hashlib.sha256(place.encode()).hexdigest()[:16]
    return Session(data_path=folder, settings=settings, now_override=None, is_quiet=False)


def session_to_change(session: Session) -> Session:
    """The session with what the cluster's plans say of it: its name, and the backend that they were made for.

    Raises:
        Misconfigured: its plans are of several clusters, and no setting names one.
        Unavailable: the cluster can't be reached.
    """
    settings = session.settings
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
        Misconfigured: there is no way into it.
    """
    enforcer = session.settings.enforcer
    objects = ClusterObjects(enforcer.kubeconfig, enforcer.kubeconfig_context)
    try:
        yield objects
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
