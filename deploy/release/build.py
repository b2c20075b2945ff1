"""Makes everything that a release publishes, in `dist/`: `python -m deploy.release.build`, called by `make release`.

| file | what |
|---|---|
| `gputide-VERSION-py3-none-any.whl`, `gputide-VERSION.tar.gz` | the program and its sources |
| `gputide-VERSION.cdx.json` | bill of materials, CycloneDX 1.5 |
| `gputide-VERSION.licences.txt` | licence of every package that is shipped, and its text |
| `gputide-VERSION.tgz` under `chart/` | the Helm chart, where helm is at hand |
| `kubectl-gputide-VERSION.tar.gz` | the plugin of kubectl, as Krew unpacks it |
| `gputide.yaml` under `krew/` | its manifest, where `RELEASE_URL` says which folder the files are published in |
| `olm/` | the bundle of the Operator Lifecycle Manager, where helm is at hand |
| `SHA256SUMS` | checksums of all of these, for `sha256sum --check` |

The same sources give the same bytes: times are those of `SOURCE_DATE_EPOCH` (reproducible-builds.org), else of the last
commit, and the wheel and the sources are built twice and compared. The version is that of `pyproject.toml` and nowhere
else; the changelog must have a section on it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from bootstrap import find_uv, install_uv
from deploy.release.bill_of_materials import bill_of_materials
from deploy.release.krew import PLUGIN, manifest, write_archive
from deploy.release.licences import ROOT, LicensedPackage, licensed_packages, read_rules, texts
from deploy.release.olm import write_bundle
from fleet.errors import Corrupt, GputideError, Misconfigured, Refused, Unavailable
from gputide.operate.engine_cache import default_cache_path

DIST = ROOT / "dist"
CHART = ROOT / "deploy" / "helm" / "gputide"
SUMS = "SHA256SUMS"


def main() -> int:
    """Build the release into `dist/`, which is emptied first; print one line per file.

    Returns:
        0, or the exit status of what went wrong, which is told.
    """
    try:
        files = build(DIST)
    except GputideError as exc:
        print(f"release: {exc}", file=sys.stderr)
        return exc.exit_status
    for file in files:
        print(f"{file.stat().st_size:>12,}  {file.relative_to(ROOT)}")
    return 0


def build(dist: Path) -> list[Path]:
    """Build everything into a folder; returns the files in order of name.

    Raises:
        Misconfigured: the version has no section in the changelog.
        Refused: a package may not be shipped, or two builds differ.
        Unavailable: uv or the builder could not run.
    """
    version = project_version()
    check_changelog(version)
    seconds = release_seconds(os.environ)
    rules = read_rules()
    packages = licensed_packages(rules)
    if objections := [f"{one.package.name} {one.objection}" for one in packages if one.objection is not None]:
        raise Refused(f"cannot release: {'; '.join(objections)}")
    uv = find_uv() or install_uv()
    if uv is None:
        raise Unavailable("cannot release: there is no uv, and the package index brought none")
    shutil.rmtree(dist, ignore_errors=True)
    dist.mkdir(parents=True)
    build_distributions(dist, seconds)
    bill = bill_of_materials(uv, packages, version=version, released_at=datetime.fromtimestamp(seconds, tz=UTC))
    (dist / f"gputide-{version}.cdx.json").write_text(json.dumps(bill, indent=1) + "\n", encoding="utf-8")
    (dist / f"gputide-{version}.licences.txt").write_text(licence_file(packages), encoding="utf-8")
    archive = write_archive(dist, version=version, seconds=seconds, uv=uv)
    if url := os.environ.get("RELEASE_URL"):
        (dist / "krew").mkdir()
        (dist / "krew" / f"{PLUGIN}.yaml").write_text(manifest(archive, version=version, url=url), encoding="utf-8")
    else:
        print("release: no manifest for Krew: RELEASE_URL does not say where the files are published", file=sys.stderr)
    if (helm := find_helm()) is None:
        print(
            "release: neither chart nor bundle: helm is neither on PATH nor in the engines' cache",
            file=sys.stderr,
        )
    elif CHART.is_dir():
        package_chart(helm, dist / "chart", version=version, seconds=seconds)
        write_bundle(dist / "olm", helm, version=version)
    write_sums(dist)
    return sorted(path for path in dist.rglob("*") if path.is_file())


def project_version(root: Path = ROOT) -> str:
    """The version, from its one place."""
    return str(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"])


def check_changelog(version: str, root: Path = ROOT) -> None:
    """Check that people can read what this version brings.

    Raises:
        Misconfigured: they can't.
    """
    changelog = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if re.search(rf"^## {re.escape(version)}\b", changelog, re.M) is None:
        raise Misconfigured(f"cannot release {version}: CHANGELOG.md has no section '## {version}'")


def release_seconds(environ: Mapping[str, str], root: Path = ROOT) -> int:
    """When the release is said to be made: `SOURCE_DATE_EPOCH`, else the last commit; seconds since 1970.

    Raises:
        Misconfigured: there is neither, or it is no number.
    """
    said = environ.get("SOURCE_DATE_EPOCH")
    if said is None:
        command = ["git", "log", "-1", "--format=%ct"]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        said = done.stdout.strip() if done.returncode == 0 else ""
    if not said.isdecimal():
        raise Misconfigured(f"cannot date the release by {said!r}: set SOURCE_DATE_EPOCH to seconds since 1970")
    return int(said)


def build_distributions(dist: Path, seconds: int) -> None:
    """Build wheel and sources twice and keep them once they are equal byte by byte.

    Raises:
        Refused: they differ.
        Unavailable: the builder failed.
    """
    environ = {**os.environ, "SOURCE_DATE_EPOCH": str(seconds), "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as again:
        for folder in (dist, Path(again)):
            command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder)]
            done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                raise Unavailable(f"cannot build the wheel: {done.stderr.strip()[-500:]!r}")
        for file in sorted(dist.iterdir()):
            if file.read_bytes() != (Path(again) / file.name).read_bytes():
                raise Refused(
                    f"cannot release {file.name}: two builds differ: the sources changed in between, or the build does "
                    "not repeat"
                )


def licence_file(packages: tuple[LicensedPackage, ...]) -> str:
    """The file of licences: our own text first, then everybody else's."""
    own = (ROOT / "LICENSE").read_text(encoding="utf-8")
    font = (ROOT / "dashboards" / "report" / "fonts" / "OFL.txt").read_text(encoding="utf-8")
    return (
        f"gputide is under Apache-2.0:\n\n{own}\nThe font of its reports:\n\n{font}\n"
        f"It is shipped with these packages of others:\n\n{texts(packages)}"
    )


def find_helm() -> str | None:
    """Helm on PATH, else the newest that the engines' cache holds."""
    if (found := shutil.which("helm")) is not None:
        return found
    built = sorted(default_cache_path().glob("go-kubernetes-*/helm"), key=lambda path: path.stat().st_mtime)
    return str(built[-1]) if built else None


def package_chart(helm: str, folder: Path, *, version: str, seconds: int) -> None:
    """Package the chart with the release's version as its own and as the image's, in the same bytes each time.

    Raises:
        Unavailable: helm refused the chart.
        Corrupt: helm's package can't be read.
    """
    folder.mkdir()
    command = [helm, "package", str(CHART), "--version", version, "--app-version", version, "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"cannot package the chart: {done.stderr.strip()!r}")
    for package in folder.glob("*.tgz"):
        package.write_bytes(without_times(package.read_bytes(), seconds))


def without_times(package: bytes, seconds: int) -> bytes:
    """Return a .tgz with the release's time on every file, in order of name, and none in gzip's head.

    Raises:
        Corrupt: it is no .tgz.
    """
    unzipped = io.BytesIO()
    try:
        with (
            tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as old,
            tarfile.open(fileobj=unzipped, mode="w", format=tarfile.PAX_FORMAT) as new,
        ):
            for member in sorted(old.getmembers(), key=lambda one: one.name):
                clean = tarfile.TarInfo(member.name)
                clean.size, clean.mode, clean.mtime, clean.type = member.size, 0o644, seconds, member.type
                new.addfile(clean, old.extractfile(member) if member.isfile() else None)
    except tarfile.TarError as exc:
        raise Corrupt(f"cannot read helm's package of {len(package)} bytes: {exc}") from exc
    zipped = io.BytesIO()
    with gzip.GzipFile(fileobj=zipped, mode="wb", mtime=0, filename="") as archive:
        archive.write(unzipped.getvalue())
    return zipped.getvalue()


def write_sums(dist: Path) -> None:
    """Write `SHA256SUMS` over all files of a folder, in the form of sha256sum."""
    files = sorted(path for path in dist.rglob("*") if path.is_file())
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(dist).as_posix()}" for path in files]
    (dist / SUMS).write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
