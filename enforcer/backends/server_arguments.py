"""Arguments of a server that takes framebuffer at its start, for a slice that is smaller than what it takes now.

Where a server sees its slice as all the memory there is, a share of it follows by itself, and is lowered only where
what lies outside of it, which does not shrink, would find no room; sizes in bytes are lowered. Where it sees the card,
vLLM's share of the card is lowered; of other servers nothing holds there. Only the value is replaced, or one flag added
at the end; the rest of the command stays as it is, character by character. Called by `stage`.

Source: vllm-project/vllm:vllm/v1/worker/gpu_worker.py (free memory at start must be the share of the total; the KV
cache is that share without what the server itself took), vllm/config/cache.py (a share is per instance, whatever others
hold), sgl-project/sglang:python/sglang/srt/model_executor (the share is of what is free at start).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from enforcer.kinds.kind import TEMPLATE, PodTemplate
from enforcer.manifest import Manifest
from fleet.decisions import PlacedSlice, PoolCut
from fleet.errors import Refused
from fleet.sentences import Sentence, sentence
from fleet.server_arguments import POOL_BLOCKS, POOL_BYTES, STATIC_FRACTION, UTILIZATION, Unclear, script_of, spots_of
from fleet.servers import server_of
from fleet.sharing import PREALLOCATED_RATIO

_FLAGS: Mapping[str, tuple[str, ...]] = {"vllm": (UTILIZATION, POOL_BYTES, POOL_BLOCKS), "sglang": (STATIC_FRACTION,)}
_LISTS = ("command", "args")
_STEPS = 1000
"""A share is written in thousandths."""


def argument_fields(
    owner: Manifest, template: PodTemplate, parts: Sequence[PlacedSlice], written: Iterable[str] = ()
) -> dict[str, str | None]:
    """Fields of an owner by which the servers of a pod template take no more than the slices of its pods.

    Args:
        parts: planned slices of the pods that are made from it.
        written: fields that this plan wrote already: what their values were counted from is no longer there.

    Returns:
        Words of commands and arguments that become different, by their paths; of the rest, where a secret may stand,
        no record is kept.

    Raises:
        Refused: a server would take more than its slice, and the template does not show what to change.
    """
    fields: dict[str, str | None] = {}
    for container in template.body.get("spec", {}).get("containers") or ():
        own = [(part, part.pool_cut) for part in parts if part.container == container["name"] and part.pool_cut]
        path = template.place(f"{TEMPLATE}.spec.containers[{container['name']}]")
        if not own or any(field.startswith(f"{path}.{name}[") for field in written for name in _LISTS):
            continue
        part, cut = min(own, key=lambda entry: (entry[1].pool_bytes, entry[0].framebuffer_bytes))
        changed = _changed(container, part, cut, is_fixed=owner["kind"] == "Job")
        fields.update({f"{path}.{place}": word for place, word in changed.items()})
    return fields


def _changed(container: Manifest, part: PlacedSlice, cut: PoolCut, *, is_fixed: bool) -> dict[str, str]:
    """Words with their new values, by their places in `command` and `args`; an added one has the next place."""
    sees_card = cut.seen_bytes > part.framebuffer_bytes
    if sees_card and cut.server != "vllm":
        raise Refused(sentence("guard.server_sees_card", workload=str(part.workload), server=cut.server))
    lists = {name: container.get(name) or [] for name in _LISTS}
    words = [word for name in lists for word in lists[name]]
    try:
        if not all(isinstance(listed, list) for listed in lists.values()) or not all(isinstance(w, str) for w in words):
            raise Unclear("no list of words")
        spots = spots_of(words, _FLAGS.get(cut.server, ()))
        values = {name: spot.number for name, spot in spots.items()}
    except Unclear as exc:
        if not sees_card:
            # What it takes follows its slice: a size of which nobody knew would have hidden its need from the plan.
            return {}
        why = sentence("arguments.unclear", part=repr(str(exc)))
        raise _refusal(part, why, f"{UTILIZATION} {_share(part, cut, {})}") from exc
    if POOL_BLOCKS in values:
        raise _refusal(part, sentence("arguments.blocks", flag=POOL_BLOCKS), f"{POOL_BYTES} {cut.pool_bytes}")
    wanted = _wanted(part, cut, values, sees_card=sees_card)
    if wanted and is_fixed:
        raise _refusal(part, sentence("arguments.job"), " ".join(f"{name}={value}" for name, value in wanted.items()))
    found = dict(enumerate(words))
    for name, spot in sorted(spots.items(), key=lambda entry: -entry[1].start):
        text = found[spot.word]
        found[spot.word] = text[: spot.start] + wanted.get(name, spot.text) + text[spot.start + len(spot.text) :]
    added = [f"{name}={value}" for name, value in wanted.items() if name not in spots]
    is_shown = words and script_of(words) is None and server_of(str(container.get("image")), words, {}) == cut.server
    if added and not is_shown:
        raise _refusal(part, sentence("arguments.none"), " ".join(added))
    found |= dict(enumerate(added, len(words)))
    first = len(lists["command"])
    is_command = not lists["args"]
    return {
        f"command[{number}]" if number < first or is_command else f"args[{number - first}]": word
        for number, word in found.items()
        if words[number : number + 1] != [word]
    }


def _wanted(part: PlacedSlice, cut: PoolCut, values: Mapping[str, float], *, sees_card: bool) -> dict[str, str]:
    """Flags and their new values, those that become smaller."""
    wanted = {}
    if POOL_BYTES in values and values[POOL_BYTES] > cut.pool_bytes:
        wanted[POOL_BYTES] = str(cut.pool_bytes)
    flag = STATIC_FRACTION if cut.server == "sglang" else UTILIZATION
    if sees_card or (flag in values and POOL_BYTES not in values and _overflows(part, cut, values[flag])):
        share = _share(part, cut, values)
        if share < values.get(flag, 1.0):
            wanted[flag] = f"{share:g}"
    if "0" in wanted.values():
        flag = next(name for name, value in wanted.items() if value == "0")
        raise _refusal(part, sentence("arguments.too_small", flag=flag, value=f"{values.get(flag, '')}"), flag)
    return wanted


def _overflows(part: PlacedSlice, cut: PoolCut, share: float) -> bool:
    """Whether a share of the slice, and what the server takes outside of it, are more than the slice."""
    outside = max(0.0, cut.taken_bytes - share * cut.seen_before_bytes)
    return share * cut.seen_bytes + outside > part.framebuffer_bytes


def _share(part: PlacedSlice, cut: PoolCut, values: Mapping[str, float]) -> float:
    """The share of what a server sees by which it takes so much less."""
    if POOL_BYTES in values:
        # Its KV cache is set; the share is only what must be free when it starts.
        share = part.framebuffer_bytes / cut.seen_bytes
    else:
        old = values.get(UTILIZATION, values.get(STATIC_FRACTION, PREALLOCATED_RATIO))
        share = (old * cut.seen_before_bytes - cut.cut_bytes) / cut.seen_bytes
    return max(0, math.floor(share * _STEPS)) / _STEPS


def _refusal(part: PlacedSlice, why: Sentence, advice: str) -> Refused:
    return Refused(
        sentence(
            "guard.server_arguments", workload=str(part.workload), container=part.container, why=why, advice=advice
        )
    )
