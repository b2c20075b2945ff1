"""A release: what may be shipped, one version everywhere, a bill of materials, an audit that never passes unasked."""

from __future__ import annotations

import gzip
import importlib
import io
import json
import re
import subprocess
import sys
import tarfile
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from bootstrap import find_uv, uv_environment
from deploy.release import audit
from deploy.release.bill_of_materials import bill_of_materials, installed_in, named_for
from deploy.release.build import check_changelog, project_version, release_seconds, without_times, write_sums
from deploy.release.krew import MACHINES as PLUGIN_MACHINES
from deploy.release.krew import PACKAGES, manifest
from deploy.release.licences import (
    LicenceRules,
    LicensedPackage,
    is_allowed,
    judged,
    licence_of,
    licensed_packages,
    objection_to,
    page,
    read_rules,
)
from deploy.release.locked_packages import MACHINES, PYTHONS, LockedPackage, closure, locked_packages, missing_wheels
from fleet.errors import Misconfigured

EPOCH = 1_767_225_600


@pytest.fixture(scope="module")
def rules() -> LicenceRules:
    return read_rules()


@pytest.fixture(scope="module")
def shipped(rules: LicenceRules) -> tuple[LicensedPackage, ...]:
    return licensed_packages(rules)


@pytest.fixture(scope="module")
def uv() -> str:
    found = find_uv()
    if found is None:
        pytest.skip("no uv on PATH or in .bootstrap")
    return found


def test_every_package_that_is_shipped_is_under_a_licence_that_may_be(shipped: tuple[LicensedPackage, ...]) -> None:
    assert {one.package.name: one.objection for one in shipped if one.objection is not None} == {}
    assert {"numpy", "duckdb", "dash", "kafka-python", "nvidia-ml-py"} <= {one.package.name for one in shipped}


def test_what_developers_alone_use_is_not_shipped(shipped: tuple[LicensedPackage, ...]) -> None:
    assert {"pytest", "mypy", "hypothesis", "playwright"} & {one.package.name for one in shipped} == set()


def test_the_list_of_licences_is_up_to_date(
    repository: Path, shipped: tuple[LicensedPackage, ...], rules: LicenceRules
) -> None:
    listed = (repository / "docs" / "third-party.md").read_text(encoding="utf-8")
    assert listed == page(shipped, rules), "run python -m deploy.release.licences"


def test_no_rule_is_left_over(shipped: tuple[LicensedPackage, ...], rules: LicenceRules) -> None:
    names = {one.package.name for one in shipped}
    assert (rules.exceptions.keys() | rules.stated.keys()) - names == set()


@pytest.mark.parametrize(
    ("expression", "is_fine"),
    [
        ("MIT", True),
        ("GPL-3.0-only", False),
        ("MIT OR GPL-3.0-only", True),
        ("MIT AND GPL-3.0-only", False),
        ("GPL-3.0-only OR MIT AND Apache-2.0", True),
        ("(GPL-3.0-only OR MIT) AND AGPL-3.0-only", False),
        ("BSD-2-Clause AND Apache-2.0 WITH LLVM-exception", True),
        ("GPL-3.0-only WITH GCC-exception-3.1", False),
    ],
)
def test_an_expression_is_allowed_where_one_choice_of_it_is(
    expression: str, is_fine: bool, rules: LicenceRules
) -> None:
    assert is_allowed(expression, rules.allowed) is is_fine


def test_copyleft_is_excepted_for_one_package_and_one_licence(rules: LicenceRules) -> None:
    assert objection_to("crc32c", "LGPL-2.1-or-later", rules) is None
    assert "LGPL-2.1-or-later" in (objection_to("another", "LGPL-2.1-or-later", rules) or "")
    assert "GPL-3.0-only" in (objection_to("crc32c", "GPL-3.0-only", rules) or "")


@pytest.mark.parametrize(
    ("expression", "licence", "classifiers", "found"),
    [
        ("MIT", None, [], "MIT"),
        (None, "mpl-2.0", [], "MPL-2.0"),
        (None, "The MIT License", ["License :: OSI Approved :: MIT License"], "MIT"),
        (None, "Redistribution and use\nin source", ["License :: OSI Approved :: MIT License"], "MIT"),
        (None, "BSD", ["License :: OSI Approved :: BSD License"], None),
        (None, None, ["License :: OSI Approved :: MIT License", "License :: Other/Proprietary License"], None),
        (None, None, [], None),
    ],
)
def test_a_licence_is_read_only_where_it_is_said_plainly(
    expression: str | None, licence: str | None, classifiers: list[str], found: str | None
) -> None:
    assert licence_of(expression, licence, classifiers) == found


def test_a_package_that_is_not_installed_is_objected_to(rules: LicenceRules) -> None:
    absent = LockedPackage(name="no-such-package-at-all", versions=("1",), extras=())
    assert "not installed" in (judged(absent, rules).objection or "")


def test_every_shipped_package_has_wheels_for_both_processors_or_is_plain_python(repository: Path) -> None:
    lock = tomllib.loads((repository / "uv.lock").read_text(encoding="utf-8"))
    names = {package.name for package in locked_packages(repository / "uv.lock")}
    wheels: dict[str, list[str]] = {name: [] for name in names}
    for package in lock["package"]:
        if package["name"] in names:
            wheels[package["name"]] += [wheel["url"].rsplit("/", 1)[1] for wheel in package.get("wheels", ())]
    # Built from their sources, which are Python alone, while the image is built.
    plain = {"pure-sasl", "pyhive"}
    for name in sorted(names - plain):
        for machine in ("x86_64", "aarch64"):
            fits = re.compile(rf"-(py3|py2\.py3)-none-any|-(cp313-cp313|cp3\d+-abi3\S*|py3-none)-\S*linux\S*{machine}")
            assert any(fits.search(wheel) for wheel in wheels[name]), (name, machine)


def test_the_version_has_one_place_and_the_rest_follows(repository: Path) -> None:
    version = project_version(repository)
    check_changelog(version, repository)
    folders = ("docs", "gputide", "deploy")
    said = {
        (path.relative_to(repository).as_posix(), found)
        for folder in folders
        for path in (repository / folder).rglob("*")
        if path.suffix in {".py", ".md", ".yaml"}
        for found in re.findall(r"/gputide:(\d+\.\d+\.\d+)", path.read_text(encoding="utf-8"))
    }
    assert {found for _, found in said} == {version}, said
    chart = repository / "deploy" / "helm" / "gputide" / "Chart.yaml"
    stated = re.findall(r'^(?:version|appVersion): "?([^"\s]+)"?', chart.read_text(encoding="utf-8"), re.M)
    assert set(stated) == {version}


def test_a_version_without_a_section_in_the_changelog_is_not_released(repository: Path) -> None:
    with pytest.raises(Misconfigured, match=r"999\.0\.0"):
        check_changelog("999.0.0", repository)


def test_a_release_is_dated_by_its_sources(repository: Path) -> None:
    assert release_seconds({"SOURCE_DATE_EPOCH": "1767225600"}, repository) == EPOCH
    with pytest.raises(Misconfigured, match="SOURCE_DATE_EPOCH"):
        release_seconds({"SOURCE_DATE_EPOCH": "yesterday"}, repository)


def test_the_bill_of_materials_names_all_that_is_shipped_and_repeats(
    uv: str, shipped: tuple[LicensedPackage, ...]
) -> None:
    one, again = (
        bill_of_materials(uv, shipped, version="1.2.3", released_at=datetime.fromtimestamp(EPOCH, tz=UTC))
        for _ in range(2)
    )
    assert one == again
    licences = {component["name"]: component["licenses"] for component in one["components"]}
    assert licences == {item.package.name: [{"expression": item.licence}] for item in shipped}
    assert all(component["purl"] and component["externalReferences"] for component in one["components"])
    known = {component["bom-ref"] for component in one["components"]} | {one["metadata"]["component"]["bom-ref"]}
    assert {ref for entry in one["dependencies"] for ref in entry["dependsOn"]} <= known
    assert one["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"


@pytest.mark.long
def test_what_the_image_installs_is_what_the_bill_of_materials_names(
    uv: str, shipped: tuple[LicensedPackage, ...], repository: Path, tmp_path: Path
) -> None:
    script = (repository / "deploy" / "image" / "install.sh").read_text(encoding="utf-8")
    (options,) = re.findall(r'^    sync="\$UV/bin/uv (sync .+)"$', script, re.M)
    steps = re.findall(r"^    \$sync (.+)$", script, re.M)
    assert steps
    environ = {**uv_environment(), "UV_PROJECT_ENVIRONMENT": str(tmp_path / "env"), "UV_PYTHON": sys.executable}
    for step in steps:
        command = [uv, *options.split(), *step.split(), "--no-install-project", "--quiet"]
        subprocess.run(command, cwd=repository, env=environ, check=True)
    (site,) = (tmp_path / "env" / "lib").glob("python3.*/site-packages")
    bill = bill_of_materials(uv, shipped, version="1.2.3", released_at=datetime.fromtimestamp(EPOCH, tz=UTC))
    assert installed_in(site) == named_for(bill, {})


def test_a_chart_has_the_same_bytes_whenever_it_was_packaged() -> None:
    def packaged(mtime: int) -> bytes:
        bare = io.BytesIO()
        with tarfile.open(fileobj=bare, mode="w") as archive:
            for name in ("gputide/values.yaml", "gputide/Chart.yaml")[:: 1 if mtime % 2 else -1]:
                member = tarfile.TarInfo(name)
                member.size, member.mtime = 3, mtime
                archive.addfile(member, io.BytesIO(b"a: "))
        return gzip.compress(bare.getvalue(), mtime=mtime)

    first, second = packaged(1_000_000_001), packaged(1_700_000_000)
    assert first != second
    assert without_times(first, EPOCH) == without_times(second, EPOCH)
    with tarfile.open(fileobj=io.BytesIO(without_times(first, EPOCH))) as archive:
        assert [member.name for member in archive] == ["gputide/Chart.yaml", "gputide/values.yaml"]


def test_checksums_cover_every_file_in_the_form_of_sha256sum(tmp_path: Path) -> None:
    (tmp_path / "chart").mkdir()
    (tmp_path / "chart" / "b.tgz").write_bytes(b"")
    (tmp_path / "a.whl").write_bytes(b"abc")
    write_sums(tmp_path)
    assert (tmp_path / "SHA256SUMS").read_text(encoding="utf-8") == (
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad  a.whl\n"
        "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  chart/b.tgz\n"
    )


def test_the_audit_says_what_is_known_and_never_passes_unasked(
    uv: str, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    with advisories(lambda name: name == "jinja2") as url:
        assert audit.main(["--service-url", url]) == 1
    assert "jinja2" in capfd.readouterr().out
    with advisories(lambda name: False) as url:
        assert audit.main(["--service-url", url]) == 0
    # Nobody listens there any more.
    assert audit.main(["--service-url", url]) == 5
    assert "NOT ASKED" in capfd.readouterr().err


def test_the_image_is_built_by_the_steps_that_the_clean_root_runs(repository: Path) -> None:
    folder = repository / "deploy" / "image"
    dockerfile = (folder / "Dockerfile").read_text(encoding="utf-8")
    in_image = re.findall(r"deploy/image/install\.sh (tools|system /image|program /image)", dockerfile)
    (steps,) = re.findall(r"^    for step in (.+); do$", (folder / "clean-root.sh").read_text(encoding="utf-8"), re.M)
    assert in_image == re.findall(r"[^\s\"]+ /image|\w+", steps)


def test_the_image_runs_as_nobody_and_finds_its_kernels(repository: Path) -> None:
    last = (repository / "deploy" / "image" / "Dockerfile").read_text(encoding="utf-8").rsplit("\nFROM ", 1)[1]
    assert re.search(r"^USER 65532:65532$", last, re.M)
    assert re.search(r'^ENTRYPOINT \["/opt/gputide/bin/gputide"\]$', last, re.M)
    (named,) = re.findall(r"NUMBA_CACHE_LOCATOR_CLASSES=(\S+)", last)
    module, _, name = named.split(",")[0].rpartition(".")
    assert hasattr(importlib.import_module(module), name)


@contextmanager
def advisories(is_bad: Callable[[str], bool]) -> Iterator[str]:
    """An advisory database with the protocol of OSV (google.github.io/osv.dev/api), on this machine."""

    class Answers(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["queries"]
            known = [{"id": "TEST-1", "modified": "2026-01-01T00:00:00Z"}]
            self._say({"results": [{"vulns": known} if is_bad(one["package"]["name"]) else {} for one in asked]})

        def do_GET(self) -> None:
            self._say({"id": "TEST-1", "modified": "2026-01-01T00:00:00Z", "summary": "made up", "affected": []})

        def _say(self, body: object) -> None:
            data = json.dumps(body).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("machine", MACHINES)
def test_every_package_has_a_wheel_for_both_processors(machine: str, python: str, repository: Path) -> None:
    # These two are pure Python, built from their locked sources.
    assert missing_wheels(repository / "uv.lock", machine, python) == ("pure-sasl", "pyhive")


def test_wheels_of_other_processors_and_pythons_are_missed(repository: Path) -> None:
    assert "numpy" in missing_wheels(repository / "uv.lock", "riscv64", "3.13")
    assert "pydantic-core" in missing_wheels(repository / "uv.lock", "aarch64", "3.8")


def test_image_is_made_by_the_same_steps_for_both_processors(repository: Path) -> None:
    one_of_them = re.compile(r"x86|amd64|i386|arm64|aarch64|avx|sse[0-9]|-march", re.I)
    files = [*(repository / "deploy" / "image").iterdir(), *(repository / "gputide" / "kernels").glob("*.py")]
    for file in files:
        lines = [line for line in file.read_text().splitlines() if not line.lstrip().startswith("#")]
        assert not [line for line in lines if one_of_them.search(line)], file
    dockerfile = (repository / "deploy" / "image" / "Dockerfile").read_text()
    assert "NUMBA_CPU_NAME=generic" in dockerfile
    assert "--platform" not in "".join(line for line in dockerfile.splitlines() if line.startswith("FROM"))
    uv = (repository / "deploy" / "image" / "uv.txt").read_text()
    assert uv.count("--hash=sha256:") == len(MACHINES)


def test_plugin_brings_what_its_packages_need_and_nothing_of_the_warehouse(repository: Path) -> None:
    found = closure(repository / "uv.lock", PACKAGES)
    assert {"pydantic-core", "shellingham", *PACKAGES} <= found
    assert not {"duckdb", "pyarrow", "numba", "highspy"} & found


@pytest.mark.parametrize("url", ["http://a.example", "https://a.example/b c", "ftp://a", "https://a/$(id)", ""])
def test_manifest_names_no_address_that_krew_would_not_fetch(url: str, tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="RELEASE_URL"):
        manifest(tmp_path / "a.tar.gz", version="0.1.0", url=url)


def test_plugin_is_for_the_processors_of_the_image() -> None:
    as_linux_has_them = {"amd64": "x86_64", "arm64": "aarch64"}
    assert tuple(as_linux_has_them[machine] for machine in PLUGIN_MACHINES) == MACHINES
