"""How names of OpenTelemetry become those of Prometheus, which the alias table of `fleet.series` knows.

A resource stands for the target of a scrape: what it says is attached to the series as Prometheus attaches the labels
of a target, and an attribute of a point with the same name is renamed to `exported_…`, as under `honor_labels: false`.
So `fleet.provenance` judges both alike. The collector's Prometheus receiver turns `job` and `instance` into
`service.name` and `service.instance.id`, and leaves all other labels at the points. Called by `pipeline.otlp`. Standard
library only.

Sources: opentelemetry.io/docs/specs/otel/compatibility/prometheus_and_openmetrics (names, `job`, `instance`),
opentelemetry.io/docs/specs/semconv/resource (k8s, service, host), opentelemetry.io/docs/specs/otel/metrics/api
(instrument names).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType

from fleet.series import known_names

RESOURCE_LABELS: Mapping[str, str] = MappingProxyType(
    {
        "service.instance.id": "instance",
        "k8s.cluster.name": "cluster",
        "k8s.node.name": "node",
        "k8s.namespace.name": "namespace",
        "k8s.pod.name": "pod",
        "k8s.container.name": "container",
        "host.name": "hostname",
    }
)
"""Attributes of a resource that count, and the labels that they become; all others are left out."""
SERVICE_NAME, SERVICE_NAMESPACE = "service.name", "service.namespace"
"""Attributes of a resource that make up `job`: the name alone, or the namespace, a slash and the name."""
WEAK_LABELS = frozenset({"hostname"})
"""Labels of the resource that give way to an attribute of a point: the collector's own host is seldom the card's."""
TARGET_LABELS = frozenset({"job", "instance"})
"""Labels that only a resource may give: an attribute of a point of such a name is renamed in any case."""
PUSHED = "otlp"
"""`instance` where a resource says neither `job` nor `instance`, so that the series is not taken for one that a rule or
a program of the administrator's wrote (`fleet.provenance`)."""

_LABEL_LETTERS = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_"
_LABEL_NAME = bytes(byte if byte in _LABEL_LETTERS else 0x5F for byte in range(256))
_METRIC_NAME = bytes(byte if byte in _LABEL_LETTERS + b":" else 0x5F for byte in range(256))


def label_name(key: bytes) -> bytes:
    """The label that an attribute becomes: each byte that a label can't have is an underscore."""
    return key.translate(_LABEL_NAME)


def metric_name(name: bytes) -> str | None:
    """The name that a metric has in Prometheus, as the alias table spells it; None for one that nobody asked for.

    Without suffixes for its unit: `hw.power` is `hw_power`. Case does not count, because OpenTelemetry's names have
    none: its SDKs send `DCGM_FI_DEV_GPU_UTIL` as `dcgm_fi_dev_gpu_util`.
    """
    return _spellings().get(name.translate(_METRIC_NAME).lower())


@cache
def _spellings() -> Mapping[bytes, str]:
    return {name.lower().encode(): name for name in known_names()}
