"""Servers that can sleep: the weights of their model wait in host memory, and a request wakes it within seconds.

Asleep, a process lives on and keeps its context on the card; everything else of its framebuffer is free for others.
How it falls asleep and wakes is said here, what that takes, and where that was published. Called by planner and router.

Sources: vllm-project/vllm:docs/features/sleep_mode.md, sgl-project/sglang:docs/advanced_features/sglang_for_rl.md and
InternLM/lmdeploy:lmdeploy/serve (flags and requests); the report "Zero-reload model switching" of 2025-10-26 on
blog.vllm.ai (seconds on an A100). Of SGLang and LMDeploy no times are published.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from fleet.lending import link_bytes_per_second
from fleet.units import GIB


@dataclass(frozen=True, slots=True, kw_only=True)
class SleepMode:
    """How a server sleeps with its weights in host memory.

    Attributes:
        needs: what it must be started with.
        sleep: request by which it falls asleep.
        wake: request by which it wakes.
        state: request that says whether it sleeps; empty where there is none.
        is_timed: it was published how long that takes.
    """

    needs: str
    sleep: str
    wake: str
    state: str = ""
    is_timed: bool


SLEEP_MODES: Mapping[str, SleepMode] = MappingProxyType(
    {
        "vllm": SleepMode(
            needs="--enable-sleep-mode, VLLM_SERVER_DEV_MODE=1",
            sleep="POST /sleep?level=1",
            wake="POST /wake_up",
            state="GET /is_sleeping",
            is_timed=True,
        ),
        "sglang": SleepMode(
            needs="--enable-memory-saver",
            sleep="POST /release_memory_occupation",
            wake="POST /resume_memory_occupation",
            is_timed=False,
        ),
        "lmdeploy": SleepMode(needs="", sleep="POST /sleep?level=1", wake="POST /wakeup", is_timed=False),
    }
)
"""By the server's name (`fleet.servers`)."""
ASLEEP_BYTES = int(4.29 * GIB)
"""Framebuffer that a sleeping process keeps: of 1.31, 1.38 and 4.29 GiB in published logs of vLLM ("Sleep mode freed
65.37 GiB memory, 4.29 GiB memory is still in use.") the most."""
_LINK_RATIO = 0.40
_BEGIN_SECONDS = 0.17
"""Through the published times of vLLM's level 1 on an A100: 0.26 s for 1.2 GB and 0.82 s for 8.3 GB of weights, which
is 0.17 s and 12.6 GB/s over a link of 31.5 GB/s. 59 GB a card come to 4.9 s; 3 to 6 s were published."""


def weights_seconds(weights_bytes: float, card_model: str) -> float:
    """How long weights take from host memory to the card, or back, without any wait before it."""
    return _BEGIN_SECONDS + weights_bytes / (_LINK_RATIO * link_bytes_per_second(card_model))
