"""`gputide admin installed`: whether a release of the chart works; what `helm test` runs."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from fleet.documents import document
from fleet.errors import EXIT_FINDINGS, EXIT_FINE, Unavailable
from gputide.operate.installed import Look, Release, looks
from gputide.options import answering
from gputide.output import Answer, Listing
from gputide.session import Session
from wire.kubernetes.access import find_access
from wire.kubernetes.read import KubernetesApi

app = typer.Typer()
_PAUSE_SECONDS = 5.0


@app.command(epilog="Example: gputide admin installed gputide -n gputide -n gputide-nodes --wait-seconds 120")
@answering
def installed(
    session: Session,
    release: Annotated[str, typer.Argument(help="Name of the Helm release.")],
    namespace: Annotated[list[str], typer.Option("-n", "--namespace", help="Namespace of its pods; may be repeated.")],
    metrics: Annotated[bool, typer.Option("--metrics", help="Ask exporters for figures, too.")] = False,
    usage_api: Annotated[bool, typer.Option("--usage-api", help="The cluster is to serve usage.gputide.io.")] = False,
    wait_seconds: Annotated[int, typer.Option(min=0, max=3600, help="How long it may take until all is well.")] = 0,
) -> Answer:
    """Look from within a cluster whether a release works: ready pods, first figures, the usage API; 1 where not."""
    wanted = Release(name=release, namespaces=tuple(namespace), shows_metrics=metrics, serves_usage=usage_api)
    access = find_access(session.settings.enforcer.kubeconfig, None, setting="enforcer.kubeconfig")
    api = KubernetesApi(access, "gputide-test", rules_file="docs/rbac-reader.yaml")
    until = time.monotonic() + wait_seconds
    try:
        found = _looked(api, wanted)
        while any(look.trouble for look in found) and time.monotonic() < until:
            time.sleep(_PAUSE_SECONDS)
            found = _looked(api, wanted)
    finally:
        api.close()
    bad = [look for look in found if look.trouble]
    return Answer(
        document={"release": release, "looks": document(found)},
        headline=(f"{len(found) - len(bad)} of {len(found)} looks at release {release} found nothing wrong",),
        listings=(
            Listing.of(
                "Looked at",
                [*bad, *(look for look in found if not look.trouble)],
                {"part": lambda one: one.part, "what": lambda one: one.what, "trouble": lambda one: one.trouble},
            ),
        ),
        status=EXIT_FINDINGS if bad else EXIT_FINE,
    )


def _looked(api: KubernetesApi, wanted: Release) -> tuple[Look, ...]:
    try:
        return looks(api, wanted)
    except Unavailable as exc:
        return (Look(part="API server", what=api.server, trouble=str(exc)),)
