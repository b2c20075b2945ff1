"""A node whose cards, driver and kubelet are stand-ins; its device plugin, MPS daemon and mig-parted are NVIDIA's own.

The programs want fixed places (`/var/lib/kubelet/device-plugins`, `/proc/driver`, `/mps`), so they run in a root folder
of their own: a fresh folder with the machine's programs and libraries mounted into it, in a mount namespace that ends
with the process. The exporter's reader runs outside, on the same driver's file and the kubelet's socket.

Sources: NVIDIA/k8s-device-plugin:cmd/nvidia-device-plugin/root.go, internal/mig/mig.go, cmd/mps-control-daemon/mps,
NVIDIA/go-nvlib:pkg/nvpci/nvpci.go.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path

from exporter.attribution.process_places import ProcessPlaces
from exporter.kubelet.client import KubeletPodResources
from exporter.node.pods import NodePods
from exporter.node.reader import NodeReader, NodeSources
from exporter.nvml.cards import NvmlCards
from exporter.nvml.reader import NvmlReader
from exporter.reader import Reading
from fleet.errors import Unavailable
from fleet.inventory import Grant
from gputide.operate.engine_process import (
    ProcessRecord,
    is_alive,
    kill_process,
    log_tail,
    start_process,
    stop_process,
    wait_until,
)
from tests.engines.device_manager import DeviceManager, HandedOut
from tests.engines.go_peers import NvidiaPeers
from tests.engines.node_cluster import NodeCluster
from tests.exporter.host_processes import HostProcesses
from tests.exporter.kubelet import StandInKubelet
from tests.exporter.node import container_id, manifest, uid
from tests.exporter.nvml.standin import DATA_VARIABLE, FIELDS, GPM, H100, StandInWorld, library_file, uuid
from tests.waiting import until

START_SECONDS_MAX = 30.0
_OF_MACHINE = ("bin", "dev", "lib", "lib64", "usr")
_OF_NODE = ("etc", "mps", "proc/driver/nvidia-caps", "sys/bus/pci/devices", "tmp", "var/lib/kubelet/device-plugins")
_DRIVER = "driver-root/usr/lib64"
"""Where the plugin looks for the driver's library when it runs in a container."""

_ENVIRON = {
    "PATH": "/tools:/usr/bin:/bin:/usr/sbin:/sbin",
    "LD_LIBRARY_PATH": f"/{_DRIVER}",
    DATA_VARIABLE: "/driver-root/world.txt",
}
"""Of NVIDIA's programs."""

# The mounts are seen by this process and its children alone, and are gone when they are.
_ENTER = """
root=$1; shift
for folder in {folders}; do mount --rbind "/$folder" "$root/$folder" || exit 126; done
exec chroot "$root" "$@"
"""

# As `nvidia-cuda-mps-control` answers: `-d` starts it, commands come on standard input.
_MPS_CONTROL = """#!/bin/sh
if [ "$1" = -d ]; then echo started >> /mps/said; : > "$CUDA_MPS_LOG_DIRECTORY/control.log"; exit 0; fi
read -r command
echo "$command" >> /mps/said
case $command in get_default_active_thread_percentage) echo 100.0 ;; esac
"""
_NVIDIA_SMI = """#!/bin/sh
echo "nvidia-smi $*" >> /mps/said
"""

_PCI = {"vendor": "0x10de", "device": "0x20b0", "class": "0x030200", "resource": "0x0 0x0 0x0"}
"""What the kernel says of a card in `/sys/bus/pci/devices`."""

A100_PROFILES = ((0, 19, 1, 7, 14, 4864), (1, 14, 2, 3, 28, 9856), (2, 9, 3, 2, 42, 19968), (4, 0, 7, 1, 98, 40192))
"""Instance profiles of an A100 of 40 GB: number, id, slices, most of them, SMs, MiB."""


def private_root_command() -> list[str]:
    """What a program is started by to have mounts of its own.

    Raises:
        Unavailable: this machine does not allow them.
    """
    unshare = shutil.which("unshare")
    if unshare is None:
        raise Unavailable("cannot run NVIDIA's device plugin: no `unshare` is on PATH; it is part of util-linux")
    # Who is not root may be in a user namespace of his own, where the kernel's settings allow it.
    command = [unshare, "--mount"] if os.geteuid() == 0 else [unshare, "--user", "--map-root-user", "--mount"]
    tried = subprocess.run([*command, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        raise Unavailable(
            "cannot run NVIDIA's device plugin: it needs mounts of its own, so root or a user namespace: "
            f"{tried.stderr.strip()}"
        )
    return command


class NvidiaNode:
    """One node; `close` ends all that was started.

    Args:
        peers: NVIDIA's programs.
        enter: what they are started by, see `private_root_command`.

    Attributes:
        world: what the driver tells, to all that run on the node.
        kubelet: its pod-resources socket.
        devices: its part of device plugins.
    """

    def __init__(self, peers: NvidiaPeers, enter: list[str]) -> None:
        self._peers = peers
        self._enter = enter
        # Short: the path of a socket may have 107 bytes.
        self.root = Path(tempfile.mkdtemp(prefix="node-"))
        self._folders = [name for name in _OF_MACHINE if self._laid_out(name)]
        for name in (*_OF_NODE, _DRIVER):
            (self.root / name).mkdir(parents=True)
        self._processes = HostProcesses(self.root / "proc")
        shutil.copy(library_file(), self.root / _DRIVER)
        self.world = StandInWorld(self.root / "driver-root" / "world.txt")
        self.kubelet = StandInKubelet(self.root / "pod-resources.sock")
        self.devices = DeviceManager(self.root / "var/lib/kubelet/device-plugins", self.kubelet)
        self._capabilities: list[str] = []
        self._is_open = False
        self._cards = 0
        self._running: dict[str, ProcessRecord] = {}
        self._reader: NodeReader | None = None
        self._cluster = NodeCluster()
        self._pods = NodePods(self._cluster)
        self._grants: list[Grant] = []

    def card(self, **values: object) -> None:
        """Adds a card, an H100 where nothing else is said; every other one is on the second NUMA node."""
        self.world.card(**{**H100, "gpm": GPM, "fields": FIELDS, "cc": "9.0", **values})
        self._cards += 1
        place = self.root / "sys/bus/pci/devices" / f"0000:{self._cards:02x}:00.0"
        place.mkdir()
        for name, text in {**_PCI, "numa_node": self._cards % 2}.items():
            (place / name).write_text(f"{text}\n")

    def cut(self, card: int, *slices: int, is_old: bool = False) -> list[str]:
        """Cuts a card of the world into MIG instances of so many slices each; returns their UUIDs.

        The card's model has the profiles of `A100_PROFILES`. Drivers before 470 name instances by their card.
        """
        if not self._capabilities:
            for profile, number, of, count, sms, mib in A100_PROFILES:
                self.world.line("gip", profile=profile, id=number, slices=of, count=count, sm=sms, memmb=mib)
        self.world.card(card, mig=1)
        made = []
        for gpu_instance, size in enumerate(slices, start=1):
            profile, _, _, _, sms, mib = next(known for known in A100_PROFILES if known[2] == size)
            old_name = f"MIG-{uuid(card)}/{gpu_instance}/0"
            made.append(old_name if is_old else f"MIG-{card:08x}-0000-4000-8000-{gpu_instance:012x}")
            self.world.line(
                "mig", dev=card, uuid=made[-1], gi=gpu_instance, ci=0, total=mib << 20, sm=sms, gslices=size,
                cslices=size, profile=profile, size=size, used=instance_used_bytes(card, gpu_instance),
            )  # fmt: skip
            for path in (f"gi{gpu_instance}", f"gi{gpu_instance}/ci0"):
                self._capabilities.append(f"gpu{card}/{path}/access {len(self._capabilities) + 1}\n")
        (self.root / "proc/driver/nvidia-caps/mig-minors").write_text("".join(self._capabilities))
        return made

    def start_plugin(self, *flags: str, config: str | None = None, waits_for: int = 1) -> None:
        """Writes the world, opens the kubelet's sockets where that was not done, and starts the device plugin.

        Args:
            flags: for the plugin.
            config: its configuration file.
            waits_for: how many resources it will advertise.
        """
        self.world.write()
        if not self._is_open:
            self.kubelet.start()
            self.devices.start()
            self._is_open = True
        self._start("plugin", self._peers.device_plugin, *flags, config=config)
        wait_until(lambda: self._advertised() >= waits_for, self._running["plugin"], seconds_max=START_SECONDS_MAX)

    def start_mps_daemon(self, *, config: str) -> None:
        """Writes the world and starts the daemon of MPS; what it says to the driver's is in `said_to_mps`."""
        self.world.write()
        tools = self.root / "tools"
        tools.mkdir()
        for name, script in (("nvidia-cuda-mps-control", _MPS_CONTROL), ("nvidia-smi", _NVIDIA_SMI)):
            (tools / name).write_text(script)
            (tools / name).chmod(0o755)
        self._start("mps", self._peers.mps_daemon, config=config)
        ready = self.root / "mps" / ".ready"
        wait_until(ready.exists, self._running["mps"], seconds_max=START_SECONDS_MAX)

    def said_to_mps(self) -> list[str]:
        """Everything that the daemon of MPS was told, in order."""
        return (self.root / "mps" / "said").read_text().splitlines()

    def stop_mps_daemon(self) -> None:
        """Asks the daemon of MPS to end."""
        stop_process(self._running.pop("mps"))

    def mig_parted(self, *arguments: str, config: str) -> subprocess.CompletedProcess[str]:
        """Writes the world, and runs mig-parted with a configuration file until it ends."""
        self.world.write()
        (self.root / "proc" / "modules").write_text("nvidia 1 0 - Live 0x0\n")
        (self.root / "etc" / "mig.yaml").write_text(config)
        command = [*self._command(self._peers.mig_parted), *arguments, "--config-file=/etc/mig.yaml"]
        return subprocess.run(
            command, env=_ENVIRON, capture_output=True, text=True, check=False, timeout=START_SECONDS_MAX
        )

    def hand_out(self, pod: str, resource: str, count: int = 1) -> HandedOut:
        """Lets a new pod of one container ask for devices, and hands them out."""
        handed = self.devices.grant(pod, resource, count)
        self._cluster.add(manifest(pod, self._cluster.count() + 1, resources={resource: str(count)}))
        return handed

    def process(self, pid: int, pod: str, card: int, **figures: object) -> None:
        """Lets a pod's container run a process on a card."""
        number = self._cluster.number_of(pod)
        self._processes.put(pid, cgroup=f"/kubepods/pod{uid(number)}/{container_id(10 * number)}")
        self.world.line("proc", dev=card, pid=pid, **figures).write()

    def stop_plugin(self) -> None:
        """Ends the plugin as the kernel does when there is no memory left."""
        kill_process(self._running.pop("plugin"))

    def reload_plugin(self, config: str) -> None:
        """Gives the plugin another configuration and makes it read that."""
        (self.root / "etc" / "plugin.yaml").write_text(config)
        os.kill(self._running["plugin"].pid, signal.SIGHUP)

    def read(self) -> Reading:
        """What the exporter's reader of this node tells; the first call makes it."""
        if self._reader is None:
            self._pods.start()
            cards = NvmlCards(
                library_path=str(library_file()), sample_seconds=None, answer_seconds=2.0, look_seconds=0.05
            )
            self._reader = NodeReader(
                NodeSources(
                    cards=NvmlReader(cards, cluster="c", node="node-1"),
                    kubelet=KubeletPodResources(str(self.kubelet.path)),
                    pods=self._pods,
                    processes=ProcessPlaces(str(self.root / "proc")),
                    regions=None,
                ),
                cluster="c",
                node="node-1",
            )
        until(lambda: len(self._pods.facts() or ()) == self._cluster.count())
        reading = self._reader.read(10.0)
        for ended in reading.change.grants_ended:
            self._grants.remove(replace(ended, ended_at=None))
        self._grants += reading.change.grants_started
        return reading

    def grants(self) -> dict[str, list[Grant]]:
        """What each pod holds by the exporter, now."""
        self.read()
        held: dict[str, list[Grant]] = {}
        for grant in sorted(self._grants, key=lambda grant: (grant.pod, grant.container, grant.card)):
            held.setdefault(grant.pod, []).append(grant)
        return held

    def close(self) -> None:
        """Ends everything, and takes the root folder away."""
        if self._reader is not None:
            self._reader.close()
        for record in self._running.values():
            kill_process(record)
        self.devices.stop()
        self.kubelet.stop()
        for name in self._folders:
            (self.root / name).rmdir()  # fails where it is not what was made here, but the machine's own
        shutil.rmtree(self.root)

    def _laid_out(self, name: str) -> bool:
        """Makes the place of one of the machine's folders; whether something is to be mounted there."""
        theirs, ours = Path("/", name), self.root / name
        if theirs.is_symlink():
            ours.symlink_to(theirs.readlink())
            return False
        if theirs.is_dir():
            ours.mkdir()
            return True
        return False

    def _advertised(self) -> int:
        return sum(bool(count) for count in self.devices.resources().values())

    def _start(self, name: str, program: Path, *flags: str, config: str | None) -> None:
        arguments = [*flags]
        if config is not None:
            (self.root / "etc" / f"{name}.yaml").write_text(config)
            arguments.append(f"--config-file=/etc/{name}.yaml")
        self._running[name] = start_process(
            name, [*self._command(program), *arguments],
            folder=self.root, log=self.root / f"{name}.log", environ=_ENVIRON,
        )  # fmt: skip
        if not is_alive(self._running[name]):
            raise Unavailable(log_tail(self._running[name].log))

    def _command(self, program: Path) -> list[str]:
        """What a program is started by, within the root folder."""
        place = self.root / "tmp" / program.name
        if not place.exists():
            shutil.copy(program, place)
        entering = _ENTER.format(folders=" ".join(self._folders))
        return [*self._enter, "/bin/sh", "-c", entering, "sh", str(self.root), f"/tmp/{program.name}"]


def instance_used_bytes(card: int, gpu_instance: int) -> int:
    """Framebuffer that is used of an instance which `NvidiaNode.cut` made: of each another amount."""
    return gpu_instance << 26 | card << 20
