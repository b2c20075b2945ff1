"""gputide's own admission next to a control plane: the real program, with the documented rights and registration."""

from __future__ import annotations

import base64
import threading
from contextlib import ExitStack
from pathlib import Path

import yaml

from enforcer.backends.hami_dialect import HAMI_DIALECT
from enforcer.dialect import Dialect
from enforcer.kubernetes.admission_review import PodAdmission
from enforcer.kubernetes.admission_server import AdmissionMetrics, AdmissionServer
from enforcer.kubernetes.cluster import ClusterPlace, KubernetesCluster
from enforcer.kubernetes.departures import DepartureEvents
from enforcer.kubernetes.seat_claims import SEATS_NAMESPACE
from enforcer.kubernetes.stuck_pods import StuckPods
from tests.cluster.api import Api, Manifest
from tests.control_plane import ControlPlane
from wire.own_metrics import OwnMetrics

PAGE = Path(__file__).resolve().parents[2] / "docs" / "admission.yaml"
CERTIFICATES = Path(__file__).parents[1] / "pipeline" / "certificates"
CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
NAME = "gputide-admission"
_RIGHTS = ("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding")


class ServedAdmission:
    """Answers the API server's questions about pods.

    Args:
        control_plane: whose.
        api: an administrator's hand.
        dialect: the backend's words.
    """

    def __init__(self, control_plane: ControlPlane, api: Api, dialect: Dialect = HAMI_DIALECT) -> None:
        self._plane = control_plane
        self._api = api
        self._dialect = dialect
        self._cluster: KubernetesCluster | None = None
        self._server: AdmissionServer | None = None
        self._serving: threading.Thread | None = None
        self._events = ExitStack()

    def start(self) -> None:
        """Serve, and register as the page does."""
        if not self._api.has("/api/v1/namespaces/gputide"):
            self._api.create("/api/v1/namespaces", {"metadata": {"name": "gputide"}})
        documents = list(yaml.safe_load_all(PAGE.read_text(encoding="utf-8")))
        for manifest in documents:
            if manifest["kind"] in _RIGHTS:
                self._api.apply(manifest)
        kubeconfig = self._plane.kubeconfig_of_token("admission", self._api.token("gputide", NAME))
        place = ClusterPlace(kubeconfig=kubeconfig, requests_per_second=500.0, requests_burst=500)
        self._cluster = KubernetesCluster(place)
        events, notes = DepartureEvents(self._cluster.record_event), self._cluster.seat_claims(SEATS_NAMESPACE)
        metrics = AdmissionMetrics(OwnMetrics("admission"))
        self._events.enter_context(events.writing())
        self._events.enter_context(StuckPods(self._cluster, notes, events.note, metrics.freed.inc).watching())
        self._server = AdmissionServer(
            PodAdmission(self._cluster, dialect=self._dialect, notes=notes, departed=events.note),
            metrics,
            host="127.0.0.1", port=0,
            certificate_file=CERTIFICATES / "receiver.pem", key_file=CERTIFICATES / "receiver.key.pem",
        )  # fmt: skip
        self._serving = threading.Thread(target=self._server.serve)
        self._serving.start()
        asked = next(manifest for manifest in documents if manifest["kind"] == "MutatingWebhookConfiguration")
        self._api.create(CONFIGURATIONS, registered(asked, self._server.address[1]))

    def stop_answering(self) -> None:
        """Let nobody answer; the registration stays."""
        # Connections that the API server holds open would be answered on.
        found = self._api.ask("GET", f"{CONFIGURATIONS}/{NAME}")
        self._api.patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": registered(found, port=1)["webhooks"]})

    def answer_again(self) -> None:
        """Let the program answer as before."""
        assert self._server is not None
        found = self._api.ask("GET", f"{CONFIGURATIONS}/{NAME}")
        again = registered(found, self._server.address[1])["webhooks"]
        self._api.patch(f"{CONFIGURATIONS}/{NAME}", {"webhooks": again})

    def stop(self) -> None:
        """End it, and take its registration away."""
        try:
            if self._api.has(f"{CONFIGURATIONS}/{NAME}"):
                self._api.delete(f"{CONFIGURATIONS}/{NAME}")
        finally:
            # Also where the API server is gone: the thread that serves would keep this process for ever.
            if self._server is not None and self._serving is not None:
                self._server.stop()
                self._serving.join()
            self._events.close()
            if self._cluster is not None:
                self._cluster.close()


def registered(page: Manifest, port: int) -> Manifest:
    """The page's registration for a program on this machine."""
    authority = base64.b64encode((CERTIFICATES / "authority.pem").read_bytes()).decode()
    client = {"url": f"https://127.0.0.1:{port}/pods", "caBundle": authority}
    pods, leases, owners = ({**hook, "clientConfig": client} for hook in page["webhooks"])
    # Some tests let several enforcers work beside each other, each with a lease in a namespace of its own.
    return {**page, "webhooks": [pods, {**leases, "namespaceSelector": {}}, owners]}
