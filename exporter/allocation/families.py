"""Every family of the scheduler layer: names, units and labels.

What must have been read before a family is shown stands beside it: until all pods are known a card that looks free may
be full, and missing is not zero. Called by `exporter.allocation.state`; the catalogue of metrics is made from
`FAMILIES`.
"""

from __future__ import annotations

from exporter.families import CataloguedFamily, gauge, info
from fleet.schema import (
    CARD_IDENTITY,
    CARD_INFO_LABELS,
    GRANT_LABELS,
    NODE_INFO_LABELS,
    QUOTA_INFO_LABELS,
    SLICE_IDENTITY,
)
from fleet.series import CARD_INFO, NODE_INFO, QUOTA_INFO, SLICE_INFO

_POD = ("cluster", "namespace", "pod")
_QUEUE = ("cluster", "kind", "namespace", "queue")
_QUOTA = ("cluster", "namespace", "quota", "resource")
_NODE = ("cluster", "node")


SLICE_GRANT_INFO = info(SLICE_INFO, "A slice that is granted, from the moment it is granted.", GRANT_LABELS)
SLICE_FRAMEBUFFER_GRANTED = gauge(
    "gputide_slice_framebuffer_granted_bytes", "Framebuffer granted to a container on a card, bytes.", SLICE_IDENTITY
)
SLICE_COMPUTE_GRANTED = gauge(
    "gputide_slice_compute_granted_ratio",
    "Share of the card's compute that a container may use, 0-1; 1 where nothing limits it.",
    SLICE_IDENTITY,
)
CONTAINER_DEVICES_GRANTED = gauge(
    "gputide_container_devices_granted",
    "Devices granted to a container that is bound to a node, in pieces of the resource.",
    (*_POD, "container", "node", "resource"),
)

CARD_GRANT_INFO = info(CARD_INFO, "A card, by its id, with its model and whole framebuffer.", CARD_INFO_LABELS)
CARD_SHARING_INFO = info(
    "gputide_card_sharing_info", "Who hands out a card, and in which mode.", (*CARD_IDENTITY, "backend", "mode")
)
CARD_GRANTABLE = gauge(
    "gputide_card_framebuffer_grantable_bytes",
    "Framebuffer of a card that may be granted in all, oversubscription included, bytes.",
    CARD_IDENTITY,
)
CARD_GRANTED = gauge(
    "gputide_card_framebuffer_granted_bytes", "Framebuffer granted on a card to living pods, bytes.", CARD_IDENTITY
)
CARD_FREE = gauge(
    "gputide_card_framebuffer_left_to_grant_bytes",
    "Framebuffer of a card that may still be granted, bytes; 0 where more is granted than may be, or it is cordoned.",
    CARD_IDENTITY,
)
CARD_COMPUTE_GRANTED = gauge(
    "gputide_card_compute_granted_ratio",
    "Sum of the compute limits granted on a card, as share of the card; slices without a limit add nothing.",
    CARD_IDENTITY,
)
CARD_COMPUTE_FREE = gauge(
    "gputide_card_compute_free_ratio",
    "Compute of a card that may still be granted, share of the card; 0 where it is cordoned.",
    CARD_IDENTITY,
)
CARD_TENANTS = gauge("gputide_card_tenants", "Pods that were granted a slice of a card.", CARD_IDENTITY)
CARD_SLICES_MAX = gauge("gputide_card_slices_max", "Slices that a card is split into at most.", CARD_IDENTITY)
CARD_HEALTHY = gauge("gputide_card_healthy", "1 where the device plugin calls a card healthy, else 0.", CARD_IDENTITY)
CARD_CORDONED = gauge("gputide_card_cordoned", "1 where nothing new is granted on a card, else 0.", CARD_IDENTITY)
CARD_TAINT_INFO = info(
    "gputide_card_taint_info",
    "A taint of a card that claims hand out, and who made it: its driver, or a DeviceTaintRule.",
    (*CARD_IDENTITY, "key", "value", "effect", "by"),
)

NODE_GRANT_INFO = info(NODE_INFO, "A node that has cards.", NODE_INFO_LABELS)
NODE_SHARING_INFO = info(
    "gputide_node_sharing_info", "A way in which a node's cards are handed out.", (*_NODE, "backend", "mode")
)
NODE_MIG_INFO = info(
    "gputide_node_mig_info",
    "MIG strategy of a node, the configuration that is wanted, and what became of it.",
    (*_NODE, "strategy", "config", "state"),
)
NODE_DEVICES = gauge(
    "gputide_node_devices_allocatable", "Devices that a node offers, in pieces of the resource.", (*_NODE, "resource")
)
NODE_DEVICES_GRANTED = gauge(
    "gputide_node_devices_granted",
    "Devices granted to living pods of a node, in pieces of the resource.",
    (*_NODE, "resource"),
)
NODE_UNREADABLE = gauge(
    "gputide_node_unreadable_registers",
    "Annotations of a node that list its cards and can't be read; nodes without any have no series.",
    _NODE,
)

DISTRUSTED_GRANTS = gauge(
    "gputide_distrusted_grants",
    "Pods whose annotations speak of a grant that they don't hold, by the reason for not counting it.",
    ("cluster", "reason"),
)
PENDING_POD_INFO = info(
    "gputide_pending_pod_info",
    "A pod that wants cards and is bound to no node.",
    (*_POD, "reason", "queue", "scheduler", "workload", "workload_kind"),
)
PENDING_SINCE = gauge(
    "gputide_pending_pod_since_timestamp_seconds", "Since when a pod that wants cards waits, epoch seconds.", _POD
)
PENDING_PODS = gauge("gputide_pending_pods", "Pods that want cards and wait, by reason.", ("cluster", "reason"))
PENDING_DEVICES = gauge(
    "gputide_pending_devices", "Devices that waiting pods want, in pieces of the resource.", ("cluster", "resource")
)
WAITING_GROUP_INFO = info(
    "gputide_waiting_group_info",
    "A PodGroup of Volcano or Workload of Kueue that waits as a whole.",
    ("cluster", "kind", "namespace", "name", "queue", "reason"),
)

QUEUE_INFO = info("gputide_queue_info", "A queue, and its parent, cohort or cluster queue.", (*_QUEUE, "parent"))
QUEUE_DESERVED = gauge(
    "gputide_queue_deserved", "What a queue is promised of a resource, in its unit.", (*_QUEUE, "resource")
)
QUEUE_LIMIT = gauge(
    "gputide_queue_limit", "What a queue may have at most of a resource, in its unit.", (*_QUEUE, "resource")
)
QUEUE_USED = gauge("gputide_queue_used", "What a queue holds of a resource, in its unit.", (*_QUEUE, "resource"))
QUEUE_PENDING = gauge("gputide_queue_pending_workloads", "Workloads that wait in a queue.", _QUEUE)
QUEUE_ADMITTED = gauge("gputide_queue_admitted_workloads", "Workloads that run by a queue.", _QUEUE)
QUOTA_DETAILS = info(
    QUOTA_INFO,
    "What a quota or queue promises, allows and holds of a resource, in its unit; empty where it does not say.",
    QUOTA_INFO_LABELS,
)
QUOTA_LIMIT = gauge("gputide_quota_limit", "What a namespace may have of a resource, in its unit.", _QUOTA)
QUOTA_USED = gauge("gputide_quota_used", "What a namespace holds of a resource, in its unit.", _QUOTA)

FAMILIES_OF_NODES: tuple[CataloguedFamily, ...] = (
    NODE_GRANT_INFO, NODE_SHARING_INFO, NODE_MIG_INFO, NODE_DEVICES, NODE_UNREADABLE, CARD_GRANT_INFO,
    CARD_SHARING_INFO, CARD_GRANTABLE, CARD_SLICES_MAX, CARD_HEALTHY, CARD_CORDONED, CARD_TAINT_INFO,
)  # fmt: skip
"""Shown when all nodes have been read."""

FAMILIES_OF_PODS: tuple[CataloguedFamily, ...] = (
    SLICE_FRAMEBUFFER_GRANTED, SLICE_COMPUTE_GRANTED, CONTAINER_DEVICES_GRANTED, CARD_GRANTED,
    CARD_FREE, CARD_COMPUTE_GRANTED, CARD_COMPUTE_FREE, CARD_TENANTS, NODE_DEVICES_GRANTED, DISTRUSTED_GRANTS,
    PENDING_SINCE, PENDING_PODS, PENDING_DEVICES,
)  # fmt: skip
"""Shown when all nodes and all pods have been read."""

FAMILIES_OF_OWNERS: tuple[CataloguedFamily, ...] = (SLICE_GRANT_INFO, PENDING_POD_INFO)
"""Shown when, besides, all that may own pods has been read: a grant whose workload changes is another grant."""

FAMILIES_OF_QUEUES: tuple[CataloguedFamily, ...] = (
    QUEUE_INFO, QUEUE_DESERVED, QUEUE_LIMIT, QUEUE_USED, QUEUE_PENDING, QUEUE_ADMITTED, QUOTA_LIMIT, QUOTA_USED,
    QUOTA_DETAILS, WAITING_GROUP_INFO,
)  # fmt: skip
"""Shown from the start: a row is there when its object has been read."""

FAMILIES: tuple[CataloguedFamily, ...] = (
    *FAMILIES_OF_NODES, *FAMILIES_OF_OWNERS, *FAMILIES_OF_PODS, *FAMILIES_OF_QUEUES,
)  # fmt: skip
"""Every family of the scheduler layer, in the order in which they are handed out."""
