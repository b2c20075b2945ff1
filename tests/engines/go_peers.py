"""Peers by others in Go, built from locked sources into the cache: senders, Kueue, Karpenter, Gitea, Krew and more.

Called by `tests/run_tiers.py` before the tests of engines and clusters, and by hand:

    python tests/engines/go_peers.py [CACHE]

A build of Prometheus takes some five minutes of one core, that of the collector ten, that of the device plugin one,
once per version of it and of Go.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from fleet.errors import GputideError, Unavailable
from gputide.operate.engine_cache import default_cache_path, key_of, stocked
from gputide.operate.engine_tools import Tell, run_tool

HERE = Path(__file__).parent
PROMETHEUS_VERSION = "3.15.0"
"""Of the module version in `prometheus/go.mod`, as its releases are called."""
DEVICE_PLUGIN_VERSION = "0.19.3"
"""Of the module version in `nvidia/go.mod`."""
_PROMETHEUS = "github.com/prometheus/prometheus"
_DEVICE_PLUGIN = "github.com/NVIDIA/k8s-device-plugin"
_MIG_PARTED = "github.com/NVIDIA/mig-parted"
_KUEUE = "sigs.k8s.io/kueue"
_KARPENTER = "sigs.k8s.io/karpenter"
_GITEA = "code.gitea.io/gitea"
_KREW = "sigs.k8s.io/krew"
_OPERATORS = "github.com/operator-framework/api"


@dataclass(frozen=True, slots=True, kw_only=True)
class GoPeers:
    """Paths of the built programs.

    Attributes:
        prometheus: the server.
        promtool: its tool: checks rules, makes blocks, queries.
        sender: the remote-write 2.0 client of `sender/`; prints a JSON line.
        collector: OpenTelemetry's collector with the parts that `collector/main.go` names.
    """

    prometheus: Path
    promtool: Path
    sender: Path
    collector: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class NvidiaPeers:
    """Paths of the built programs; all open `libnvidia-ml.so.1` when they run.

    Attributes:
        device_plugin: what advertises cards to the kubelet and hands them out.
        mps_daemon: what starts the driver's daemon of MPS and tells it how much each client may have.
        mig_parted: what cuts cards by MIG, and says whether they are cut as a configuration wants.
    """

    device_plugin: Path
    mps_daemon: Path
    mig_parted: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KueuePeer:
    """Kueue as it is published.

    Attributes:
        program: its controllers and scheduler, for Jobs, against the API server of `$KUBECONFIG`.
        definitions: folder of its CustomResourceDefinitions.
    """

    program: Path
    definitions: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KarpenterPeer:
    """Karpenter as it is published, with its provider of nodes that kwok plays.

    Attributes:
        program: its controllers, against the API server of `$KUBECONFIG`.
        definitions: folder of its CustomResourceDefinitions; that of the provider's classes of nodes lies beside.
    """

    program: Path
    definitions: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class GiteaPeer:
    """Gitea, with SQLite.

    Attributes:
        program: the server.
        parts: folder that holds its `templates` and `options`.
    """

    program: Path
    parts: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class KrewPeer:
    """The package manager of kubectl's plugins.

    Attributes:
        krew: `kubectl krew`.
        judge: what its index is checked with.
    """

    krew: Path
    judge: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    """How the programs of one folder's module are built.

    Attributes:
        module: the folder, of the same name as the entry in the cache.
        packages: what is built.
        link_flags: for the linker, beside those that leave out symbols.
        has_c: parts of it are written in C.
        beside: a module, and folders of it that are laid beside the programs, those of one name in one.
        tags: build constraints.
    """

    module: str
    packages: tuple[str, ...]
    link_flags: str = ""
    has_c: bool = False
    beside: tuple[str, tuple[str, ...]] | None = None
    # Without the clients of thirty clouds' service discovery, which no test needs.
    tags: str = "remove_all_sd"


_SERVER = _Recipe(
    module="prometheus",
    packages=(f"{_PROMETHEUS}/cmd/prometheus", f"{_PROMETHEUS}/cmd/promtool"),
    link_flags=f"-X github.com/prometheus/common/version.Version={PROMETHEUS_VERSION}",
)
_SENDER = _Recipe(module="sender", packages=(".",))
_COLLECTOR = _Recipe(module="collector", packages=(".",))
_QUEUES = _Recipe(module="kueue", packages=(".",), beside=(_KUEUE, ("config/components/crd/bases",)))
_NODES = _Recipe(
    module="karpenter", packages=(f"{_KARPENTER}/kwok",), beside=(_KARPENTER, ("kwok/apis/crds", "pkg/apis/crds"))
)
_PLUGINS = _Recipe(module="krew", packages=(f"{_KREW}/cmd/krew", f"{_KREW}/cmd/validate-krew-manifest"))
_BUNDLES = _Recipe(module="olm", packages=(f"{_OPERATORS}/cmd/operator-verify",))
_FORGE = _Recipe(
    module="gitea", packages=(_GITEA,), has_c=True, beside=(_GITEA, ("templates", "options")),
    tags="sqlite sqlite_unlock_notify",
)  # fmt: skip
_NVIDIA = _Recipe(
    module="nvidia",
    packages=(f"{_DEVICE_PLUGIN}/cmd/nvidia-device-plugin", f"{_DEVICE_PLUGIN}/cmd/mps-control-daemon"),
    # It names every function of the driver's library and loads that library itself: none may be looked up before.
    link_flags=f"-extldflags=-Wl,-z,lazy -X {_DEVICE_PLUGIN}/internal/info.version={DEVICE_PLUGIN_VERSION}",
    has_c=True,
)
_MIG = _Recipe(
    module="mig-parted",
    packages=(f"{_MIG_PARTED}/cmd/nvidia-mig-parted",),
    link_flags="-extldflags=-Wl,-z,lazy",
    has_c=True,
)


def find_go() -> str:
    """Return the path of Go.

    Raises:
        Unavailable: there is none on PATH.
    """
    go = shutil.which("go")
    if go is None:
        raise Unavailable("cannot build peers in Go: no `go` is on PATH; install Go 1.26 or newer")
    return go


def build_go_peers(cache: Path, *, tell: Tell) -> GoPeers:
    """Build what is not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    server = _built(cache, _SERVER, tell)
    sender = _built(cache, _SENDER, tell)
    collector = _built(cache, _COLLECTOR, tell)
    return GoPeers(
        prometheus=server / "prometheus", promtool=server / "promtool", sender=sender / "sender",
        collector=collector / "collector",
    )  # fmt: skip


def build_nvidia_peers(cache: Path, *, tell: Tell) -> NvidiaPeers:
    """Build NVIDIA's device plugin, its daemon of MPS and mig-parted, where they are not in the cache yet.

    Raises:
        Unavailable: Go or a C compiler is missing or too old, or a module could not be fetched.
    """
    built, cutter = _built(cache, _NVIDIA, tell), _built(cache, _MIG, tell)
    return NvidiaPeers(
        device_plugin=built / "nvidia-device-plugin",
        mps_daemon=built / "mps-control-daemon",
        mig_parted=cutter / "nvidia-mig-parted",
    )


def build_kueue(cache: Path, *, tell: Tell) -> KueuePeer:
    """Build Kueue where it is not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    built = _built(cache, _QUEUES, tell)
    return KueuePeer(program=built / "kueue", definitions=built / "bases")


def build_karpenter(cache: Path, *, tell: Tell) -> KarpenterPeer:
    """Build Karpenter where it is not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    built = _built(cache, _NODES, tell)
    return KarpenterPeer(program=built / "kwok", definitions=built / "crds")


def build_gitea(cache: Path, *, tell: Tell) -> GiteaPeer:
    """Build Gitea where it is not in the cache yet: some five minutes of two cores.

    Raises:
        Unavailable: Go or a C compiler is missing or too old, or a module could not be fetched.
    """
    built = _built(cache, _FORGE, tell)
    return GiteaPeer(program=built / "gitea", parts=built)


def build_operator_verify(cache: Path, *, tell: Tell) -> Path:
    """Build what judges bundles of the Operator Lifecycle Manager where it is not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    return _built(cache, _BUNDLES, tell) / "operator-verify"


def build_krew(cache: Path, *, tell: Tell) -> KrewPeer:
    """Build Krew and the judge of its index where they are not in the cache yet.

    Raises:
        Unavailable: Go is missing or too old, or a module could not be fetched.
    """
    built = _built(cache, _PLUGINS, tell)
    return KrewPeer(krew=built / "krew", judge=built / "validate-krew-manifest")


def _built(cache: Path, recipe: _Recipe, tell: Tell) -> Path:
    go = find_go()
    version = run_tool([go, "version"], purpose="ask Go for its version")
    module = HERE / recipe.module
    sources = [path.read_bytes() for path in sorted(module.iterdir()) if path.suffix in (".go", ".mod", ".sum")]

    def fill(folder: Path) -> None:
        tell(f"building {recipe.module} with Go")
        command = [go, "build", "-tags", recipe.tags, "-trimpath", "-ldflags", f"-s -w {recipe.link_flags}"]
        settings = {"CGO_ENABLED": str(int(recipe.has_c)), "GOFLAGS": "-mod=readonly -buildvcs=false", "GOWORK": "off"}
        run_tool(
            [*command, "-o", f"{folder}/", *recipe.packages],
            purpose=f"build {recipe.module}", folder=module, environ={**os.environ, **settings},
        )  # fmt: skip
        if recipe.beside is not None:
            name, parts = recipe.beside
            asked = [go, "list", "-m", "-f", "{{.Dir}}", name]
            held = run_tool(asked, purpose=f"find {name}", folder=module, environ={**os.environ, **settings}).strip()
            for part in parts:
                target = folder / Path(part).name
                shutil.copytree(Path(held, part), target, copy_function=shutil.copyfile, dirs_exist_ok=True)

    key = key_of(*sources, version.encode(), recipe.link_flags.encode())
    return stocked(cache, f"go-{recipe.module}", key, fill, tell=tell)


if __name__ == "__main__":
    try:
        where = Path(sys.argv[1]) if sys.argv[1:] else default_cache_path()
        print(build_go_peers(where, tell=print))
        print(build_nvidia_peers(where, tell=print))
        print(build_gitea(where, tell=print))
    except GputideError as error:
        sys.exit(str(error))
