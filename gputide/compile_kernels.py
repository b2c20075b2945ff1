"""Compiles every numba kernel once, so that the first real run does not wait: `python -m gputide.compile_kernels`.

Part of the set-up. It plays a tiny fleet through the loop in a folder that is thrown away; the machine code stays in
the caches beside the modules.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from analyzer.profile import profile_fleet
from exporter.synthetic import CARDS_MIN, write_synthetic_fleet
from fleet.capabilities import capabilities_of
from fleet.settings import Settings
from gputide.clock import read_replay_clock
from gputide.data_folder import open_data_folder
from gputide.replay import replay
from gputide.wiring import load_history
from recommender.planner import make_plan

DAYS = 3


def main() -> None:
    """Run every kernel on a fleet of the least size."""
    settings = Settings()
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch) / "trace"
        write_synthetic_fleet(trace, cards=CARDS_MIN, days=DAYS)
        folder = open_data_folder(Path(scratch) / "data", create=True)
        replay(
            folder,
            trace,
            since=None,
            until=None,
            settings=settings,
            speed=None,
            tick=lambda done, total: None,
            sleep=lambda seconds: None,
        )
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


if __name__ == "__main__":
    main()
