"""The names that other exporters have for what we have too: the alias table of `fleet.series`, read backwards.

There is no second list of names. Each known name is asked what it would mean with the labels that its exporter writes;
the answer says which figure of ours stands behind it, and by which factor. Called by `exporter.compat.translation`.

Source of the labels' spellings: NVIDIA/dcgm-exporter:internal/pkg/transformation/kubernetes.go,
Project-HAMi/HAMi:cmd/scheduler/metrics.go and cmd/vGPUmonitor/metrics.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from fleet.schema import Measure
from fleet.series import SeriesIdentity, Subject, known_names, resolve


class NameSource(StrEnum):
    """Whose names they are."""

    DCGM = "dcgm"
    """dcgm-exporter, series of whole cards."""
    HAMI = "hami"
    """HAMi's node monitor and scheduler, names from v2.9 on."""
    HAMI_LEGACY = "hami_legacy"
    """The same two, older names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignName:
    """One name of another exporter.

    Attributes:
        subject: what it speaks of: CARD, SLICE, GRANT or CAPACITY.
        measure: the measure; None for facts.
        fact: the fact, a field of what was granted or may be; None for measures.
        factor: a value of that exporter times `factor` is in the unit of the measure or fact.
    """

    name: str
    subject: Subject
    measure: Measure | None
    fact: str | None
    factor: float


WRITTEN_LABELS: Mapping[NameSource, Mapping[str, str]] = MappingProxyType(
    {
        NameSource.DCGM: {
            "node": "Hostname",
            "card": "UUID",
            "card_model": "modelName",
            "namespace": "namespace",
            "pod": "pod",
            "container": "container",
            "mig_profile": "GPU_I_PROFILE",
            "gpu_instance": "GPU_I_ID",
        },
        NameSource.HAMI: {
            "node": "node",
            "card": "device_uuid",
            "card_model": "device_type",
            "namespace": "namespace",
            "pod": "pod",
            "container": "container",
            "mig": "mig_uuid",
            "mig_profile": "profile",
            "gpu_instance": "gpu_instance_id",
            "compute_instance": "compute_instance_id",
        },
        NameSource.HAMI_LEGACY: {
            "node": "nodeid",
            "card": "deviceuuid",
            "card_model": "devicetype",
            "namespace": "podnamespace",
            "pod": "podname",
            "container": "ctrname",
            "gpu_instance": "instanceid",
        },
    }
)
"""Per source, the label in which it writes each part of an identity."""

_OF_WHOLE_CARDS = ("node", "card", "card_model", "namespace", "pod", "container")
_SUBJECTS = frozenset({Subject.CARD, Subject.SLICE, Subject.GRANT, Subject.CAPACITY})


def names_of(source: NameSource) -> tuple[ForeignName, ...]:
    """The names of one exporter whose meaning we know, sorted.

    Names that count for MIG instances only are not among them: their series need the instance's number.
    """
    # A whole card's: with an instance's labels a name would mean what the instance does.
    labels = {WRITTEN_LABELS[source][part]: part for part in _OF_WHOLE_CARDS}
    found = []
    for name in known_names():
        meaning = resolve(name, labels)
        if meaning is not None and meaning.subject in _SUBJECTS and _is_whole(meaning.identity):
            found.append(
                ForeignName(
                    name=name,
                    subject=meaning.subject,
                    measure=meaning.measure,
                    fact=meaning.fact,
                    factor=meaning.factor,
                )
            )
    return tuple(found)


def _is_whole(identity: SeriesIdentity) -> bool:
    """Whether every part came out of the label that it was put in; then the name is of this source."""
    return (identity.node, identity.card, identity.pod) == ("node", "card", "pod")
