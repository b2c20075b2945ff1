"""Annotations, labels, ids and paths: what whoever may write a pod, or run as one, makes us read."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from enforcer.admission import PlannedSeat, parse_seats, seats_text
from exporter.attribution.cgroup import container_id_of_status, parse_cgroup
from fleet.errors import Misconfigured
from fleet.gpu_policy import deciders, with_policies
from fleet.grammars.ascend import parse_ascend_grants
from fleet.grammars.device_ids import parse_device_id
from fleet.grammars.hami import parse_devices_allocated, parse_node_register
from fleet.grammars.kai import kai_groups, parse_kai_share
from fleet.grammars.metax import parse_metax_register
from fleet.grammars.mgpu import parse_card_indexes
from fleet.grammars.mig import parse_mig_allocations
from fleet.grammars.vendors import parse_vendor_allocations
from fleet.grammars.vgpumanager import parse_vgpu_allocation, parse_vgpu_register
from fleet.grammars.volcano import parse_volcano_ids, parse_volcano_register
from fleet.inventory import BY_POLICY_LABEL
from fleet.units import parse_bytes, parse_duration, parse_money, parse_quantity, parse_time
from tests.fuzz.parsers import Parser, text_of

CARD = "GPU-00000000-0000-4000-8000-000000000000"
UID = "0fd1b1e2-3a4b-4c5d-8e9f-a0b1c2d3e4f5"
CONTAINER = "c0ffee00" * 8
_GRANT = f"{CARD},NVIDIA,4096,50:;;{CARD},NVIDIA,1024,0:;"


def _of_text(name: str, read: Callable[[str], object], *seeds: str, cost: int = 1) -> Parser:
    return Parser(
        name=name, seeds=tuple(seed.encode() for seed in seeds), read=lambda data: read(text_of(data)), cost=cost
    )


def _of_texts(name: str, read: Callable[[dict[str, str]], object], *seeds: dict[str, str]) -> Parser:
    """A reader of annotations or labels: the API serves them as a JSON object of texts."""

    def read_object(data: bytes) -> object:
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            return None
        held: Any = found if isinstance(found, dict) else {}
        return read({key: value for key, value in held.items() if isinstance(value, str)})

    return Parser(name=name, seeds=tuple(json.dumps(seed).encode() for seed in seeds), read=read_object)


def _units(text: str) -> None:
    for parse in (parse_quantity, parse_bytes, parse_duration, parse_time, parse_money):
        with suppress(Misconfigured):
            parse(text)


ANNOTATIONS: tuple[Parser, ...] = (
    _of_text("hami-allocated", parse_devices_allocated, _GRANT, f"{CARD}[1-0],NVIDIA,4096,0:;"),
    _of_text(
        "hami-register",
        parse_node_register,
        f"{CARD},10,24576,100,NVIDIA-NVIDIA A10,0,true:",
        json.dumps([{"id": CARD, "index": 1, "count": 10, "devmem": 24576, "devcore": 100, "type": "NVIDIA-A10",
                     "numa": 1, "mode": "mig", "health": True}]),
    ),
    _of_text(
        "mig-allocations",
        parse_mig_allocations,
        json.dumps([{"gpuUUID": CARD, "profile": "1g.10gb", "placement": {"start": 4, "size": 1}, "migUUID": "",
                     "gpuInstanceID": 0}]),
    ),
    _of_text(
        "metax-register",
        parse_metax_register,
        json.dumps([{"uuid": CARD, "bdf": "0000:08:00.0", "model": "MXC500", "totalDevCount": 16, "totalCompute": 100,
                     "totalVRam": 65536, "numa": 0, "healthy": True}]),
    ),
    _of_text("vgpu-allocation", parse_vgpu_allocation,
             f"main[0_{CARD}_10_4096]", f"a[0_{CARD}_10_4096,1_{CARD}_5_1];b[]"),
    _of_text("vgpu-register", parse_vgpu_register, json.dumps([{"uuid": CARD, "numa": -1, "type": "NVIDIA A10", "id": 0,
                                                                "core": 100, "memory": 24576, "number": 10}])),
    _of_text("volcano-ids", parse_volcano_ids, f"{CARD},NVIDIA,4096,50:;;{CARD},NVIDIA,1024,0:"),
    _of_text("volcano-register", parse_volcano_register, f"{CARD},10,32768,NVIDIA-Tesla V100,true,hami-core:"),
    _of_text("ascend-grants", lambda text: parse_ascend_grants(text, "huawei.com/Ascend910B"),
             json.dumps([{"UUID": "u-1", "temp": "vir10_3c_32g", "memory": 32768, "core": 50}])),
    _of_text("mgpu-indexes", parse_card_indexes, "0,1,2"),
    _of_text("device-id", parse_device_id, CARD, f"{CARD}-3", f"{CARD}::2", f"MIG-{CARD}/1/0", f"MIG-{CARD[4:]}::1",
             "nvidia0/vgpu1"),
    _of_texts(
        "kai-share",
        lambda held: (parse_kai_share(held, held), kai_groups(held)),
        {"gpu-fraction": "0.5", "gpu-fraction-num-devices": "2", "gpu-fraction-container-name": "main"},
        {"gpu-memory": "4096", "runai-gpu-group": "g1", "runai-gpu-group/a": "g2"},
    ),
    _of_texts(
        "vendor-allocations",
        parse_vendor_allocations,
        {"hami.io/dcu-devices-allocated": "DCU-0,DCU,4096,30:;", "hami.io/xpu-devices-allocated": "x,X,1,1:;"},
        {"metax-tech.com/gpu-devices-allocated": f'[[{{"uuid":"{CARD}","compute":30,"vRam":16384}}]]'},
        {"hami.io/Ascend910B-devices-allocated": "u-1,Ascend910B,32768,50:;",
         "huawei.com/Ascend910B": '[{"UUID":"u-1","temp":"vir10_3c_32g"}]'},
    ),
    _of_text(
        "policy-note",
        lambda text: (deciders({BY_POLICY_LABEL: text}), with_policies({BY_POLICY_LABEL: text}, [], "team")),
        json.dumps({"": [], "gputide.io/opt-out": ["GpuPolicy team/web", "false"]}),
    ),
    _of_text("planned-seats", parse_seats, seats_text({
        "web-0": PlannedSeat(node="n1", cards=(CARD,), limits=(("nvidia.com/gpumem", "4096"), ("nvidia.com/gpu", None)))
    })),
    _of_text(
        "cgroup-path",
        parse_cgroup,
        f"12:pids:/kubepods/burstable/pod{UID}/{CONTAINER}\n11:devices:/\n1:name=systemd:/\n",
        f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope\n",
        f"0::/docker/{CONTAINER}/kubepods/pod{UID}/kata_{UID}/x\n",
    ),
    _of_text("container-id", container_id_of_status, f"containerd://{CONTAINER}", f"docker://{CONTAINER}"),
    _of_text("units", _units, "24Gi", "1.5", "512MiB", "15m", "30%", "2026-01-12T08:30:00+08:00", "1234.56 USD", "10k"),
)  # fmt: skip
"""In the order of the rooms that read them."""
