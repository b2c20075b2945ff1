"""promtool itself answers what the watch of a change asks, from each exporter's own words."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from enforcer.rollout.watch import FRAMEBUFFER, XID
from tests.engines.go_peers import GoPeers
from tests.engines.test_grafana_rules import promtool

pytestmark = pytest.mark.engines

SERIES = {
    'gputide_card_xid_events_total{node="n",card="GPU-1"}': "0 0 1 1 1",
    'gputide_card_xid_events_total{node="n",card="GPU-2"}': "3 3 3 3 3",
    'DCGM_FI_DEV_XID_ERRORS{gpu="0",UUID="GPU-3"}': "0 0 79 79 79",
    'DCGM_FI_DEV_XID_ERRORS{gpu="1",UUID="GPU-4"}': "31 31 31 31 31",
    'gputide_slice_framebuffer_used_bytes{namespace="t",pod="p",container="c",card="GPU-1"}': "9x5",
    'gputide_slice_framebuffer_granted_bytes{namespace="t",pod="p",container="c",card="GPU-1"}': "10x5",
    'hami_vgpu_memory_used_bytes{podnamespace="t",podname="q"}': "8x5",
    'hami_vgpu_memory_limit_bytes{podnamespace="t",podname="q"}': "10x5",
    'vGPU_device_memory_usage_in_bytes{podnamespace="t",podname="r"}': "7x5",
    'vGPU_device_memory_limit_in_bytes{podnamespace="t",podname="r"}': "10x5",
}
ANSWERS = dict(
    zip(
        (question.query for question in (*XID, *FRAMEBUFFER)),
        (
            {'{card="GPU-1"}': 1.0},
            {'{UUID="GPU-3"}': 1.0},
            {'{namespace="t",pod="p"}': 0.9},
            {'{podnamespace="t",podname="q"}': 0.8},
            {'{podnamespace="t",podname="r"}': 0.7},
        ),
        strict=True,
    )
)


def test_new_xid_events_and_full_grants_are_found_in_the_words_of_every_exporter(
    tmp_path: Path, go_peers: GoPeers
) -> None:
    played = {
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in SERIES.items()],
                "promql_expr_test": [
                    {
                        "expr": query,
                        "eval_time": "4m",
                        "exp_samples": [{"labels": labels, "value": value} for labels, value in found.items()],
                    }
                    for query, found in ANSWERS.items()
                ],
            }
        ],
    }
    path = tmp_path / "watch.yml"
    path.write_text(yaml.safe_dump(played), encoding="utf-8")
    promtool(go_peers, "test", "rules", str(path))
