"""Settings come from four sources in order, under one dotted name, and a misspelt one fails with the nearest."""

from decimal import Decimal
from pathlib import Path

import pytest

from docs.settings_page import setting_meanings
from fleet.decisions import RiskLevel
from fleet.errors import Misconfigured
from fleet.settings.settings import changed_settings, load_settings, setting_fields


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "gputide.toml"
    path.write_text(
        '[analyzer]\nidle_ratio_max = 0.02\ncoverage_min = 0.7\n[receiver]\nbody_bytes_max = "16MiB"\n'
        '[prices.overrides]\n"NVIDIA A10" = 0.79\n',
        encoding="utf-8",
    )
    return path


def test_defaults_are_those_of_the_documented_states() -> None:
    settings = load_settings(None, {}, {})
    assert (settings.analyzer.idle_ratio_max, settings.analyzer.idle_coverage_min) == (0.01, 0.95)
    assert settings.receiver.body_bytes_max == 16777216
    assert (settings.risk.preset, settings.risk.violation_ratio_limit) == (RiskLevel.MEDIUM, 0.005)


def test_flags_win_over_environment_over_file_over_defaults(config: Path) -> None:
    environ = {"GPUTIDE_ANALYZER__IDLE_RATIO_MAX": "0.03", "GPUTIDE_ANALYZER__OFF_PEAK_RATIO": "0.3"}
    settings = load_settings(config, {"analyzer.off_peak_ratio": "0.4"}, environ)
    assert settings.analyzer.coverage_min == 0.7
    assert settings.analyzer.idle_ratio_max == 0.03
    assert settings.analyzer.off_peak_ratio == 0.4
    assert settings.analyzer.low_use_ratio == 0.20


def test_sizes_and_durations_may_carry_a_unit(config: Path) -> None:
    settings = load_settings(config, {"enforcer.watch_seconds": "15m"}, {"GPUTIDE_BUS__BYTES_MAX": "1GiB"})
    assert settings.receiver.body_bytes_max == 16 * 2**20
    assert settings.enforcer.watch_seconds == 900
    assert settings.bus.bytes_max == 2**30


def test_prices_are_exact_and_maps_are_merged_entry_by_entry(config: Path) -> None:
    settings = load_settings(
        config, {"prices.overrides.Tesla T4": "0.35"}, {"GPUTIDE_PRICES__OVERRIDES": '{"L20": 0.9}'}
    )
    assert settings.prices.overrides == {
        "NVIDIA A10": Decimal("0.79"),
        "L20": Decimal("0.9"),
        "Tesla T4": Decimal("0.35"),
    }


def test_a_word_for_absence_takes_a_limit_away() -> None:
    assert load_settings(None, {"plan.moves_max": "5"}, {}).plan.moves_max == 5
    assert load_settings(None, {"plan.moves_max": "none"}, {"GPUTIDE_PLAN__MOVES_MAX": "5"}).plan.moves_max is None


@pytest.mark.parametrize(
    ("overrides", "environ", "message"),
    [
        (
            {"analyzer.idle_ratio": "1"},
            {},
            r"'analyzer\.idle_ratio' .flag --set.: unknown; did you mean 'analyzer\.idle_ratio_max'",
        ),
        (
            {},
            {"GPUTIDE_RECEIVR__BODY_BYTES_MAX": "1"},
            r"GPUTIDE_RECEIVR__BODY_BYTES_MAX.*did you mean 'receiver\.body_bytes_max'",
        ),
        ({"analyzer.idle_ratio_max": "3"}, {}, r"analyzer\.idle_ratio_max='3' .flag --set.: .*expected at most 1"),
        ({"analyzer.idle_ratio_max": "nan"}, {}, r"analyzer\.idle_ratio_max='nan' .*: expected a finite number"),
        ({"risk.preset": "huge"}, {}, r"risk\.preset='huge' .flag --set.: expected 'low', 'medium' or 'high'"),
        ({"tide.holidays": "24.12."}, {}, r"tide\.holidays\.0='24\.12\.' .*: expected a day such as 2026-12-24"),
        ({}, {"GPUTIDE_DASHBOARD__PORT": "web"}, r"dashboard\.port='web' .environment .*: expected a whole number"),
        ({"rollup.window_seconds": "17s"}, {}, "must divide 900"),
        ({"cluster.time_zone": "Mars/Base"}, {}, "no IANA time zone"),
        ({"cluster.time_zone": "../etc/passwd"}, {}, "no IANA time zone"),
        ({"receiver.body_bytes_max": "1TiB"}, {}, "receiver: decoded_bytes_max=33554432 is below"),
        ({"agent.interval_seconds": "5"}, {}, "agent: quiet_seconds=5 needs to be longer than interval_seconds=5.0"),
        ({"agent.release_seconds": "6"}, {}, "agent: release_seconds=6.0 needs to be at most quiet_seconds=5"),
        ({"prices.overrides.A10": "-1"}, {}, r"prices\.overrides\.A10='-1'"),
        ({"prices.overrides": "[1]"}, {}, "expected a map"),
        ({"analyzer": "1"}, {}, "unknown"),
    ],
)
def test_wrong_settings_name_the_setting_the_value_and_the_source(
    overrides: dict[str, str], environ: dict[str, str], message: str
) -> None:
    with pytest.raises(Misconfigured, match=message):
        load_settings(None, overrides, environ)


def test_variables_that_kubernetes_injects_for_a_service_are_no_settings() -> None:
    assert load_settings(None, {}, {"GPUTIDE_SERVICE_HOST": "10.0.0.1", "GPUTIDE_PORT": "tcp://"}) == load_settings(
        None, {}, {}
    )


@pytest.mark.parametrize("content", [b"[analyzer", b"\xff\xfe", b"[analyzer]\nidle = 1\n", b"analyzer = 1\n"])
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "bad.toml"
    path.write_bytes(content)
    with pytest.raises(Misconfigured, match=r"bad\.toml"):
        load_settings(path, {}, {})


def test_a_file_that_is_absent_is_named(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match=r"absent\.toml"):
        load_settings(tmp_path / "absent.toml", {}, {})


def test_every_setting_says_what_it_means() -> None:
    meanings = setting_meanings()
    assert [name for name, _ in setting_fields() if len(meanings.get(name, "")) <= 12] == []


def test_settings_cannot_be_changed_once_loaded() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load_settings(None, {}, {}).analyzer.idle_ratio_max = 0.5


def test_fault_inside_an_entry_of_a_file_names_the_entry_and_the_file(tmp_path: Path) -> None:
    path = tmp_path / "gputide.toml"
    path.write_text('[[prices.rules]]\nsource = "invoice"\ndate = "2026-01"\nper_card_our = 0.9\n', encoding="utf-8")
    with pytest.raises(Misconfigured) as caught:
        load_settings(path, {}, {})
    assert str(caught.value) == (
        f"cannot use setting prices.rules.0.per_card_our=0.9 (file {path}): unknown name; did you mean 'per_card_hour'?"
    )


def test_setting_changed_for_one_call_is_checked_against_those_that_were_loaded() -> None:
    loaded = load_settings(None, {"bus.segment_bytes": "1MiB", "bus.bytes_max": "4MiB"}, {})
    assert changed_settings(loaded, {"bus.bytes_max": "2MiB"}).bus.bytes_max == 2 * 2**20
    with pytest.raises(Misconfigured, match="cannot use settings of bus: bytes_max=1048576 holds fewer than two"):
        changed_settings(loaded, {"bus.bytes_max": "1MiB"})


def test_word_none_means_none_where_a_setting_may_be_none(tmp_path: Path) -> None:
    config = tmp_path / "gputide.toml"
    config.write_text('[exporter]\nclaims_folder = "none"\n')
    loaded = load_settings(
        config, {"exporter.containers_folder": "none"}, {"GPUTIDE_RECOMMENDER__MEASURED_PAIRS": "none"}
    )
    assert loaded.exporter.claims_folder is None
    assert loaded.exporter.containers_folder is None
    assert loaded.recommender.measured_pairs is None
    assert load_settings(None, {"cluster.name": "none"}, {}).cluster.name == "none"


@pytest.mark.parametrize(
    "address",
    [
        "postgresql+pg8000://me:hush@db/none",
        "postgresql+pg8000://me:hu/sh@db/none",
        "postgresql+pg8000://:hush@db/none",
        "postgresql+pg8000://me@db/none?password=hush",
        "mysql+pymysql://me@db/none?ssl=1&passwd=hush",
    ],
)
def test_an_address_with_a_password_is_refused_and_not_shown(address: str) -> None:
    with pytest.raises(Misconfigured, match=r"iceberg\.password_file") as refused:
        load_settings(None, {"iceberg.database": address}, {})
    assert "hu" not in str(refused.value)


@pytest.mark.parametrize(
    "address", ["sqlite:////a:b@c", "sqlite:////a?b=c@d:e", "postgresql+pg8000://me@db:5432/none?ssl_context=true"]
)
def test_an_address_that_only_looks_like_one_with_a_password_is_taken(address: str) -> None:
    assert load_settings(None, {"iceberg.database": address}, {}).iceberg.database == address
