"""A fleet of eighty cards over nine days, and what each set of exporters writes of it: the world of `live-paths`.

Services with a day's rhythm, replicas at rest that hold framebuffer, batch jobs one after the other, notebooks, vLLM
servers whose cache is taken at their start, cards that HAMi shares out, and free ones. It is written as a neutral
trace, as gputide's exporters write it, and as dcgm-exporter, kube-state-metrics, HAMi and vLLM do (names, labels,
units: the sources that `fleet.series` and `fleet.server_series` name). Nothing is taken from the product's own
synthetic fleet.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

Floats = NDArray[np.float64]

CLUSTER = "seen"
STEP_S = 300
DAY = 86_400 // STEP_S
LEARNED_DAYS, DAYS = 7, 9
LEARNED = LEARNED_DAYS * DAY
START_S = 1_767_571_200  # 2026-01-05 00:00 UTC, a Monday
UNTIL = datetime.fromtimestamp(START_S + LEARNED * STEP_S, UTC)
"""The moment at which plans are made; the days after it are held out."""
BORN_S = START_S - 40 * 86_400
MIB, GIB = 2**20, 2**30
A10, A100 = "NVIDIA A10G", "NVIDIA A100-SXM4-80GB"
SIZE_MIB = {A10: 23_028, A100: 81_920}
NODES = {A10: 7, A100: 3}
CACHE_BLOCKS, BLOCK_TOKENS, TOKEN_BYTES = 26_000, 16, 131_072
"""vLLM's cache for Llama 3.1 8B: 32 layers, 8 heads for keys and values of 128 numbers, two bytes each."""
EXPORTER = {"namespace": "gpu-operator", "pod": "nvidia-dcgm-exporter-x2x4z", "container": "exporter"}
"""What a scrape adds of dcgm-exporter itself."""
OPTED_OUT = {"gputide.io/opt-out": "true"}
CPU_CORES, MEMORY_BYTES = 3.0, 24 * GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One card."""

    uuid: str
    model: str
    node: str

    @property
    def size(self) -> int:
        """Its framebuffer, bytes."""
        return SIZE_MIB[self.model] * MIB


@dataclass(slots=True, kw_only=True)
class Tenant:
    """One pod on one card; arrays are per step of the nine days."""

    pod: str
    namespace: str
    workload: str
    kind: str
    owner: tuple[str, str]
    server: str
    image: str
    card: Card
    duty: Floats
    used_mib: Floats
    sm: Floats | None = None
    granted: int | None = None
    cores: float | None = None
    kv: Floats | None = None
    rate: Floats | None = None
    opted_out: bool = False
    priority: str = "normal"
    first: int = 0
    last: int = DAYS * DAY

    def __post_init__(self) -> None:
        # The driver counts it in whole percent, for everyone.
        self.duty = np.round(self.duty, 2)

    @property
    def born_s(self) -> int:
        """When it was made, epoch seconds."""
        return BORN_S if self.first == 0 else START_S + self.first * STEP_S

    @property
    def steps(self) -> slice:
        """The steps in which it was there."""
        return slice(self.first, self.last)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One series of an exporter: labels with `__name__`, times in epoch seconds, values."""

    labels: dict[str, str]
    times: NDArray[np.int64]
    values: Floats


@dataclass(slots=True)
class SeenFleet:
    """The fleet of a seed."""

    seed: int
    cards: list[Card] = field(default_factory=list)
    tenants: list[Tenant] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.seed)
        for model, nodes in NODES.items():
            for number in range(nodes * 8):
                uuid = f"GPU-{self.seed:04x}{number:04x}-0000-4000-8000-{len(self.cards):012x}"
                node = f"{'a10' if model == A10 else 'a100'}-{number // 8}"
                self.cards.append(Card(uuid=uuid, model=model, node=node))
        free = {model: [card for card in self.cards if card.model == model] for model in NODES}
        for cards in free.values():
            rng.shuffle(cards)
        for number in range(9):
            self._service(rng, f"svc-{number}", [free[A10].pop() for _ in range(3)])
        for number in range(2):
            self._service(rng, f"large-{number}", [free[A100].pop() for _ in range(3)])
        for number in range(4):
            self._vllm(rng, f"llm-{number}", [free[A100].pop() for _ in range(3)])
        for number in range(8):
            self._holder(rng, f"forgotten-{number}", free[A10 if number < 6 else A100].pop())
        for number in range(5):
            self._notebook(rng, f"nb-{number}", free[A10].pop())
        for number in range(8):
            self._jobs(rng, f"train-{number}", free[A10 if number < 6 else A100].pop())
        for number in range(6):
            self._shared(rng, f"shared-{number}", free[A10].pop())

    def _deployment(self, rng: np.random.Generator, name: str, card: Card, **more: Any) -> None:
        tail = "".join(rng.choice(list("bcdfghjklmnpqrstvwxz2456789"), 5))
        replicas = f"{name}-7d9f8c6b5"
        self.tenants.append(
            Tenant(
                pod=f"{replicas}-{tail}", workload=name, kind="Deployment", owner=("ReplicaSet", replicas),
                namespace=f"team-{sum(map(ord, name)) % 7}", card=card, **more,
            )
        )  # fmt: skip

    def _service(self, rng: np.random.Generator, name: str, cards: list[Card]) -> None:
        level, phase, rest = rng.uniform(0.12, 0.6), rng.uniform(0, 24), rng.uniform(0.0, 0.25)
        share, weights, opted_out = rng.uniform(0.35, 0.8), rng.uniform(0.1, 0.35), name == "svc-0"
        for card in cards:
            duty = np.clip(level * (rest + (1 - rest) * _day(phase)) * _noise(rng, 0.12), 0, 1)
            used = SIZE_MIB[card.model] * (weights + 0.25 * duty) + rng.uniform(0, 200)
            self._deployment(
                rng, name, card, server="triton", image="nvcr.io/nvidia/tritonserver:25.01-py3", duty=duty,
                sm=duty * share, used_mib=used, opted_out=opted_out,
            )  # fmt: skip

    def _vllm(self, rng: np.random.Generator, name: str, cards: list[Card]) -> None:
        level, phase = rng.uniform(0.15, 0.5), rng.uniform(0, 24)
        for card in cards:
            duty = np.clip(level * (0.15 + 0.85 * _day(phase)) * _noise(rng, 0.15), 0, 1)
            used = np.full(len(duty), 17_000.0 + CACHE_BLOCKS * BLOCK_TOKENS * TOKEN_BYTES / MIB + rng.integers(500))
            self._deployment(
                rng, name, card, server="vllm", image="vllm/vllm-openai:v0.9.1", duty=duty, sm=duty * 0.6,
                used_mib=used, kv=np.clip(0.6 * duty * _noise(rng, 0.1), 0, 1), rate=20 * duty,
            )  # fmt: skip

    def _holder(self, rng: np.random.Generator, name: str, card: Card) -> None:
        zero = np.zeros(DAYS * DAY)
        self._deployment(
            rng, name, card, server="triton", image="nvcr.io/nvidia/tritonserver:25.01-py3", duty=zero, sm=zero,
            used_mib=np.full(DAYS * DAY, float(rng.integers(2000, 12_000))),
        )  # fmt: skip

    def _notebook(self, rng: np.random.Generator, name: str, card: Card) -> None:
        busy = np.zeros(DAYS * DAY)
        for day in range(DAYS):
            for _ in range(rng.integers(0, 3)):
                at = day * DAY + int(rng.uniform(9, 18) * 12)
                busy[at : at + int(rng.integers(3, 18))] = rng.uniform(0.2, 0.9)
        self.tenants.append(
            Tenant(
                pod=f"{name}-0", workload=name, kind="StatefulSet", owner=("StatefulSet", name), namespace="research",
                server="jupyter", image="quay.io/jupyter/pytorch-notebook:cuda12-2025-01", card=card, duty=busy,
                sm=busy * 0.5, used_mib=np.where(busy > 0, 7500.0, 1500.0),
            )
        )  # fmt: skip

    def _jobs(self, rng: np.random.Generator, name: str, card: Card) -> None:
        at, number = int(rng.integers(0, DAY // 2)), 0
        while at < DAYS * DAY - 24:
            last = min(DAYS * DAY, at + int(rng.integers(4 * 12, 20 * 12)))
            duty = np.clip(0.93 * _noise(rng, 0.03), 0, 1)
            self.tenants.append(
                Tenant(
                    pod=f"{name}-{number}-k7x2p", workload=f"{name}-{number}", kind="Job",
                    owner=("Job", f"{name}-{number}"), namespace="research", server="pytorch",
                    image="registry.example/train:7", card=card, duty=duty, sm=duty * 0.8,
                    used_mib=np.full(DAYS * DAY, 0.7 * SIZE_MIB[card.model]), first=at, last=last,
                )
            )  # fmt: skip
            at, number = last + int(rng.integers(6, 60)), number + 1
            # Who has just come when the plan is made is seen by some a look earlier than by others.
            at += 6 if LEARNED - 3 <= at <= LEARNED else 0

    def _shared(self, rng: np.random.Generator, name: str, card: Card) -> None:
        for place in range(int(rng.integers(2, 4))):
            level, phase = rng.uniform(0.05, 0.3), rng.uniform(0, 24)
            duty = np.clip(level * (0.1 + 0.9 * _day(phase)) * _noise(rng, 0.1), 0, 0.33)
            self._deployment(
                rng, f"{name}-{place}", card, server="triton", image="nvcr.io/nvidia/tritonserver:25.01-py3", duty=duty,
                used_mib=2000 + 3000 * duty, granted=7000 * MIB, cores=0.33,
                priority=("high", "low", "normal")[place],
            )  # fmt: skip

    # -- the neutral trace -----------------------------------------------------------------------------------------

    def write_trace(self, folder: Path, *, steps: int) -> None:
        """Write the first steps as a trace."""
        folder.mkdir(parents=True)
        usage = []
        for one in self.tenants:
            at = np.arange(one.first, min(one.last, steps))
            none = np.full(len(at), np.nan)
            usage.append(
                pd.DataFrame(
                    {
                        "ts": _moments(at), "pod": one.pod, "card": one.card.uuid, "duty_cycle_ratio": one.duty[at],
                        "sm_active_ratio": none if one.sm is None else one.sm[at],
                        "framebuffer_used_bytes": np.round(one.used_mib[at]) * MIB,
                        "kv_cache_usage_ratio": none if one.kv is None else one.kv[at],
                        "request_rate_per_second": none if one.rate is None else one.rate[at],
                    }
                )
            )  # fmt: skip
        pods = [
            {
                "pod": one.pod, "container": "main", "namespace": one.namespace, "workload": one.workload,
                "workload_kind": one.kind, "cluster": CLUSTER, "node": one.card.node, "card": one.card.uuid,
                "card_model": one.card.model, "framebuffer_bytes": one.card.size,
                "framebuffer_granted_bytes": one.granted or one.card.size, "compute_granted_ratio": one.cores or 1.0,
                "priority": one.priority, "server": one.server,
                "kv_cache_pool_bytes": None if one.kv is None else CACHE_BLOCKS * BLOCK_TOKENS * TOKEN_BYTES,
                "started_at": pd.Timestamp(one.born_s, unit="s", tz="UTC"),
                "ended_at": pd.Timestamp(START_S + one.last * STEP_S, unit="s", tz="UTC")
                if one.last < steps else None,
                "cpu_request_cores": CPU_CORES, "memory_request_bytes": MEMORY_BYTES,
            }
            for one in self.tenants
            if one.first < steps
        ]  # fmt: skip
        cards = [
            {
                "card": card.uuid, "card_model": card.model, "framebuffer_bytes": card.size, "node": card.node,
                "cluster": CLUSTER, "node_cpu_cores": 96.0, "node_memory_bytes": 1024 * GIB,
            }
            for card in self.cards
        ]  # fmt: skip
        pd.concat(usage).sort_values("ts").to_parquet(folder / "usage.parquet")
        frame = pd.DataFrame(pods)
        frame["ended_at"] = pd.to_datetime(frame["ended_at"], utc=True)
        labels = [list(OPTED_OUT.items()) if one.opted_out else [] for one in self.tenants if one.first < steps]
        table = pa.Table.from_pandas(frame, preserve_index=False)
        table = table.append_column("labels", pa.array(labels, pa.map_(pa.string(), pa.string())))
        pq.write_table(table, folder / "pods.parquet")
        pd.DataFrame(cards).to_parquet(folder / "cards.parquet")

    # -- exporters -------------------------------------------------------------------------------------------------

    def own_words(self) -> Iterator[Written]:
        """Gputide's node exporter and cluster exporter; the learned days, as all that follow."""
        for card in self.cards:
            labels = {"cluster": CLUSTER, "node": card.node, "card": card.uuid, "card_model": card.model}
            duty, sm, used, _ = self._on(card)
            for name, values in (
                ("duty_cycle_ratio", duty),
                ("sm_active_ratio", sm),
                ("framebuffer_used_bytes", used * MIB),
            ):
                yield _written(f"gputide_card_{name}", labels, np.round(values, 6))
            yield _written("gputide_card_info", {**labels, "framebuffer_bytes": str(card.size)}, _ones())
        for node in sorted({card.node for card in self.cards}):
            facts = {"cpu_cores": "96", "memory_bytes": str(1024 * GIB)}
            yield _written("gputide_node_info", {"cluster": CLUSTER, "node": node, **facts}, _ones())
        for one in self.tenants:
            labels = {
                "cluster": CLUSTER, "namespace": one.namespace, "pod": one.pod, "container": "main",
                "node": one.card.node, "card": one.card.uuid, "card_model": one.card.model,
            }  # fmt: skip
            for name, measured in (
                ("duty_cycle_ratio", one.duty), ("sm_active_ratio", one.sm),
                ("framebuffer_used_bytes", np.round(one.used_mib) * MIB),
            ):  # fmt: skip
                if measured is not None:
                    yield _written(f"gputide_slice_{name}", labels, np.round(measured, 6), one)
            info = {
                "workload": one.workload, "workload_kind": one.kind, "framebuffer_bytes": str(one.card.size),
                "framebuffer_granted_bytes": str(one.granted or one.card.size),
                "compute_granted_ratio": str(one.cores or 1.0), "priority": one.priority, "server": one.server,
                "cpu_request_cores": str(CPU_CORES), "memory_request_bytes": str(MEMORY_BYTES),
                "started_at": datetime.fromtimestamp(one.born_s, UTC).isoformat(),
                "labels": json.dumps(OPTED_OUT) if one.opted_out else "",
            }  # fmt: skip
            yield _written("gputide_slice_info", {**labels, **info}, _ones(), one)
        yield from self._servers()

    def foreign_words(self) -> Iterator[Written]:
        """dcgm-exporter with pod labels, kube-state-metrics, HAMi and vLLM."""
        yield from self._dcgm()
        yield from self._hami()
        yield from self._kube_state_metrics()
        yield from self._servers()

    def _on(self, card: Card) -> tuple[Floats, Floats, Floats, list[Tenant]]:
        """Duty cycle, SM active and framebuffer of a card, and its tenants."""
        tenants = [one for one in self.tenants if one.card is card]
        duty, sm, used = np.zeros(DAYS * DAY), np.zeros(DAYS * DAY), np.zeros(DAYS * DAY)
        for one in tenants:
            duty[one.steps] += one.duty[one.steps]
            used[one.steps] += np.round(one.used_mib[one.steps])
            # Nobody measures it per process; the card's own counter sees all of them.
            sm[one.steps] += (0.5 * one.duty if one.sm is None else one.sm)[one.steps]
        return np.minimum(duty, 1), sm, used, tenants

    def _dcgm(self) -> Iterator[Written]:
        for number, card in enumerate(self.cards):
            duty, sm, used, tenants = self._on(card)
            place = {
                "gpu": str(number % 8), "UUID": card.uuid, "device": f"nvidia{number % 8}", "modelName": card.model,
                "Hostname": card.node, "DCGM_FI_DRIVER_VERSION": "550.127.05", "job": "dcgm-exporter",
                "instance": f"{card.node}:9400", **EXPORTER,
            }  # fmt: skip
            is_held = np.zeros(DAYS * DAY, dtype=bool)
            spans: list[tuple[dict[str, str], NDArray[np.int64]]] = []
            for one in tenants:
                if one.granted is None:  # the kubelet names the holders of whole cards only
                    is_held[one.steps] = True
                    pod = {
                        "exported_namespace": one.namespace, "exported_pod": one.pod, "exported_container": "main",
                    }  # fmt: skip
                    spans.append((pod, np.arange(one.first, one.last)))
            spans.append(({}, np.flatnonzero(~is_held)))
            for pod, at in spans:
                for name, values in (
                    ("DCGM_FI_DEV_GPU_UTIL", np.round(duty * 100)),
                    ("DCGM_FI_PROF_SM_ACTIVE", np.round(sm, 6)),
                    ("DCGM_FI_PROF_DRAM_ACTIVE", np.round(0.4 * duty, 6)),
                    ("DCGM_FI_DEV_FB_USED", used),
                    ("DCGM_FI_DEV_FB_FREE", float(SIZE_MIB[card.model]) - used),
                ):
                    yield _at(name, {**place, **pod}, values, at)

    def _hami(self) -> Iterator[Written]:
        for one in self.tenants:
            if one.granted is None or one.cores is None:
                continue
            labels = {
                "device_uuid": one.card.uuid, "device_type": f"NVIDIA-{one.card.model}", "node": one.card.node,
                "exported_namespace": one.namespace, "exported_pod": one.pod, "exported_container": "main",
                "namespace": "kube-system", "pod": "hami-device-plugin-x2x4z", "container": "vgpu-monitor",
                "job": "hami", "instance": f"{one.card.node}:9394",
            }  # fmt: skip
            yield _written("hami_vgpu_memory_used_bytes", labels, np.round(one.used_mib) * MIB, one)
            yield _written("hami_vgpu_memory_limit_bytes", labels, np.full(DAYS * DAY, float(one.granted)), one)
            yield _written("hami_container_device_utilization_ratio", labels, np.round(one.duty * 100), one)
            yield _written("hami_vgpu_core_allocated_ratio", labels, np.full(DAYS * DAY, 100 * one.cores), one)

    def _kube_state_metrics(self) -> Iterator[Written]:
        job = {"job": "kube-state-metrics", "instance": "10.0.0.9:8080"}
        owned: set[tuple[str, str]] = set()
        for node in sorted({card.node for card in self.cards}):
            for resource, amount in (("cpu", 96.0), ("memory", 1024.0 * GIB), ("nvidia_com_gpu", 8.0)):
                labels = {"node": node, "resource": resource, "unit": "core" if resource == "cpu" else "byte", **job}
                yield _written("kube_node_status_allocatable", labels, np.full(DAYS * DAY, amount))
        for one in self.tenants:
            pod = {"namespace": one.namespace, "pod": one.pod, **job}
            main = {**pod, "container": "main"}
            kind, name = one.owner
            owner = {"owner_kind": kind, "owner_name": name, "owner_is_controller": "true"}
            yield _written("kube_pod_owner", {**pod, **owner}, _ones(), one)
            yield _written("kube_pod_info", {**pod, "node": one.card.node, "priority_class": ""}, _ones(), one)
            yield _written("kube_pod_created", pod, np.full(DAYS * DAY, float(one.born_s)), one)
            yield _written("kube_pod_container_info", {**main, "image_spec": one.image}, _ones(), one)
            labels = {"label_gputide_io_opt_out": "true"} if one.opted_out else {}
            yield _written("kube_pod_labels", {**pod, **labels, "label_app": one.workload}, _ones(), one)
            if one.priority != "normal":
                asked = {**main, "resource": "nvidia_com_priority"}
                level = np.full(DAYS * DAY, float(one.priority == "low"))
                yield _written("kube_pod_container_resource_requests", asked, level, one)
            if kind == "ReplicaSet" and one.owner not in owned:
                owned.add(one.owner)
                replicas = {"namespace": one.namespace, "replicaset": name, **job}
                owner = {"owner_kind": "Deployment", "owner_name": one.workload, "owner_is_controller": "true"}
                yield _written("kube_replicaset_owner", {**replicas, **owner}, _ones(), one)
            for resource, amount in (("cpu", CPU_CORES), ("memory", float(MEMORY_BYTES)), ("nvidia_com_gpu", 1.0)):
                asked = {**main, "resource": resource, "node": one.card.node}
                yield _written("kube_pod_container_resource_requests", asked, np.full(DAYS * DAY, amount), one)

    def _servers(self) -> Iterator[Written]:
        for number, one in enumerate(self.tenants):
            if one.kv is None or one.rate is None:
                continue
            labels = {
                "namespace": one.namespace, "pod": one.pod, "container": "main", "job": "vllm",
                "instance": f"10.1.0.{number}:8000",
            }  # fmt: skip
            named = {**labels, "model_name": "meta-llama/Llama-3.1-8B-Instruct", "engine": "0"}
            cache = {"cache_dtype": "auto", "block_size": str(BLOCK_TOKENS), "num_gpu_blocks": str(CACHE_BLOCKS)}
            yield _written("vllm:kv_cache_usage_perc", named, np.round(one.kv, 6), one)
            yield _written("vllm:num_requests_running", named, np.round(8 * one.duty), one)
            yield _written("vllm:cache_config_info", {**labels, **cache}, _ones(), one)
            # A counter needs two looks within the rules' five minutes.
            times = START_S + np.arange(1, 2 * LEARNED + 1, dtype=np.int64) * (STEP_S // 2)
            count = np.cumsum(np.repeat(one.rate[:LEARNED] * (STEP_S / 2), 2))
            success = {"__name__": "vllm:request_success_total", **named, "finished_reason": "stop"}
            yield Written(labels=success, times=times, values=np.round(count))


def open_metrics(series: Iterator[Written], path: Path) -> None:
    """Write series as `promtool tsdb create-blocks-from openmetrics` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for one in series:
            labels = ",".join(f"{key}={json.dumps(text)}" for key, text in one.labels.items() if key != "__name__")
            head = f"{one.labels['__name__']}{{{labels}}}"
            pairs = zip(one.times.tolist(), one.values.tolist(), strict=True)
            file.writelines(f"{head} {value!r} {time}\n" for time, value in pairs)
        file.write("# EOF\n")


def _day(phase: float) -> Floats:
    hour = np.arange(DAYS * DAY) * (24 / DAY)
    wave: Floats = np.clip(0.5 + 0.62 * np.sin((hour - phase) * (2 * np.pi / 24)), 0, 1)
    return wave


def _noise(rng: np.random.Generator, sigma: float) -> Floats:
    noise: Floats = np.exp(rng.normal(0, sigma, DAYS * DAY))
    return noise


def _ones() -> Floats:
    return np.ones(DAYS * DAY)


def _moments(at: NDArray[np.int64]) -> pd.DatetimeIndex:
    return pd.to_datetime(START_S + (at + 1) * STEP_S, unit="s", utc=True)


def _written(name: str, labels: dict[str, str], values: Floats, one: Tenant | None = None) -> Written:
    at = np.arange(DAYS * DAY) if one is None else np.arange(one.first, one.last)
    return _at(name, labels, values, at)


def _at(name: str, labels: dict[str, str], values: Floats, at: NDArray[np.int64]) -> Written:
    at = at[at < LEARNED]
    return Written(labels={"__name__": name, **labels}, times=START_S + (at + 1) * STEP_S, values=values[at])
