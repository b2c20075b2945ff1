"""Settings of relief (when a card counts as overloaded, how far anybody goes to relieve it), of probe, tide and router.

Part of `fleet.settings.settings`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field, field_validator

from fleet.relief.rules import ReliefRules
from fleet.settings.kinds import Bytes, Count, Day, HostPort, Ratio, Seconds, Section
from fleet.settings.listener import ListenerSettings
from fleet.units import GIB


class TideSettings(Section):
    """How the tide goes out and comes home."""

    lead_seconds_min: Seconds = 3600
    """Giving back begins at least this long before the window ends; longer where earlier nights took longer."""
    plan_age_days_max: Count = 14
    """How old a plan may be when a night begins by it: its predictions age."""
    release_seconds_max: Seconds = 1800
    """How long services may take to scale in; then free cards are used."""
    save_seconds: Seconds = 300
    """Between asking work of tier batch to save and stopping it."""
    batch_hours_min: Annotated[float, Field(ge=0.0, le=16.0)] = 1.0
    """Work of tier batch is let in only where so many hours are left; how often it may have to go before its time says
    `low_priority.evictions_per_hour_max`."""
    mid_save_seconds: Seconds = 900
    """Between asking work of tier mid to save and stopping it."""
    mid_hours_min: Annotated[float, Field(ge=0.0, le=16.0)] = 4.0
    """Work of tier mid is let in only where so many hours are left."""
    mid_evictions_per_hour_max: Annotated[float, Field(gt=0.0, le=60.0)] = 0.02
    """Work of tier mid is let in only where nights ended early no more often, per hour of work."""
    home_seconds_max: Seconds = 3600
    """How long services coming back are waited for before they count as late."""
    interval_seconds: Seconds = 60
    """Time between two looks of `gputide run tide run`."""
    queues: tuple[str, ...] = ()
    """Kueue's ClusterQueues that low priority waits in; they are held by day and opened at night."""
    holidays: tuple[Day, ...] = ()
    """Days on which no tide begins, such as 2026-12-24."""


class ProbeSettings(Section):
    """What `gputide admin probe` measures, and whom it is believed."""

    key_file: Path | None = None
    """File with the key that results are signed by, 32 bytes or more; the same where they are made and where they are
    used. None: results are neither signed nor used."""
    seconds: Annotated[float, Field(ge=1.0, le=600.0)] = 20.0
    """How long compute is measured, for launches and for graphs each."""
    spill_bytes_max: Bytes = 2 * GIB
    """Most framebuffer that is asked for beyond the card: it is taken from the node's memory."""
    result_seconds: Seconds = 30 * 86400
    """How long it counts that a probe saw the gate or a pause hold, or framebuffer spill and come back; what it saw
    fail counts until the next probe."""
    cuda_library: Path | None = None
    """File of `libcuda.so.1`; none for the loader's own search, as programs do."""


class ModelSettings(Section):
    """One model behind `gputide run router`."""

    name: Annotated[str, Field(min_length=1, max_length=253)]
    """How logs and metrics call it."""
    listen: HostPort
    """Where its clients reach it, such as `0.0.0.0:8001`."""
    server: Annotated[str, Field(pattern=r"^https?://[^\s/?#@]+$")]
    """Its server, such as `http://10.0.0.7:8000`."""
    limit: Bytes
    """Framebuffer that it may take while it is awake, as the plan's advice names it."""


class RouterSettings(ListenerSettings):
    """What `gputide run router` routes to: the models of one card, which share it asleep."""

    card_bytes: Bytes | None = None
    """Framebuffer of the card."""
    wait_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 30.0
    """Longest that a request waits for its model to wake, and for those before it."""
    models: tuple[ModelSettings, ...] = ()
    """Models of the card; each a table with `name`, `listen`, `server` and `limit`."""


_LONGEST_QUERY = 4096
_RULES = ReliefRules()


class ReliefSettings(Section):
    """What `gputide run relief` does when a card overloads."""

    agents: tuple[str, ...] = ("http://gputide-agent.gputide.svc:9478",)
    """Where node agents tell what they see (`agent.listen`); a name stands for every address that it resolves to."""
    agents_ca_file: Path | None = None
    """Authorities (PEM) that agents' certificates are checked with, where asked by https; none for the usual."""
    agents_server_name: str | None = Field(default=None, min_length=1, max_length=253)
    """Name that agents' certificates must have; none for the host of the address that named them."""
    agents_certificate_file: Path | None = None
    """Certificate that is shown to agents (mutual TLS)."""
    agents_key_file: Path | None = None
    """Its key; none where it stands in the same file."""
    agents_token_file: Path | None = None
    """File with the token that is shown to agents (`agent.tokens_file`); read anew when it changes."""
    wait_seconds: Annotated[float, Field(ge=0.5, le=60.0)] = 10.0
    """How long an agent may wait before it sends its view again; a card in trouble is reported at once."""
    full_ratio: Ratio = _RULES.full_ratio
    """Compute in use on a card from which it counts as full."""
    relieved_ratio: Ratio = _RULES.relieved_ratio
    """A card is relieved once those above low priority need at most this share of it; so is a card that takes a pod."""
    framebuffer_free_ratio_min: Ratio = _RULES.free_ratio_min
    """Share of a card's framebuffer that must stay free."""
    sustain_seconds: Annotated[float, Field(ge=0.0, le=600.0)] = _RULES.sustain_seconds
    """How long a card must be overloaded by those above low priority before a pod moves."""
    squeeze_seconds: Seconds = 60
    """How long an order to pause low priority counts without being renewed."""
    calm_seconds: Seconds = 30
    """How long a card must be without trouble before low priority may work again."""
    ready_seconds_max: Seconds = 900
    """How long a warm replica may take to be ready; then it is taken back."""
    leave_seconds_max: Seconds = 600
    """How long a disruption budget is waited for before the warm replica is taken back."""
    moves_at_once_max: Count = _RULES.moves_at_once_max
    """Most moves under way at once."""
    moves_per_day_max: Count = _RULES.moves_per_day_max
    """Most moves of one workload in 24 hours for each of its pods, those home among them."""
    backoff_seconds: Seconds = _RULES.backoff_seconds
    """Pause after a move that came to nothing, before its workload is moved again; doubled with every further one."""
    rest_seconds: Seconds = _RULES.rest_seconds
    """How long a pod stays where it was moved before it moves again, unless nobody else can."""
    restarts_pods: bool = _RULES.restarts
    """Whether a pod that can't have a second replica is stopped and started elsewhere, where no other pod can move."""
    home_seconds: Seconds = _RULES.home_seconds
    """How long a moved pod must have found room on its old card before it moves home."""
    home_ratio: Ratio = _RULES.home_ratio
    """Compute that may be needed at most on the old card, with the pod, for it to move home."""
    prometheus_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Prometheus that is asked for broken latency objectives; none for no such question."""
    slo_queries: tuple[str, ...] = ()
    """PromQL whose every answer is a broken objective of the pod in its labels `namespace` and `pod`, as an alert's."""
    slo_seconds: Seconds = 10
    """Time between two looks at them."""

    def rules(self, *, working_ratio: float) -> ReliefRules:
        """The rules that the enforcer and the simulator play by.

        Args:
            working_ratio: duty cycle above which a pod works (`agent.working_ratio`), 0-1.
        """
        return ReliefRules(
            full_ratio=self.full_ratio,
            relieved_ratio=self.relieved_ratio,
            free_ratio_min=self.framebuffer_free_ratio_min,
            working_ratio=working_ratio,
            sustain_seconds=self.sustain_seconds,
            moves_at_once_max=self.moves_at_once_max,
            moves_per_day_max=self.moves_per_day_max,
            backoff_seconds=self.backoff_seconds,
            rest_seconds=self.rest_seconds,
            restarts=self.restarts_pods,
            home_seconds=self.home_seconds,
            home_ratio=self.home_ratio,
        )

    @field_validator("slo_queries")
    @classmethod
    def _are_short(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for query in value:
            if not query.strip() or len(query) > _LONGEST_QUERY:
                raise ValueError(f"a query has {len(query)} characters, expected 1 to {_LONGEST_QUERY}")
        return value

    @field_validator("agents")
    @classmethod
    def _are_urls(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for url in value:
            if not url.startswith(("http://", "https://")) or any(letter.isspace() for letter in url):
                raise ValueError(f"{url!r} is no address of an agent, such as http://10.0.0.7:9478")
        return value
