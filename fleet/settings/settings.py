"""Every setting of every room, in one tree, each with its meaning, default and range.

A setting has one dotted name (`analyzer.idle_ratio_max`) in every source; a later source wins: the defaults below, the
TOML file, the environment (`GPUTIDE_ANALYZER__IDLE_RATIO_MAX`), the flags (`--set analyzer.idle_ratio_max=0.02`). An
unknown name fails with the nearest known one. Sizes and durations may be written with a unit (`64MiB`, `15m`) in all of
them.

The command line loads the tree once (`load_settings`) and hands each package its own section; no other module reads the
environment. Where data is kept is no setting but an option of the whole program (`--data-dir`).

The sources are merged here and not by pydantic-settings (2.16, tried): it ignores a variable whose section is misspelt,
names neither the file nor the variable nor the flag of a wrong value, lowers the case of card models in `prices`, wants
JSON for lists (19 of the 30 tests of this module failed), and takes 4 MiB more at every start.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_args
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import BaseModel, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo

from fleet.decisions import RiskLevel
from fleet.errors import Misconfigured
from fleet.settings.agent import AgentSettings
from fleet.settings.dashboard import DashboardSettings, UsageApiSettings
from fleet.settings.exporter import ExporterSettings
from fleet.settings.faults import SHOWN_LENGTH_MAX, Fault, faults, joined, shown
from fleet.settings.forge import ForgeSettings
from fleet.settings.guard import BackendsSettings, GuardSettings
from fleet.settings.kinds import Bytes, Count, Ratio, Seconds, Section
from fleet.settings.money import EnergySettings, PricesSettings
from fleet.settings.notify import NotifySettings
from fleet.settings.pipeline import (
    BusSettings,
    FlinkSettings,
    HiveSettings,
    IcebergSettings,
    KafkaSettings,
    ReceiverSettings,
    RollupSettings,
    WarehouseSettings,
)
from fleet.settings.prometheus import PrometheusSettings
from fleet.settings.provenance import ProvenanceSettings
from fleet.settings.relief import ProbeSettings, ReliefSettings, RouterSettings, TideSettings
from fleet.settings.scan import ScanSettings
from fleet.settings.telemetry import TelemetrySettings
from fleet.tiers import Guarantee, Tier
from fleet.units import MIB

_ENVIRONMENT_PREFIX = "GPUTIDE_"
_CONFIG_BYTES_MAX = MIB
_NONE_WORDS = frozenset({"none", "null", ""})


class ClusterSettings(Section):
    """Which cluster this is."""

    name: str = Field(default="default", min_length=1, max_length=253)
    """Name of the cluster, for samples that carry no cluster label."""
    time_zone: str = Field(default="UTC", max_length=64)
    """IANA time zone in which hours of the week are counted."""
    silent_seconds: Seconds = 3600
    """Without a sample for longer than this a cluster is shown as silent."""

    @field_validator("time_zone")
    @classmethod
    def _time_zone_exists(cls, value: str) -> str:
        try:
            ZoneInfo(value)
        except (ZoneInfoNotFoundError, ValueError, OSError) as exc:
            raise ValueError("is no IANA time zone, such as Asia/Shanghai") from exc
        return value


class AnalyzerSettings(Section):
    """What the words idle, off-peak and oversized mean, in numbers."""

    idle_ratio_max: Ratio = 0.01
    """A window is idle when every engine's activity is at most this."""
    idle_seconds: Seconds = 86400
    """How long everything must have been idle before a card is called idle."""
    idle_coverage_min: Ratio = 0.95
    """Share of that time's windows that must have been seen."""
    idle_held_bytes_min: Bytes = 300 * MIB
    """An idle pod that holds more framebuffer than this is idle-held."""
    off_peak_hours_min: int = Field(default=20, ge=1, le=168)
    """Fewest hours of the week that must be promised to stay low."""
    off_peak_ratio: Ratio = 0.20
    """An hour is low when it stays below this share of the workload's p95."""
    oversized_compute_ratio: Ratio = 0.5
    """A grant is oversized when p99 of compute stays within this share of it."""
    oversized_framebuffer_ratio: Ratio = 0.6
    """A grant is oversized when the need of framebuffer stays within this share of it."""
    coverage_min: Ratio = 0.80
    """Below this coverage the state is unknown."""
    history_seconds_min: Seconds = 86400
    """Below this much history the state is unknown."""
    low_use_ratio: Ratio = 0.20
    """A card whose p95 stays within this is of low use."""
    processes: int = Field(default=2, ge=1, le=64)
    """Processes that analyse a fleet of more than 250 cards side by side; each takes some 700 MB."""


class RiskSettings(Section):
    """How much harm is accepted for what is saved."""

    preset: RiskLevel = RiskLevel.MEDIUM
    """Most violation that a plan may predict: low 0.1 %, medium 0.5 %, high 2 % of the active time."""
    violation_ratio_max: Ratio | None = None
    """Most violation that a plan may predict, share of the active time; none takes the preset's."""

    counts_on_relief: bool = False
    """Whether plans are as dense as `gputide run relief` can hold by its rules, played on the cluster's own past: more
    cards are freed, and relief must run for as long as the plan stands."""
    relief_moves_max: Annotated[float, Field(ge=0.0, le=10.0)] = 0.1
    """Most moves per pod and day that relief may be expected to make under a plan that counts on it."""

    latency_inflation_max: float = Field(default=1.5, ge=1.0, le=100.0)
    """Most that sharing a card may raise the P99 latency of a latency-critical service, predicted: times that alone."""

    @property
    def violation_ratio_limit(self) -> float:
        """What holds: the ratio that was set, else the preset's; share of the active time, 0-1."""
        return _VIOLATION_RATIO_MAX[self.preset] if self.violation_ratio_max is None else self.violation_ratio_max


_VIOLATION_RATIO_MAX: Mapping[RiskLevel, float] = {RiskLevel.LOW: 0.001, RiskLevel.MEDIUM: 0.005, RiskLevel.HIGH: 0.02}


class PlanSettings(Section):
    """Plans: how long they hold and how far they go."""

    expires_seconds: Seconds = 86400
    """How long after its making a plan may still be applied."""
    moves_max: Annotated[int, Field(ge=0)] | None = None
    """Most pods that one plan may move; none is no limit."""
    spare_card_ratio: Ratio = 0.02
    """Share of the cards in use after the plan that are kept spare for moves at run time, and not counted as freed."""


class PackingChoice(StrEnum):
    """How it is searched who shares a card with whom."""

    AUTO = "auto"
    """Greedily, and where a card model has few enough pods also exactly; what frees more cards is taken."""
    GREEDY = "greedy"
    """Greedily alone: linear in the pods."""
    EXACT = "exact"
    """As `auto`, however many pods there are: the work grows steeply with those of one card model."""


class RecommenderSettings(Section):
    """The rules and the packer."""

    framebuffer_headroom_ratio: Ratio = 0.10
    """Kept free above the predicted need of framebuffer when a slice is cut."""
    opt_out_namespaces: tuple[str, ...] = ("kube-system",)
    """Namespaces that no recommendation touches."""
    reclaim_confidence_min: Ratio = 0.9
    """How often workloads like an idle one must have stayed idle, as far as was seen, before it is stopped."""
    packing: PackingChoice = PackingChoice.AUTO
    """How it is searched who shares a card with whom."""
    moves_per_freed_node_max: int = Field(default=4, ge=0, le=100_000)
    """Pods beyond those that a plan restarts anyway which may move so that a node that is paid for whole is left."""
    packing_exact_pods_max: Count = 120
    """Most pods of one card model that `auto` packs exactly."""
    lend_framebuffer: bool = False
    """Whether services with different busy hours may share a card that holds only one of them, where the backend moves
    framebuffer to host memory; the others' advice is the same either way."""
    host_memory_bytes: Bytes | None = None
    """Host memory of each node that framebuffer, and weights of models that sleep, may be moved to; none takes half of
    what its pods' requests leave of the node's, and moves nothing where the node's is not known."""
    sleep_wait_seconds: Seconds | None = None
    """How long a request may wait for its model to wake, where idle models sleep with their weights in host memory to
    share a card; a shorter `gputide.io/ttft-p99-seconds` of a pod holds for it. None advises no such sleep."""
    tide_window: str | None = Field(default=None, pattern=r"^([01]\d|2[0-3])-([01]\d|2[0-3])$")
    """Local hours in which services scale in, such as 23-08; none for those in which most is freed. Who leaves, and how
    far, is computed either way."""
    placement_watt_milli: Annotated[float, Field(ge=0.0, le=1000.0)] = 20.0
    """What a watt that a new pod makes its node draw more counts in `gputide plan place`, in thousandths of a card that
    nobody can use any more; it fades as the cards fill up. 0 leaves power out; more than 30 costs room."""
    measured_pairs: Path | None = None
    """CSV of pairs measured on one card (victim, aggressor, speed_ratio …); who suffers there is kept apart."""


class ClusterChoice(StrEnum):
    """Which cluster the enforcer changes."""

    SIMULATED = "simulated"
    """The one that `admin replay` and `demo` keep in the data folder."""
    KUBERNETES = "kubernetes"
    """A real one, through its API server."""


class EnforcerSettings(Section):
    """How changes are made, watched and checked."""

    cluster: ClusterChoice = ClusterChoice.SIMULATED
    """Which cluster is changed: the simulated one of the data folder, or a real one through its API server."""
    kubeconfig: Path | None = None
    """Kubeconfig file; none for the pod's own service account, else `$KUBECONFIG` or `~/.kube/config`."""
    kubeconfig_context: str | None = Field(default=None, min_length=1)
    """Context of it; none for the current one."""
    cluster_uid: str | None = Field(default=None, pattern=r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
    """UID of the namespace kube-system of the one cluster that may be changed; none for whichever is reached."""
    namespace: str = Field(default="gputide", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
    """Namespace of the lease that only one enforcer of a cluster holds."""
    requests_per_second: Annotated[float, Field(gt=0.0, le=1000.0)] = 20.0
    """Most requests to the API server per second, in the long run; it may ask for fewer."""
    requests_burst: int = Field(default=40, ge=1, le=10_000)
    """Requests to the API server that may be made at once after a pause."""
    parallel_requests_max: int = Field(default=4, ge=1, le=64)
    """Most requests to the API server that are under way at once."""
    poll_seconds: Annotated[float, Field(ge=0.1, le=300.0)] = 10.0
    """Pause between two looks at pods that are changing; a second at most where the API server lets them be watched."""
    backend: str = Field(default="hami", min_length=1, max_length=63)
    """Which GPU-sharing backend renders changes, by its name in the capability table."""
    backend_version: str | None = Field(
        default=None, pattern=r"^v?\d{1,6}\.\d{1,6}(\.\d{1,6})?([-+][0-9A-Za-z.+-]{1,40})?$"
    )
    """Its version, such as 2.10.0; none to see it by the tags of the images that run."""
    experimental: bool = False
    """Whether plans may be made for, and applied with, a backend that nothing real has accepted in a test yet."""
    canary_workloads: Count = 1
    """How many workloads are changed and watched before the rest of a stage."""
    parallel_workloads_max: Count = 10
    """How many workloads of a stage may be changing at once."""
    watch_seconds: Seconds = 600
    """How long a change is watched before it is kept."""
    watch_restarts_max: int = Field(default=0, ge=0)
    """Container restarts during the watch beyond which a change is taken back."""
    watch_prometheus_url: str | None = Field(default=None, pattern=r"^https?://[^\s]+$")
    """Prometheus that is asked, while a change is watched, for XID events, framebuffer and `watch_queries`."""
    watch_queries: tuple[str, ...] = ()
    """PromQL of latency objectives: whatever has a series while a change is watched speaks against it. A series is of
    the pod in its labels `namespace` and `pod`; without `pod` of its namespace's watched pods, without both of all."""
    verify_days: Count = 7
    """Days after a change until what was saved and harmed is held against the promise."""
    ledger_key_file: Path | None = None
    """File of 32 bytes or more, outside the data folder, that marks what is written to its ledgers; none for no key."""
    ledger_anchor_file: Path | None = None
    """File outside the data folder that keeps the heads of its ledgers; a real cluster keeps them, too."""
    node_empty_seconds_max: Seconds = 900
    """How long pods that end by themselves may take to end on a released node, once it is closed to new ones."""
    node_leave_seconds_max: Seconds = 1800
    """How long the owner of a released node may take to take it; then the node is given back, and why is said."""
    lease_seconds: Seconds = 30
    """How long the right to change the cluster is held without being renewed."""


class LowPrioritySettings(Section):
    """Workers of low priority beside others: how large they are, and how often they may be sent away."""

    worker_ratios: tuple[Annotated[float, Field(gt=0.0, lt=1.0)], ...] = Field(default=(0.2,), min_length=1)
    """Framebuffer of a worker, share of a card; of several sizes a card gets the largest that may start there."""
    watermark_ratio: Ratio = 0.05
    """Framebuffer that stays free beside a worker, share of a card; where less is left it is evicted at once."""
    evictions_per_hour_max: Annotated[float, Field(gt=0.0, le=60.0)] = 0.05
    """Evictions per hour that a worker ran which are allowed; workers are let in so that there are fewer."""


class ReportSettings(Section):
    """The weekly report."""

    title: str = "GPU savings"
    """Headline of the report."""
    language: str = Field(default="en", pattern=r"^(en|zh)$")
    """Language of the report: en or zh."""
    top_workloads: Count = 10
    """How many workloads the top list names."""


class Settings(Section):
    """The whole tree; sections in the order of the data flow."""

    cluster: ClusterSettings = ClusterSettings()
    exporter: ExporterSettings = ExporterSettings()
    receiver: ReceiverSettings = ReceiverSettings()
    provenance: ProvenanceSettings = ProvenanceSettings()
    bus: BusSettings = BusSettings()
    kafka: KafkaSettings = KafkaSettings()
    rollup: RollupSettings = RollupSettings()
    warehouse: WarehouseSettings = WarehouseSettings()
    iceberg: IcebergSettings = IcebergSettings()
    hive: HiveSettings = HiveSettings()
    flink: FlinkSettings = FlinkSettings()
    scan: ScanSettings = ScanSettings()
    analyzer: AnalyzerSettings = AnalyzerSettings()
    risk: RiskSettings = RiskSettings()
    plan: PlanSettings = PlanSettings()
    recommender: RecommenderSettings = RecommenderSettings()
    prices: PricesSettings = PricesSettings()
    enforcer: EnforcerSettings = EnforcerSettings()
    backends: BackendsSettings = BackendsSettings()
    guard: GuardSettings = GuardSettings()
    forge: ForgeSettings = ForgeSettings()
    tide: TideSettings = TideSettings()
    agent: AgentSettings = AgentSettings()
    relief: ReliefSettings = ReliefSettings()
    prometheus: PrometheusSettings = PrometheusSettings()
    probe: ProbeSettings = ProbeSettings()
    router: RouterSettings = RouterSettings()
    low_priority: LowPrioritySettings = LowPrioritySettings()
    report: ReportSettings = ReportSettings()
    notify: NotifySettings = NotifySettings()
    dashboard: DashboardSettings = DashboardSettings()
    usage_api: UsageApiSettings = UsageApiSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    energy: EnergySettings = EnergySettings()

    @property
    def guarantees(self) -> Mapping[Tier, Guarantee]:
        """What work of each tier of the night is promised."""
        tide = self.tide
        return {
            Tier.MID: Guarantee(
                hours_min=tide.mid_hours_min,
                notice_seconds=float(tide.mid_save_seconds),
                evictions_per_hour_max=tide.mid_evictions_per_hour_max,
            ),
            Tier.BATCH: Guarantee(
                hours_min=tide.batch_hours_min,
                notice_seconds=float(tide.save_seconds),
                evictions_per_hour_max=self.low_priority.evictions_per_hour_max,
            ),
            Tier.FREE: Guarantee(),
        }


def load_settings(config_path: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str]) -> Settings:
    """Merges all sources and validates the result.

    Args:
        config_path: TOML file, or None for none.
        overrides: the `--set` flags: dotted name → text. A setting that is a map takes JSON, or one entry by
            `section.map.KEY`.
        environ: the process's environment. Of names that start with `GPUTIDE_` only those with a double underscore are
            settings, because Kubernetes injects others by itself for a service called gputide (`GPUTIDE_SERVICE_HOST`).

    Raises:
        Misconfigured: an unknown name, a value out of range, or an unreadable file; the message names the source.
    """
    fields = dict(setting_fields())
    return _validated({}, _all_values(config_path, overrides, environ, fields), fields)


def changed_settings(settings: Settings, overrides: Mapping[str, str]) -> Settings:
    """The settings with some changed for one call.

    Raises:
        Misconfigured: an unknown name, or a value that is out of range or contradicts another setting.
    """
    return _validated(settings.model_dump(), _flags(overrides), dict(setting_fields()))


def setting_fields() -> Iterator[tuple[str, FieldInfo]]:
    """The dotted name and the field of every setting, in the tree's order."""
    for section, section_field in Settings.model_fields.items():
        model = section_field.annotation
        if not (isinstance(model, type) and issubclass(model, BaseModel)):
            raise TypeError(f"section {section} of the settings is no model")
        for leaf, field in model.model_fields.items():
            yield f"{section}.{leaf}", field


def _all_values(
    config_path: Path | None, overrides: Mapping[str, str], environ: Mapping[str, str], fields: Mapping[str, FieldInfo]
) -> Iterator[tuple[str, Any, str]]:
    """All given values as (dotted name, value, source), weakest source first."""
    if config_path is not None:
        for name, value in _flattened("", _read_toml(config_path), fields):
            yield name, value, f"file {config_path}"
    for variable in sorted(environ):
        name = variable.removeprefix(_ENVIRONMENT_PREFIX)
        if name != variable and "__" in name:
            yield name.lower().replace("__", "."), environ[variable], f"environment {variable}"
    yield from _flags(overrides)


def _flags(overrides: Mapping[str, str]) -> Iterator[tuple[str, Any, str]]:
    for name, text in overrides.items():
        yield name, text, "flag --set"


def _validated(
    tree: dict[str, dict[str, Any]], values: Iterable[tuple[str, Any, str]], fields: Mapping[str, FieldInfo]
) -> Settings:
    """The settings of a tree of values, with other values, weakest first, in their places."""
    sources: dict[str, str] = {}
    for name, value, source in values:
        known, key = _known_name(name, fields, source)
        sources[known] = source
        section, _, leaf = known.partition(".")
        place = tree.setdefault(section, {})
        if _is_map(fields[known]):
            entries = _map_of(known, value, source) if key is None else {key: value}
            place[leaf] = {**place.get(leaf, {}), **entries}
        else:
            place[leaf] = _absent_or(value, fields[known])
    try:
        return Settings.model_validate(tree)
    except ValidationError as exc:
        raise Misconfigured(joined([_words(fault, sources) for fault in faults(exc, Settings)])) from exc


_UNSHOWN = frozenset({"iceberg.database"})
"""Settings that are refused where they hold a password."""


def _words(fault: Fault, sources: Mapping[str, str]) -> str:
    name = ".".join(fault.place)[:SHOWN_LENGTH_MAX]
    source = sources.get(".".join(fault.place[:2]))
    if source is None:
        return f"cannot use settings of {name}: {fault.reason}"
    value = name if fault.shown is None or name in _UNSHOWN else f"{name}={fault.shown}"
    return f"cannot use setting {value} ({source}): {fault.reason}"


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > _CONFIG_BYTES_MAX:
            raise Misconfigured(f"cannot read settings from {path}: larger than {_CONFIG_BYTES_MAX} bytes")
        # Decimal, so that a price of 0.79 is 0.79 and not its nearest float.
        return tomllib.loads(path.read_text(encoding="utf-8"), parse_float=Decimal)
    except (ValueError, RecursionError) as exc:
        # Beside its own error the parser lets those of numbers with thousands of digits and of deep nesting through.
        raise Misconfigured(f"cannot read settings from {path}: not valid TOML: {str(exc)[:200]}") from exc
    except OSError as exc:
        raise Misconfigured(f"cannot read settings from {path}: {exc.strerror or exc}") from exc


def _flattened(prefix: str, table: Mapping[str, Any], fields: Mapping[str, FieldInfo]) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name not in fields:
            yield from _flattened(f"{name}.", value, fields)
        else:
            yield name, value


def _known_name(name: str, fields: Mapping[str, FieldInfo], source: str) -> tuple[str, str | None]:
    """The setting that a given name means, and the key where it names one entry of a map."""
    if name in fields:
        return name, None
    for known, field in fields.items():
        if _is_map(field) and name.startswith(f"{known}."):
            return known, name.removeprefix(f"{known}.")
    # Likeness costs the product of both lengths, and a message is for people.
    name = name[:SHOWN_LENGTH_MAX]
    nearest = difflib.get_close_matches(name, fields, n=1, cutoff=0.0)[0]
    raise Misconfigured(f"cannot use setting {name!r} ({source}): unknown; did you mean {nearest!r}?")


def _is_map(field: FieldInfo) -> bool:
    return isinstance(field.default, Mapping)


def _map_of(name: str, value: object, source: str) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value, parse_float=Decimal)
        except (ValueError, RecursionError) as exc:
            raise Misconfigured(
                f'cannot use setting {name}={shown(value)} ({source}): expected JSON such as {{"NVIDIA A10": 0.9}}'
            ) from exc
    if not isinstance(value, dict):
        raise Misconfigured(f"cannot use setting {name}={shown(value)} ({source}): expected a map from name to value")
    return value


def _absent_or(value: object, field: FieldInfo) -> object:
    """Text as the validator wants it: a word for absence where the setting may be absent, a list where it is one."""
    if not isinstance(value, str):
        return value
    if type(None) in get_args(field.annotation) and value.strip().lower() in _NONE_WORDS:
        return None
    if isinstance(field.default, tuple):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value
