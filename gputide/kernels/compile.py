"""Compiles every numba kernel once, so that the first real run does not wait: `python -m gputide.kernels.compile`.

Part of the set-up. It plays a tiny fleet through the loop in a folder that is thrown away; the machine code stays in
the caches beside the modules.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from analyzer.profile import profile_fleet
from exporter.synthetic.writer import CARDS_MIN, write_synthetic_fleet
from fleet.capabilities.register import capabilities_of
from fleet.data_folder import open_data_folder
from fleet.settings.settings import Settings
from gputide.container.history import load_history
from gputide.replay.clock import read_replay_clock
from gputide.replay.play import Playback, replay
from pipeline.history.matrix import read_matrix
from recommender.online.placement import FreeNodes, PodKinds, place_arrivals, placement_scores
from recommender.packing.exact import ExactPacker
from recommender.packing.packer import PackingProblem
from recommender.planner import make_plan

DAYS = 3


def main() -> None:
    """Run every kernel on a fleet of the least size."""
    settings = Settings()
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace"
        write_synthetic_fleet(trace, cards=CARDS_MIN, days=DAYS)
        folder = open_data_folder(Path(scratch) / "data", create=True)
        replay(folder, settings, Playback(trace=trace), tick=lambda done, total: None)
        clock = read_replay_clock(folder)
        if clock is None:
            raise AssertionError("a replay leaves its clock behind")
        history = load_history(folder, settings, clock.now)
        profiles = profile_fleet(history, settings=settings.analyzer, now=clock.now)
        make_plan(
            history,
            profiles,
            settings=settings,
            capability=capabilities_of(settings.enforcer.backend),
            now=clock.now,
        )
    compile_packers()
    # What a scan reads answers with; the rest of it is the way of the replay.
    read_matrix(b'{"data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"2"]]}]}}')


def compile_packers() -> None:
    """Run the kernels of the packers and of online placement that a plan does not, on the least there is."""
    types = np.arange(3, dtype=np.int32)
    problem = PackingProblem(
        item_type=types,
        item_workload=types,
        item_group=np.full(3, -1, np.int32),
        item_bytes=np.ones(3),
        load=np.full((3, 4), 0.6, np.float32),
        is_low=np.zeros(3, bool),
        capacity_bytes=3.0,
        slices_max=2,
    )
    for _ in ExactPacker().sweep(problem, [1.0], seed=1):
        pass
    one = np.ones(1, np.int64)
    nodes = FreeNodes(cpu_milli=one, memory_bytes=one, card_model=one - 1, cards=one, card_milli=one[:, None])
    kinds = PodKinds(
        cpu_milli=one,
        memory_bytes=one,
        cards=one,
        card_milli=one,
        may_use=np.ones((1, 1), bool),
        frequency=np.ones(1),
    )
    place_arrivals(nodes, kinds, one - 1)
    placement_scores(nodes, kinds, 0)


if __name__ == "__main__":
    main()
