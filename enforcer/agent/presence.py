"""On which nodes an agent runs that lets low priority give way, by its pods. Called where plans are made and applied.

Only pods of gputide's own namespace are asked about, where tenants make none: a promise to others rests on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from enforcer.manifest import Manifest
from fleet.settings.agent import GiveWayManner

_OFF_WORD = f"agent.give_way={GiveWayManner.OFF}"
_OFF_ENV = ("GPUTIDE_AGENT__GIVE_WAY", str(GiveWayManner.OFF))


def nodes_with_agents(pods: Iterable[Manifest]) -> frozenset[str]:
    """Nodes with a ready pod of a DaemonSet that runs `gputide run agent` and is not told to let nobody sleep.

    Args:
        pods: pods of gputide's own namespace.
    """
    return frozenset(str(pod["spec"]["nodeName"]) for pod in pods if _is_at_work(pod))


def _is_at_work(pod: Manifest) -> bool:
    metadata, status = pod["metadata"], pod.get("status") or {}
    is_ready = any(
        entry.get("type") == "Ready" and entry.get("status") == "True" for entry in status.get("conditions") or ()
    )
    is_daemon = any(owner.get("kind") == "DaemonSet" for owner in metadata.get("ownerReferences") or ())
    if not (is_ready and is_daemon and pod["spec"].get("nodeName")) or metadata.get("deletionTimestamp"):
        return False
    return any(_lets_sleep(container) for container in pod["spec"].get("containers") or ())


def _lets_sleep(container: Mapping[str, Any]) -> bool:
    words: Sequence[str] = [str(word) for word in (*(container.get("command") or ()), *(container.get("args") or ()))]
    is_agent = ("run", "agent") in pairwise(words) and "check" not in words
    if not is_agent or any(word.endswith(_OFF_WORD) for word in words):
        return False
    return _OFF_ENV not in {(str(one.get("name")), str(one.get("value"))) for one in container.get("env") or ()}
