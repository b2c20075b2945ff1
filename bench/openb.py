"""The openb pod lists as arrivals: real nodes and requests, inflated to 130 % of the cluster's cards.

The published protocol shuffles a list, draws more of its pods until 130 % of all cards have been asked for, and
places them one after the other; nobody leaves (hkust-adsl/kubernetes-scheduler-simulator:experiments/README.md).

Watts are those of the published power-aware FGD (Lettich et al., arXiv:2412.17484; figures as in
Fr4nz83/PWR-plugin-kubernetes:pkg/type/open-gpu-share/utils/const.go and pkg/type/resource.go): a card with any work
draws its limit, one without what it draws at rest; so do the CPU's sockets, 16 cores of two threads each. The models G2
and G3 are undisclosed; they count as A10 and A100, as there. The node list names no CPU; all have Xeon E5-2682 v4.
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
from recommender.online.placement import (
    SOCKET_MILLI,
    WHOLE_CARD,
    FreeNodes,
    PlacementWeights,
    PodKinds,
    PowerDraw,
    place_arrivals,
)

ARRIVED_RATIO = 1.3
LOADS = (0.4, 0.6, 0.8, 1.0, ARRIVED_RATIO)
"""Shares of all cards that have been asked for, at which allocation is compared."""
ALLOCATED = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""Shares of all cards that are handed out, at which watts are compared."""
SEEDS = range(42, 52)
FOLDER = "alibaba-openb-v2023"
_LIST = "openb_pod_list_"
_CARD_WATTS = {
    "A10": (30.0, 150.0),
    "G2": (30.0, 150.0),
    "G3": (50.0, 400.0),
    "P100": (25.0, 250.0),
    "T4": (10.0, 70.0),
    "V100M16": (30.0, 300.0),
    "V100M32": (30.0, 300.0),
}
"""At rest, with work."""
_SOCKET_WATTS = (15.0, 120.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class PodList:
    """One list: `kind_of` is the kind of each of its pods, in the file's order."""

    name: str
    kinds: PodKinds
    kind_of: NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a list fills the cluster under one policy.

    Attributes:
        allocated_percent: at each of `LOADS`, (loads,).
        watts: at each of `ALLOCATED`, (shares,); NaN where the policy never hands out so much.
    """

    allocated_percent: NDArray[np.float64]
    watts: NDArray[np.float64]


def read_nodes(folder: Path) -> tuple[FreeNodes, list[str]]:
    """All nodes with cards, and the names of the card models in the order of their numbers."""
    with (folder / "openb_node_list_gpu_node.csv").open(newline="") as file:
        rows = sorted(csv.DictReader(file), key=lambda row: row["sn"])
    models = sorted({row["model"] for row in rows})
    cards = np.array([int(row["gpu"]) for row in rows], np.int64)
    cpu = np.array([int(row["cpu_milli"]) for row in rows], np.int64)
    rest, work = np.array([_CARD_WATTS[row["model"]] for row in rows]).T
    nodes = FreeNodes(
        cpu_milli=cpu,
        memory_bytes=np.array([int(row["memory_mib"]) * MIB for row in rows], np.int64),
        card_model=np.array([models.index(row["model"]) for row in rows], np.int64),
        cards=cards,
        card_milli=np.where(np.arange(cards.max()) < cards[:, None], WHOLE_CARD, 0).astype(np.int64),
        draw=PowerDraw(
            card_watts=work - rest,
            socket_watts=np.full(len(rows), _SOCKET_WATTS[1] - _SOCKET_WATTS[0]),
            cpu_total_milli=cpu,
        ),
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


def resting_watts(nodes: FreeNodes, models: list[str]) -> float:
    """What the cluster draws without any work."""
    rest = np.array([_CARD_WATTS[model][0] for model in models])
    return float(
        (nodes.cards * rest[nodes.card_model]).sum() - (-nodes.cpu_milli // SOCKET_MILLI).sum() * _SOCKET_WATTS[0]
    )


def course(
    pods: PodList, nodes: FreeNodes, stream: NDArray[np.int64], weights: PlacementWeights, rest: float
) -> Course:
    """Places the stream on empty nodes that draw `rest` watts."""
    placed = place_arrivals(nodes, pods.kinds, stream, weights=weights)
    asked = (pods.kinds.cards * pods.kinds.card_milli)[stream] / (nodes.cards.sum() * WHOLE_CARD)
    given = np.cumsum(asked * (placed.node_of >= 0))
    after = np.minimum(np.searchsorted(np.cumsum(asked), LOADS), len(stream) - 1)
    return Course(
        allocated_percent=100 * given[after],
        watts=rest + np.interp(ALLOCATED, given, np.cumsum(placed.watts), right=np.nan),
    )


def bound_watts(pods: PodList, nodes: FreeNodes, rest: float) -> NDArray[np.float64]:
    """About what no policy can draw less than, at each of `ALLOCATED`: cheapest cards first, cards and sockets full."""
    draw = nodes.draw
    assert draw is not None
    cheapest = np.argsort(draw.card_watts, kind="stable")
    cards = np.cumsum(nodes.cards[cheapest])
    watts = np.cumsum((nodes.cards * draw.card_watts)[cheapest])
    kinds = pods.kinds
    asked = (kinds.frequency * kinds.cards * kinds.card_milli).sum() / WHOLE_CARD
    sockets_per_card = (kinds.frequency * kinds.cpu_milli).sum() / SOCKET_MILLI / asked
    given = np.array(ALLOCATED) * nodes.cards.sum()
    least: NDArray[np.float64] = np.interp(given, [0, *cards], [0, *watts])
    least += rest + given * sockets_per_card * draw.socket_watts[0]
    return least


def published_percent(folder: Path) -> dict[str, dict[str, NDArray[np.float64]]]:
    """Published allocation at each of `LOADS`, mean over seeds, by list and policy."""
    table = pq.read_table(folder / "fgd_expected_analysis_allo_discrete.parquet").to_pylist()
    found: dict[str, dict[str, list[list[float]]]] = {}
    for row in table:
        at = [float(row[f"{load:.0%}".removesuffix("%")]) for load in LOADS]
        found.setdefault(row["workload"], {}).setdefault(row["sc_policy"], []).append(at)
    return {
        name: {policy: np.mean(values, axis=0) for policy, values in policies.items()}
        for name, policies in found.items()
    }
