"""What `gputide run router` needs to know of the models that a plan lets sleep, as values of the Helm chart.

Called by `gputide plan show --routers`.
"""

from __future__ import annotations

import re
from typing import Any

from fleet.decisions import Plan
from fleet.errors import Misconfigured
from fleet.units import GIB, format_bytes
from gputide.output import Answer, Listing

_GROUP_CHARS_MAX = 15
_SERVICE_CHARS_MAX = 63


def routers_answer(plan: Plan) -> Answer:
    """A router for each card that models of a plan may share asleep: framebuffer, limits, the longest wait.

    A plan knows no address: `server` of each model says whose it should be, and the chart takes no such text.

    Raises:
        Misconfigured: the plan lets no model sleep.
    """
    if not plan.by_hand:
        raise Misconfigured(
            f"cannot write routers: plan {plan.short_id} lets no model sleep (recommender.sleep_wait_seconds)"
        )
    framebuffer_bytes = {str(card.card): card.framebuffer_bytes for card in plan.placement}
    groups: dict[str, Any] = {}
    rows = []
    for item in plan.by_hand:
        said: dict[str, Any] = {name: value for clause in item.why for name, value in clause.values}
        (workload,), card = item.workloads, said["card"]
        namespace, _, name = workload.split("/")
        service = _label(f"{namespace}-{name}")[:_SERVICE_CHARS_MAX].strip("-")
        router = _label(card)[-_GROUP_CHARS_MAX:].strip("-")
        group = groups.setdefault(
            router, {"cardBytes": format_bytes(framebuffer_bytes[card]), "waitSeconds": 0.0, "models": []}
        )
        group["waitSeconds"] = max(group["waitSeconds"], said["wait_seconds_max"])
        group["models"].append(
            {
                "name": service,
                "server": f"URL of the server of {workload}",
                "limit": format_bytes(said["limit_bytes"]),
            }
        )
        rows.append((router, said["node"], card, workload, service, said["limit_bytes"] / GIB))
    columns = ("router", "node", "card", "model", "service", "limit GiB")
    return Answer(
        document={"router": {"groups": groups}},
        listings=(Listing(title="Routers", columns=columns, rows=rows),),
        footnotes=("next: -o routers.yaml writes values of the chart; fill in each `server` (docs/helm.md)",),
    )


def _label(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower())
