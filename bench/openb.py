"""The openb pod lists as arrivals: real nodes and requests, inflated to 130 % of the cluster's cards.

The published protocol shuffles a list, draws more of its pods until 130 % of all cards have been asked for, and
places them one after the other; nobody leaves (hkust-adsl/kubernetes-scheduler-simulator:experiments/README.md).
"""

from __future__ import annotations

import csv
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from fleet.units import MIB
from recommender.online.placement import WHOLE_CARD, FreeNodes, PodKinds

ARRIVED_RATIO = 1.3
SEEDS = range(42, 52)
FOLDER = "alibaba-openb-v2023"
_LIST = "openb_pod_list_"


@dataclass(frozen=True, slots=True, kw_only=True)
class PodList:
    """One list: `kind_of` is the kind of each of its pods, in the file's order."""

    name: str
    kinds: PodKinds
    kind_of: NDArray[np.int64]


def read_nodes(folder: Path) -> tuple[FreeNodes, list[str]]:
    """All nodes with cards, and the names of the card models in the order of their numbers."""
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["sn"])
    models = sorted({row["model"] for row in rows})
    cards = np.array([int(row["gpu"]) for row in rows], np.int64)
    nodes = FreeNodes(
        cpu_milli=np.array([int(row["cpu_milli"]) for row in rows], np.int64),
        memory_bytes=np.array([int(row["memory_mib"]) * MIB for row in rows], np.int64),
        card_model=np.array([models.index(row["model"]) for row in rows], np.int64),
        cards=cards,
        card_milli=np.where(np.arange(cards.max()) < cards[:, None], WHOLE_CARD, 0).astype(np.int64),
    )
    return nodes, models


def list_names(folder: Path) -> list[str]:
    """Names of the lists that are there."""
    return sorted(path.stem for path in folder.glob(f"{_LIST}*.csv"))


def read_list(folder: Path, name: str, models: list[str]) -> PodList:
    """One pod list; pods that ask for the same are one kind."""
    with (folder / f"{name}.csv").open(newline="") as file:
        pods = [
            (
                int(row["cpu_milli"]),
                int(row["memory_mib"]),
                int(row["num_gpu"]),
                int(row["gpu_milli"]),
                row.get("gpu_spec") or "",
            )
            for row in csv.DictReader(file)
        ]
    counts = Counter(pods)
    numbers = {kind: number for number, kind in enumerate(counts)}
    columns = np.array([kind[:4] for kind in counts], np.int64)
    kinds = PodKinds(
        cpu_milli=columns[:, 0].copy(),
        memory_bytes=columns[:, 1] * MIB,
        cards=columns[:, 2].copy(),
        card_milli=columns[:, 3].copy(),
        may_use=np.array([[not kind[4] or model in kind[4].split("|") for model in models] for kind in counts]),
        frequency=np.array(list(counts.values()), float),
    )
    return PodList(name=name, kinds=kinds, kind_of=np.array([numbers[pod] for pod in pods], np.int64))


def arrivals(pods: PodList, nodes: FreeNodes, seed: int) -> NDArray[np.int64]:
    """The list shuffled, then pods drawn from it, until `ARRIVED_RATIO` of all cards has been asked for."""
    random = np.random.default_rng(seed)
    asked = pods.kinds.cards * pods.kinds.card_milli
    wanted = ARRIVED_RATIO * nodes.cards.sum() * WHOLE_CARD
    stream = random.permutation(pods.kind_of)
    while asked[stream].sum() < wanted:
        stream = np.concatenate([stream, random.choice(pods.kind_of, len(pods.kind_of))])
    return stream[: int(np.searchsorted(np.cumsum(asked[stream]), wanted)) + 1]


def allocated_percent(left: FreeNodes) -> float:
    """Share of all cards that is handed out, percent."""
    return float(100 * (1 - left.card_milli.sum() / (left.cards.sum() * WHOLE_CARD)))


def published_percent(folder: Path) -> dict[str, dict[str, float]]:
    """Published allocation at 130 %, mean over seeds, by list and policy."""
    table = pq.read_table(folder / "fgd_expected_analysis_allo_discrete.parquet").to_pylist()
    found: dict[str, dict[str, list[float]]] = {}
    for row in table:
        found.setdefault(row["workload"], {}).setdefault(row["sc_policy"], []).append(float(row["130"]))
    return {
        name: {policy: sum(values) / len(values) for policy, values in policies.items()}
        for name, policies in found.items()
    }
