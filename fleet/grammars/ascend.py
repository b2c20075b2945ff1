"""Ascend's templates: the sizes in which a chip is cut, and the annotation that says which one a pod got.

HAMi cuts an Ascend chip by templates, each with a fixed framebuffer and number of AI cores, or, where the pod asks for
it, softly by framebuffer and percent. Which template was granted stands in an annotation of its own beside HAMi's
(`fleet.grammars.hami`), one entry per card, in the same order. Pure parsing; read by `fleet.grammars.vendors`.

Sources: Project-HAMi/HAMi:charts/hami/templates/scheduler/device-configmap.yaml, pkg/device/ascend/device.go
(trimMemory, PatchAnnotations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fleet.grammars.hami import DeviceGrant
from fleet.grammars.text import device_type, identifier, integer_member, json_list, json_object, text_member

MODE_ANNOTATION = "huawei.com/vnpu-mode"
"""Pod annotation; `hami-core` asks for a soft split instead of a template."""
SOFT_MODE = "hami-core"


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendTemplate:
    """A size in which an Ascend chip is cut.

    Attributes:
        name: such as `vir05_1c_16g`.
    """

    name: str
    framebuffer_mib: int
    ai_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendChip:
    """An Ascend chip as HAMi's chart knows it.

    Attributes:
        name: HAMi's word, such as `Ascend910B3`.
        framebuffer_mib: framebuffer that can be granted, MiB.
        templates: the sizes, smallest first.
    """

    name: str
    framebuffer_mib: int
    ai_cores: int
    templates: tuple[AscendTemplate, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AscendGrant:
    """One chip's share for a pod, as `huawei.com/<chip>` writes it.

    Attributes:
        template: the size; None for a whole chip or a soft split.
        framebuffer_mib: framebuffer, MiB; 0 where the annotation leaves it out.
        core_percent: compute, percent; 0 where the annotation leaves it out.
    """

    card: str
    template: str | None
    framebuffer_mib: int
    core_percent: int


def _chip(name: str, framebuffer_mib: int, ai_cores: int, *templates: tuple[str, int, int]) -> AscendChip:
    return AscendChip(
        name=name,
        framebuffer_mib=framebuffer_mib,
        ai_cores=ai_cores,
        templates=tuple(
            AscendTemplate(name=word, framebuffer_mib=mib, ai_cores=cores) for word, mib, cores in templates
        ),
    )


_B3_TEMPLATES = (("vir05_1c_16g", 16384, 5), ("vir10_3c_32g", 32768, 10))

ASCEND_CHIPS: tuple[AscendChip, ...] = (
    _chip("Ascend910A", 32768, 30, ("vir02", 2184, 2), ("vir04", 4369, 4), ("vir08", 8738, 8), ("vir16", 17476, 16)),
    _chip("Ascend910B2", 65536, 24, ("vir03_1c_8g", 8192, 3), ("vir06_1c_16g", 16384, 6), ("vir12_3c_32g", 32768, 12)),
    _chip("Ascend910B3", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend910B4", 32768, 20, ("vir05_1c_8g", 8192, 5), ("vir10_3c_16g", 16384, 10)),
    _chip("Ascend910B4-1", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend910C", 65536, 20, *_B3_TEMPLATES),
    _chip("Ascend310P", 21527, 8, ("vir01", 3072, 1), ("vir02", 6144, 2), ("vir04", 12288, 4)),
)
"""Chart defaults; a cluster may define others."""

_CHIPS: Mapping[str, AscendChip] = {chip.name: chip for chip in ASCEND_CHIPS}


def ascend_annotation(chip: str) -> str:
    """Pod annotation with the templates that were granted of a chip."""
    return f"huawei.com/{chip}"


def ascend_ratios(
    chip: str, containers: Sequence[Sequence[DeviceGrant]], annotations: Mapping[str, str]
) -> tuple[float | None, ...]:
    """How much of its chip's compute each granted device has.

    A template's share is that of its AI cores; HAMi's own annotation says nothing of it. Where Ascend's annotation is
    not there a template is known by its size, which HAMi rounds requests up to.

    Returns:
        Per device of all containers, in their order: share of the chip, 0-1; None for a whole chip, and where nobody
        says.

    Raises:
        Corrupt: Ascend's annotation is not the grammar.
    """
    text = annotations.get(ascend_annotation(chip))
    told = [] if text is None else list(parse_ascend_grants(text, ascend_annotation(chip)))
    is_soft = annotations.get(MODE_ANNOTATION) == SOFT_MODE
    ratios = []
    for grant in (grant for grants in containers for grant in grants):
        own = next((one for one in told if one.card == grant.card), None)
        if own is not None:
            told.remove(own)
        percent = (0 if own is None else own.core_percent) or grant.core_percent
        if is_soft or percent:
            ratios.append(min(percent, 100) / 100 if percent else None)
        else:
            ratios.append(_ratio_of_template(chip, None if own is None else own.template, grant.framebuffer_mib))
    return tuple(ratios)


def parse_ascend_grants(text: str, annotation: str) -> tuple[AscendGrant, ...]:
    """Reads `huawei.com/<chip>`: a JSON list of `{UUID, temp, memory, core}`, empty fields left out.

    Raises:
        Corrupt: not the grammar, or larger than its bounds.
    """
    grants = []
    for value in json_list(text, annotation):
        entry = json_object(value, annotation)
        grants.append(
            AscendGrant(
                card=identifier(text_member(entry, "UUID", annotation)),
                template=device_type(text_member(entry, "temp", annotation)) or None,
                framebuffer_mib=integer_member(entry, "memory", annotation),
                core_percent=integer_member(entry, "core", annotation),
            )
        )
    return tuple(grants)


def _ratio_of_template(chip: str, template: str | None, framebuffer_mib: int) -> float | None:
    known = _CHIPS.get(chip)
    if known is None:
        return None
    for one in known.templates:
        if one.name == template or (template is None and one.framebuffer_mib == framebuffer_mib):
            return one.ai_cores / known.ai_cores
    return None
