"""`gputide admin grafana`: dashboards for Grafana and rules for Prometheus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dashboards.grafana.shipped import ShippedForm, shipped
from fleet.durable import unwritable, write_durably
from fleet.errors import Misconfigured
from gputide.session import session_of

app = typer.Typer(
    no_args_is_help=True,
    help="Dashboards for Grafana, rules for Prometheus. Example: gputide admin grafana export ./grafana",
)


@app.callback()
def _grafana() -> None:
    """Dashboards for Grafana, rules for Prometheus."""


@app.command(
    "export", epilog="Example: gputide admin grafana export ./grafana --format configmap --namespace monitoring"
)
def export(
    context: typer.Context,
    target: Annotated[Path, typer.Argument(metavar="DIR", help="Folder to write into; made where it is missing.")],
    form: Annotated[
        ShippedForm,
        typer.Option("--format", "-f", help="json: files for provisioning and prometheus.yml; configmap: for kubectl."),
    ] = ShippedForm.JSON,
    namespace: Annotated[
        str, typer.Option(help="Namespace of the objects, with --format configmap.", metavar="NAME")
    ] = "monitoring",
    docs_url: Annotated[
        str | None,
        typer.Option("--docs-url", metavar="URL", help="Where these docs are served; alerts link what to do there."),
    ] = None,
) -> None:
    """Write six dashboards, the recording rules that they read, and the alerts; thresholds are those of the settings.

    Works on dcgm-exporter and HAMi alone; gputide's own exporters add what those don't know.
    """
    settings = session_of(context).settings
    if target.exists() and not target.is_dir():
        raise Misconfigured(f"cannot write into {target}: it is a file; name a folder")
    if docs_url is not None and not docs_url.startswith(("http://", "https://")):
        raise Misconfigured(f"cannot use --docs-url {docs_url[:253]!r}: expected http://… or https://…")
    found = shipped(form, settings, namespace=namespace, docs_url=docs_url)
    for place, text in found.items():
        path = target / place
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as exc:
            raise unwritable(path, exc) from exc
        write_durably(path, text.encode())
    typer.echo(f"wrote {len(found)} files to {target}")
    if form is ShippedForm.JSON:
        typer.echo(f"prometheus.yml: rule_files: [{target.resolve()}/rules/*.yaml]")
        typer.echo("Grafana: import dashboards/*.json, or provision them with provisioning/gputide.yaml")
    else:
        typer.echo(f"kubectl apply --recursive -f {target}")
