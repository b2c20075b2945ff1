"""API aggregation on the tests' control plane: the front proxy's certificate, and a service on this machine."""

from __future__ import annotations

import base64
from pathlib import Path

from tests.cluster.api import Api
from tests.security.authority import Authority, Pair
from tests.waiting import until

FRONT_PROXY = "front-proxy-client"
"""Common name of the API server's certificate, as kubeadm calls it."""
SERVICE = "gputide-usage"
_GROUP, _VERSION = "usage.gputide.io", "v1alpha1"


class FrontProxy:
    """The certificate that the API server shows to servers behind it.

    Args:
        folder: where its files go, and those of who signed it.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        authority = Authority(folder, "front-proxy-ca")
        self.authority_file = authority.file
        self.pair: Pair = authority.pair(FRONT_PROXY)

    def arguments(self) -> list[str]:
        """Flags of the API server."""
        return [
            f"--requestheader-client-ca-file={self.authority_file}",
            f"--requestheader-allowed-names={FRONT_PROXY}",
            "--requestheader-username-headers=X-Remote-User",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            f"--proxy-client-cert-file={self.pair.certificate}",
            f"--proxy-client-key-file={self.pair.key}",
        ]


def register(api: Api, port: int, authority_file: Path, *, namespace: str = "default") -> None:
    """Make the API server ask a port of this machine for the group, and wait until it does."""
    api.apply(
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": SERVICE, "namespace": namespace},
            "spec": {"type": "ExternalName", "externalName": "localhost"},
        }
    )
    name = f"{_VERSION}.{_GROUP}"
    api.apply(
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": name},
            "spec": {
                "group": _GROUP,
                "version": _VERSION,
                "groupPriorityMinimum": 1000,
                "versionPriority": 10,
                "service": {"namespace": namespace, "name": SERVICE, "port": port},
                "caBundle": base64.b64encode(authority_file.read_bytes()).decode(),
            },
        }
    )

    def is_available() -> bool:
        found = api.ask("GET", f"/apis/apiregistration.k8s.io/v1/apiservices/{name}")
        conditions = found.get("status", {}).get("conditions", [])
        return any(one["type"] == "Available" and one["status"] == "True" for one in conditions)

    until(is_available, seconds_max=60.0)
