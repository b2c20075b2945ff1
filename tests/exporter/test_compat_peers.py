"""Nothing that another exporter shows is forgotten: each name has a series of ours, or a reason why none."""

from collections import Counter

import pytest

from docs.metrics_catalogue import CATALOGUE
from docs.peer_names import Peer, PeerName, peer_names
from exporter.compat.figures import GRANT_SUMS, SHOWN_FIGURES
from exporter.compat.names import NameSource, names_of
from fleet.series import Subject, known_names
from fleet.servers import server_of_metric

CATALOGUED = {family.name for section in CATALOGUE for family in section.families}


@pytest.mark.parametrize("told", list(peer_names()), ids=lambda told: told.name)
def test_a_name_of_another_exporter_has_a_series_of_ours_or_a_reason(told: PeerName) -> None:
    assert told.families or told.remark
    assert set(told.families) <= CATALOGUED


def test_every_name_stands_there_once_with_its_exporter() -> None:
    names = Counter(told.name for told in peer_names())
    assert [name for name, count in names.items() if count > 1] == []
    assert {told.peer for told in peer_names()} == set(Peer)


def test_every_name_that_is_understood_on_the_way_in_stands_in_the_table() -> None:
    ours = {"gputide", "volcano", "kube"}
    # Cards of AMD and Ascend are read from their own exporters alone, and a name that is no more stands in a remark.
    elsewhere = ("hw_", "gpu_gfx_", "gpu_used_vram", "gpu_total_vram", "gpu_package_", "gpu_junction_",
                 "npu_chip_info_", "container_npu_", "gpu_sharing_gpu_")  # fmt: skip
    names = {name for name in known_names() if server_of_metric(name) is None}
    foreign = {name for name in names if name.replace(":", "_").partition("_")[0] not in ours}
    unlisted = foreign - {told.name for told in peer_names()}
    assert {name for name in unlisted if not name.startswith(elsewhere)} == set()


def test_what_compat_shows_beyond_the_table_is_in_no_list_of_theirs() -> None:
    # dcgm-exporter shows whatever field its file names; these are asked for often and stand in none of its own files.
    shown = {name.name for source in NameSource for name in names_of(source) if name.subject is not Subject.CAPACITY}
    shown |= {figure.name for figure in SHOWN_FIGURES} | {one.name for sums in GRANT_SUMS.values() for one in sums}
    assert shown - {told.name for told in peer_names()} == {
        "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
        "DCGM_FI_DEV_FB_TOTAL",
        "DCGM_FI_DEV_MAX_SM_CLOCK",
        "DCGM_FI_DEV_PCIE_LINK_GEN",
        "DCGM_FI_DEV_PCIE_LINK_WIDTH",
        "DCGM_FI_DEV_PSTATE",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_DEV_VIDEO_CLOCK",
        "DCGM_FI_PROF_NVLINK_RX_BYTES",
        "DCGM_FI_PROF_NVLINK_TX_BYTES",
    }
    assert {told.name for told in peer_names() if told.is_shown} <= shown
