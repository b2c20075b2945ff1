"""MetaX's register of a node's cards, in words of its own; the rest of MetaX is HAMi's grammar.

MetaX's device plugin lists the cards that it can share as JSON; HAMi's scheduler reads them from there. Pure parsing;
called by the scheduler layer.

Source: Project-HAMi/HAMi:pkg/device/metax/protocol.go (MetaxSDeviceInfo, convertMetaxSDeviceToHAMIDevice).
"""

from __future__ import annotations

from fleet.grammars.hami import RegisteredDevice
from fleet.grammars.text import (
    device_type,
    flag_member,
    identifier,
    integer_member,
    json_list,
    json_object,
    numa_member,
    text_member,
)

METAX_REGISTER_ANNOTATION = "metax-tech.com/node-gpu-devices"
"""Node annotation in which MetaX's device plugin lists the node's cards."""

_TYPE = "Metax-SGPU"


def parse_metax_register(text: str) -> tuple[RegisteredDevice, ...]:
    """Reads `metax-tech.com/node-gpu-devices`, a JSON list; fields that are zero or empty are left out.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    what = METAX_REGISTER_ANNOTATION
    devices = []
    for index, value in enumerate(json_list(text, what)):
        entry = json_object(value, what)
        devices.append(
            RegisteredDevice(
                card=identifier(text_member(entry, "uuid", what)),
                slices_max=integer_member(entry, "totalDevCount", what),
                framebuffer_mib=integer_member(entry, "totalVRam", what),
                core_percent=integer_member(entry, "totalCompute", what),
                device_type=device_type(text_member(entry, "model", what)) or _TYPE,
                numa=numa_member(entry, "numa", what),
                is_healthy=flag_member(entry, "healthy", what),
                index=index,
            )
        )
    return tuple(devices)
