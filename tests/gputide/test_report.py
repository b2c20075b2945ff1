"""The report through the real program: language, team, stored weeks, schedule, PDF."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from pypdf import PdfReader

from dashboards.report.schedule import cron_job, crontab_line
from fleet.errors import Misconfigured
from tests.gputide.conftest import Program


def test_language_is_what_the_setting_says_and_the_flag_goes_before_it(program: Program, planned: Path) -> None:
    chinese = program(planned, "--set", "report.language=zh", "report", "-f", "html")
    assert chinese.status == 0, chinese.err
    assert '<html lang="zh">' in chinese.out
    english = program(planned, "--set", "report.language=zh", "report", "-f", "html", "--lang", "en")
    assert '<html lang="en">' in english.out


def test_ending_of_the_file_names_the_form_and_must_fit_a_form_that_is_asked_for(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    for name, flags, begins in (("w.html", (), "<!doctype html>"), ("w.json", (), "{"), ("w.md", ("-f", "md"), "# ")):
        assert program(planned, "report", *flags, "-o", str(tmp_path / name)).status == 0
        assert (tmp_path / name).read_text(encoding="utf-8").lower().startswith(begins)
    refused = program(planned, "report", "-f", "md", "-o", str(tmp_path / "other.html"))
    assert refused.status == 2
    assert not (tmp_path / "other.html").exists()


def test_same_data_and_moment_give_the_same_bytes_in_another_process(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    said = [program(planned, "report", "--format", "html", "-o", str(tmp_path / name)) for name in ("a", "b")]
    assert [one.status for one in said] == [0, 0]
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_week_kept_by_an_older_version_still_compares(program: Program, planned: Path) -> None:
    # This week's own file is never its past.
    assert program(planned, "report", "-f", "json").document["past_weeks"] == []
    (newest,) = (planned / "weeks").glob("*.json")
    week = json.loads(newest.read_bytes())
    for name in ("idle_gpu_hours", "low_priority_gpu_hours", "kwh", "kg_co2"):
        del week[name]
    week["cards_freed"] = 3
    older = newest.with_name("2025-12-29.json")
    older.write_text(json.dumps({**week, "week_start": "2025-12-29T00:00:00Z"}))
    try:
        found = program(planned, "report", "-f", "json").document
    finally:
        older.unlink()
    assert found["past_weeks"][0]["cards_freed"] == 3
    assert found["past_weeks"][0]["kwh"] is None
    assert found["week"]["idle_gpu_hours"] is not None


def test_electricity_is_that_of_the_cost_and_carbon_follows_the_grid(program: Program, planned: Path) -> None:
    settings = ("--set", "energy.pue=1.5", "--set", "energy.grid_kg_co2_per_kwh=0.5", "--set")
    options = (*settings, "energy.idle_watts_ratio=0.15")
    week = program(planned, *options, "report", "-f", "json").document["week"]
    total = program(planned, *options, "cost", "show", "--format", "json").document["total"]
    assert total["kwh"] > 0
    assert week["kwh"] == pytest.approx(total["kwh"], abs=0.002)
    assert week["kg_co2"] == pytest.approx(total["kwh"] * 0.5, abs=0.002)


def test_report_of_a_team_is_the_teams_and_keeps_its_own_weeks(program: Program, planned: Path) -> None:
    whole = program(planned, "report", "-f", "json").document
    team = whole["teams"][0]["tenant"]["name"]
    weeks = sorted((planned / "weeks").glob("*.json"))
    before = [week.read_bytes() for week in weeks]
    said = program(planned, "report", "--team", team, "-f", "json")
    assert said.status == 0, said.err
    assert {row["owner"] for row in said.document["top"]} <= {team}
    assert [week.read_bytes() for week in weeks] == before
    wrong = program(planned, "report", "--team", team + "x")
    assert wrong.status == 2
    assert team in wrong.err


def test_schedule_prints_a_cron_job_and_a_line_that_call_the_report(program: Program, planned: Path) -> None:
    said = program(planned, "report", "schedule", "--lang", "zh", "--cron", "30 7 * * 1-5")
    assert said.status == 0, said.err
    job = next(one for one in yaml.safe_load_all(said.out) if one)
    assert (job["apiVersion"], job["kind"]) == ("batch/v1", "CronJob")
    assert job["spec"]["schedule"] == "30 7 * * 1-5"
    arguments = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert arguments[-4:] == ["report", "--lang", "zh", "--send"]
    line = said.out.splitlines()[-1].removeprefix("# ")
    assert shlex.split(line)[-4:] == ["report", "--lang", "zh", "--send"]


@pytest.mark.parametrize("cron", ["", "@weekly", "0 8 * *", "61 8 * * 1", "0 24 * * 1", "0 8 * * 1\n- x", "0 8 * * 8"])
def test_schedule_that_cron_would_not_take_is_refused(cron: str) -> None:
    with pytest.raises(Misconfigured, match="--cron"):
        crontab_line(("report",), cron=cron, before=())
    with pytest.raises(Misconfigured, match="--cron"):
        cron_job(("report",), cron=cron, time_zone="UTC", namespace="a", image="b", claim="c", config_map=None)


def test_chinese_pdf_reads_back_as_chinese_with_its_fonts_embedded_and_no_browser_on_the_path(
    program: Program, planned: Path, tmp_path: Path
) -> None:
    target = tmp_path / "report.pdf"
    said = program(planned, "report", "--lang", "zh", "-o", str(target), environ={"PATH": str(tmp_path)})
    assert said.status == 0, said.err
    headline = program(planned, "report", "--lang", "zh", "-f", "json").document["headline"]
    pdf: Any = PdfReader(target)
    assert pdf.trailer["/Root"]["/Lang"] == "zh"
    text = "".join("".join(page.extract_text() for page in pdf.pages).split())
    assert "".join(headline.split()) in text
    assert all(words in text for words in ("机群，逐日", "闲置最多的工作负载", "各服务的损害预算", "已分配未使用"))
    fonts = [one.get_object() for page in pdf.pages for one in page["/Resources"]["/Font"].values()]
    assert any("NotoSansCJKsc" in font["/BaseFont"] for font in fonts)
    for font in fonts:
        (descendant,) = font["/DescendantFonts"]
        assert {"/FontFile2", "/FontFile3"} & descendant["/FontDescriptor"].keys(), font["/BaseFont"]


def test_pdf_of_the_same_data_and_moment_has_the_same_bytes(program: Program, planned: Path, tmp_path: Path) -> None:
    said = [program(planned, "report", "-f", "pdf", "-o", str(tmp_path / name)) for name in ("a.pdf", "b.pdf")]
    assert [one.status for one in said] == [0, 0]
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()


def test_pdf_is_not_written_to_standard_output(program: Program, planned: Path) -> None:
    assert program(planned, "report", "-f", "pdf").status == 2
