"""Runs the containers of a pod on this machine, as a kubelet's runtime would, from the manifest and nothing else.

Each container has a root file system of its own that it can't write to, the manifest's volumes at the manifest's
places, its environment alone, user and group of the security context, no capability, and is process 1 of its process
ids. Only the network is this machine's. The image is this checkout and its Python. Needs root and util-linux.
"""

from __future__ import annotations

import base64
import http.client
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cluster.api import Api, Manifest
from tests.control_plane import ControlPlane
from tests.waiting import until

ROOT = Path(__file__).resolve().parents[2]
ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
USER = 65532
START_SECONDS_MAX = 120.0
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or any(shutil.which(tool) is None for tool in ("setpriv", "unshare", "chroot")),
    reason="needs root, setpriv, unshare and chroot to run containers",
)
# The folders of an image that a Python needs, the checkout, and the volumes; then all of it is closed to writing.
_ENTER = """
root=$1; shift; volumes=$1; shift
mount -t tmpfs -o mode=0755 none "$root"
for name in bin sbin lib lib64 usr etc; do
  if [ -L "/$name" ]; then cp -a "/$name" "$root/$name"
  elif [ -d "/$name" ]; then
    mkdir "$root/$name"; mount --bind "/$name" "$root/$name"; mount -o remount,bind,ro "$root/$name"
  fi
done
mkdir "$root/proc" "$root/dev"; mount -t proc none "$root/proc"; mount --rbind /dev "$root/dev"
while read -r mode source target; do
  mkdir -p "$root$target"; mount --bind "$source" "$root$target"; mount -o "remount,bind,$mode" "$root$target"
done < "$volumes"
mount -o remount,ro "$root"
exec chroot "$root" setpriv --reuid=65532 --regid=65532 --clear-groups --bounding-set=-all --inh-caps=-all \\
  --no-new-privs "$@"
"""


class ContainerDouble:
    """A container that runs.

    Args:
        name: its name.
        process: what holds its namespaces.
        log: what it says.
        ports: its ports by name.
        probe: its readiness probe; None where it has none.
    """

    def __init__(
        self, name: str, process: subprocess.Popen[bytes], log: Path, ports: dict[str, int], probe: Manifest | None
    ) -> None:
        self.name = name
        self.ports = ports
        self._process = process
        self._log = log
        self._probe = probe

    def said(self) -> str:
        """Everything it wrote."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def ended(self, seconds_max: float = START_SECONDS_MAX) -> int:
        """Its exit status, once it ends by itself."""
        return self._process.wait(seconds_max)

    def wait_ready(self) -> None:
        """Wait until its readiness probe says so."""

        def is_ready() -> bool:
            assert self._process.poll() is None, f"{self.name} ended: {self.said()}"
            return self._probe is None or self._answers(self._probe)

        until(is_ready, seconds_max=START_SECONDS_MAX, pause_seconds=0.2)

    def stop(self, seconds_max: float) -> float:
        """Send SIGTERM to its first process; return the seconds until it has ended."""
        began = time.monotonic()
        (first,) = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text().split()
        os.kill(int(first), signal.SIGTERM)
        self._process.wait(seconds_max)
        return time.monotonic() - began

    def kill(self) -> None:
        """End it at once, and what runs in it."""
        self._process.kill()
        self._process.wait()

    def _answers(self, probe: Manifest) -> bool:
        way = probe.get("httpGet") or probe["tcpSocket"]
        port = self.ports[way["port"]]
        try:
            if "tcpSocket" in probe:
                socket.create_connection(("127.0.0.1", port), timeout=2).close()
                return True
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            if way.get("scheme") == "HTTPS":
                unchecked = ssl.create_default_context()
                unchecked.check_hostname, unchecked.verify_mode = False, ssl.CERT_NONE  # as a kubelet's probes
                connection = http.client.HTTPSConnection("127.0.0.1", port, timeout=5, context=unchecked)
            connection.request("GET", way["path"])
            status = connection.getresponse().status
            connection.close()
        except (OSError, http.client.HTTPException):
            return False
        return status == http.client.OK


class PodDouble:
    """A pod whose containers are started one by one.

    Args:
        api: where ConfigMaps, secrets and tokens are read.
        control_plane: whom the pod's account speaks to.
        namespace: of the pod.
        spec: of the pod.
        folder: for its volumes and logs.
        claims: folder of each claim by name, which outlives the pod.
    """

    def __init__(
        self,
        api: Api,
        control_plane: ControlPlane,
        namespace: str,
        spec: Manifest,
        folder: Path,
        claims: dict[str, Path],
    ) -> None:
        self._api = api
        self._control_plane = control_plane
        self._namespace = namespace
        self._spec = spec
        self._folder = folder
        self._claims = claims
        self._running: list[ContainerDouble] = []
        folder.mkdir(parents=True)
        self._volumes = {volume["name"]: self._volume(volume) for volume in spec.get("volumes", ())}

    def start(self, name: str) -> ContainerDouble:
        """Start a container, init containers too, by its name."""
        spec = self._spec
        (container,) = [one for one in (*spec.get("initContainers", ()), *spec["containers"]) if one["name"] == name]
        inner = self._folder / f"root-{name}"
        inner.mkdir()
        mounts = self._folder / f"mounts-{name}"
        mounts.write_text("".join(f"{line}\n" for line in self._mounts(container)), encoding="utf-8")
        environ = {
            "PATH": "/usr/bin:/bin", "HOME": "/tmp", "LC_ALL": "C.UTF-8", "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_LOCATOR_CLASSES": "gputide.kernels.shipped.ShippedKernels,UserWideCacheLocator",
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(urlsplit(self._control_plane.url).port),
            **{one["name"]: one["value"] for one in container.get("env", ()) if "value" in one},
        }  # fmt: skip
        log = self._folder / f"{name}.log"
        with log.open("wb") as target:
            process = subprocess.Popen(
                [
                    "unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child",
                    "sh", "-ec", _ENTER, "sh", str(inner), str(mounts),
                    "env", "-i", *(f"{key}={value}" for key, value in environ.items()),
                    f"{sys.prefix}/bin/gputide", *container["args"],
                ],
                stdin=subprocess.DEVNULL, stdout=target, stderr=subprocess.STDOUT,
            )  # fmt: skip
        ports = {port["name"]: port["containerPort"] for port in container.get("ports", ())}
        self._running.append(ContainerDouble(name, process, log, ports, container.get("readinessProbe")))
        return self._running[-1]

    def end(self) -> None:
        """End whatever still runs."""
        for container in self._running:
            container.kill()

    def _mounts(self, container: Manifest) -> list[str]:
        """Lines `ro|rw SOURCE TARGET`, the outer places first."""
        found = [("ro", str(path), str(path)) for path in (Path(sys.base_prefix).resolve(), ROOT, Path(sys.prefix))]
        for mount in container["volumeMounts"]:
            source = self._volumes[mount["name"]]
            found.append(("ro" if mount.get("readOnly") else "rw", str(source), mount["mountPath"]))
        if self._spec.get("automountServiceAccountToken", True):
            found.append(("ro", str(self._account()), ACCOUNT))
        return [" ".join(mount) for mount in sorted(found, key=lambda mount: mount[2])]

    def _volume(self, volume: Manifest) -> Path:
        if "persistentVolumeClaim" in volume:
            claim: str = volume["persistentVolumeClaim"]["claimName"]
            return self._claims[claim]
        folder: Path = self._folder / "volumes" / volume["name"]
        folder.mkdir(parents=True)
        base = f"/api/v1/namespaces/{self._namespace}"
        if "configMap" in volume:
            for key, text in self._api.ask("GET", f"{base}/configmaps/{volume['configMap']['name']}")["data"].items():
                (folder / key).write_text(text, encoding="utf-8")
        elif "secret" in volume:
            for key, packed in self._api.ask("GET", f"{base}/secrets/{volume['secret']['secretName']}")["data"].items():
                (folder / key).write_bytes(base64.b64decode(packed))
                os.chown(folder / key, 0, USER)
                (folder / key).chmod(volume["secret"]["defaultMode"])
        else:
            assert "emptyDir" in volume, volume
            os.chown(folder, USER, USER)
        return folder

    def _account(self) -> Path:
        folder = self._folder / "account"
        folder.mkdir(exist_ok=True)
        (folder / "token").write_text(self._api.token(self._namespace, self._spec["serviceAccountName"]))
        (folder / "ca.crt").write_bytes(self._control_plane.ca.read_bytes())
        (folder / "namespace").write_text(self._namespace)
        return folder


class Installed:
    """A release in the API server whose pods are run here.

    Args:
        api: an administrator.
        control_plane: where it is installed.
        namespace: of the release.
        folder: for volumes and logs; everybody may look into it.
        claim: name of the claim of its volume.
    """

    def __init__(self, api: Api, control_plane: ControlPlane, namespace: str, folder: Path, claim: str) -> None:
        self.api = api
        self.namespace = namespace
        self._control_plane = control_plane
        self._folder = folder
        self._pods: list[PodDouble] = []
        volume = folder / "volume"
        volume.mkdir()
        volume.chmod(0o2770)  # as fsGroup leaves it: the group's, who is nobody else's
        os.chown(volume, 0, USER)
        (volume / "lost+found").mkdir(mode=0o700)  # as on a new ext4
        self._claims = {claim: volume}

    def pod(self, path: str) -> PodDouble:
        """A pod of what stands at `PLURAL/NAME` of apps/v1 or batch/v1."""
        kind, _, name = path.partition("/")
        group = "batch" if kind in ("cronjobs", "jobs") else "apps"
        found = self.api.ask("GET", f"/apis/{group}/v1/namespaces/{self.namespace}/{path}")["spec"]
        template = found["jobTemplate"]["spec"]["template"] if kind == "cronjobs" else found["template"]
        folder = self._folder / f"pod-{len(self._pods)}-{name}"
        return self._made(template["spec"], folder)

    def hook(self, pod: Manifest) -> PodDouble:
        """A pod that helm makes on request, such as that of its test."""
        return self._made(pod["spec"], self._folder / f"pod-{len(self._pods)}-{pod['metadata']['name']}")

    def _made(self, spec: Manifest, folder: Path) -> PodDouble:
        made = PodDouble(self.api, self._control_plane, self.namespace, spec, folder, self._claims)
        self._pods.append(made)
        return made

    def end(self) -> None:
        """End everything that still runs."""
        for pod in self._pods:
            pod.end()
