"""`gputide run admission`: gives new pods the card that the plan keeps for them, where the API server asks for it."""

from __future__ import annotations

import threading
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from enforcer.kubernetes.seat_claims import SEATS_NAMESPACE
from fleet.addresses import host_and_port
from gputide.container.cluster import backend, open_kubernetes
from gputide.container.own_metrics import open_own_metrics
from gputide.session import session_of
from wire.processes import hold_stop_signals, wait_for_stop

app = typer.Typer()


@app.command(epilog="Example: gputide run admission --certificate tls.crt --key tls.key")
def admission(
    context: typer.Context,
    certificate: Annotated[Path, typer.Option(help="Chain of the server's certificate, PEM.")],
    key: Annotated[Path, typer.Option(help="Its key, PEM.")],
    listen: Annotated[str, typer.Option(help="HOST:PORT to listen on.")] = "0.0.0.0:9443",
    seats_namespace: Annotated[
        str,
        typer.Option(
            help="Namespace of the leases by which replicas share what they gave; empty for one replica, "
            "which frees no pods that wait."
        ),
    ] = SEATS_NAMESPACE,
    client_ca: Annotated[
        Path | None,
        typer.Option(help="Authorities (PEM) that must have signed the certificate that the API server shows."),
    ] = None,
) -> None:
    """Answer the API server's question about each new pod: it goes to the card or the node that a plan keeps for it.

    Plans are applied only while it answers: no template names a card or a node, so without it pods go wherever a card
    fits. A pod whose card or node is lost, and one beyond the planned replicas, is not pinned. One that waits in vain
    for its seat is evicted after twenty seconds, and the one in its place is not pinned.
    """
    from enforcer.kubernetes.admission_review import PodAdmission
    from enforcer.kubernetes.admission_server import AdmissionMetrics, AdmissionServer
    from enforcer.kubernetes.departures import DepartureEvents
    from enforcer.kubernetes.stuck_pods import StuckPods

    host, port = host_and_port(listen)
    settings = session_of(context).settings
    speaker = backend(settings, datetime.now(UTC))
    hold_stop_signals()
    with open_own_metrics(settings, "admission", AdmissionMetrics) as metrics, open_kubernetes(settings) as cluster:
        notes = cluster.seat_claims(seats_namespace) if seats_namespace else None
        events = DepartureEvents(cluster.record_event)
        reviews = PodAdmission(cluster, dialect=speaker.dialect, notes=notes, departed=events.note)
        server = AdmissionServer(
            reviews, metrics, host=host, port=port, certificate_file=certificate, key_file=key, client_ca_file=client_ca
        )
        stuck = nullcontext() if notes is None else StuckPods(cluster, notes, events.note, metrics.freed.inc).watching()
        with metrics.api_requests.following(lambda: cluster.requests), events.writing(), stuck:
            serving = threading.Thread(target=server.serve, name="admission", daemon=True)
            serving.start()
            shown, bound = server.address
            typer.echo(f"answering on https://{shown}:{bound}/pods; Ctrl-C stops", err=True)
            wait_for_stop()
            server.stop()
            serving.join()
    typer.echo("stopped", err=True)
