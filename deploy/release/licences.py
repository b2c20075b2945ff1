"""Which licence each shipped package of others is under, whether it may be shipped, and the list of them.

    python -m deploy.release.licences            writes docs/third-party.md
    python -m deploy.release.licences --check    says what may not be shipped; 1 where there is any

Called by `make check`, `make release` and by hand after a change of `uv.lock`. A licence is read from the metadata of
the installed package: its SPDX expression (PEP 639), else a plain SPDX name, else its trove classifier; what is looser
than that is stated in `licences.toml`, beside the licences that are allowed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression

from deploy.release.locked_packages import LockedPackage, locked_packages

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "uv.lock"
RULES = Path(__file__).with_name("licences.toml")
LIST = ROOT / "docs" / "third-party.md"

_OF_CLASSIFIER = {
    "Apache Software License": "Apache-2.0",
    "ISC License (ISCL)": "ISC",
    "MIT License": "MIT",
    "Mozilla Public License 2.0 (MPL 2.0)": "MPL-2.0",
    "Python Software Foundation License": "PSF-2.0",
}
"""Trove classifiers that mean one SPDX licence; "BSD License" means several and so is not here."""


_HEAD = """# Packages of others

What the image carries and `pip install 'gputide[all]'` brings besides gputide itself, read from `uv.lock` and the \
packages' own metadata by `python -m deploy.release.licences`. `make check` fails where a licence is not among those \
of `deploy/release/licences.toml`, and where this page is out of date. The texts lie in each \
package's `dist-info`, and together in the file of licences that is published with a release."""
_FONT = """`dashboards/report/fonts` holds a part of the font Noto Sans CJK SC 2.004 (OFL-1.1, its text beside it), \
which the PDF of the report embeds. It was made by `deploy/release/subset_font.py`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenceRules:
    """What `licences.toml` says.

    Attributes:
        allowed: reason by SPDX licence.
        exceptions: (licence, reason) by package.
        stated: SPDX expression by package whose metadata are too loose.
    """

    allowed: Mapping[str, str]
    exceptions: Mapping[str, tuple[str, str]]
    stated: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LicensedPackage:
    """One shipped package with its licence.

    Attributes:
        package: what the lock file names.
        licence: SPDX expression, None where the package doesn't say.
        objection: why it may not be shipped, None where it may.
    """

    package: LockedPackage
    licence: str | None
    objection: str | None


def read_rules(path: Path = RULES) -> LicenceRules:
    """Read the rules; each licence and each statement must be an SPDX expression.

    Raises:
        InvalidLicenseExpression: one is not.
    """
    said = tomllib.loads(path.read_text(encoding="utf-8"))
    exceptions = {name: (entry["licence"], entry["why"]) for name, entry in said["exceptions"].items()}
    for expression in (*said["allowed"], *said["stated"].values(), *(licence for licence, _ in exceptions.values())):
        canonicalize_license_expression(expression)
    return LicenceRules(allowed=said["allowed"], exceptions=exceptions, stated=said["stated"])


def licensed_packages(rules: LicenceRules, lock: Path = LOCK) -> tuple[LicensedPackage, ...]:
    """Return every shipped package with its licence, in order of name."""
    return tuple(judged(package, rules) for package in locked_packages(lock))


def judged(package: LockedPackage, rules: LicenceRules) -> LicensedPackage:
    """Return one package with its licence and what speaks against shipping it."""
    try:
        said = metadata.metadata(package.name)
    except metadata.PackageNotFoundError:
        objection = "is not installed here, so its licence can't be read: set up with every extra"
        return LicensedPackage(package=package, licence=None, objection=objection)
    licence = rules.stated.get(package.name) or licence_of(
        _first(said, "License-Expression"), _first(said, "License"), said.get_all("Classifier") or []
    )
    return LicensedPackage(package=package, licence=licence, objection=objection_to(package.name, licence, rules))


def _first(said: metadata.PackageMetadata, field: str) -> str | None:
    found = said.get_all(field)
    return found[0] if found else None


def licence_of(expression: str | None, licence: str | None, classifiers: list[str]) -> str | None:
    """Return the SPDX expression that metadata state, None where they state none or a loose one."""
    for text in (expression, licence):
        if text is None or "\n" in text:
            continue
        try:
            return str(canonicalize_license_expression(text))
        except InvalidLicenseExpression:
            continue
    last = {classifier.rsplit(" :: ", 1)[-1] for classifier in classifiers if classifier.startswith("License ::")}
    found = {_OF_CLASSIFIER[name] for name in last if name in _OF_CLASSIFIER}
    return found.pop() if len(found) == 1 and len(last - {"OSI Approved"}) == 1 else None


def objection_to(name: str, licence: str | None, rules: LicenceRules) -> str | None:
    """Say why a package under a licence may not be shipped; None where it may."""
    if licence is None:
        return "states no licence that SPDX knows: read its licence file and state it in licences.toml, or drop it"
    excepted = rules.exceptions.get(name)
    if excepted is not None and excepted[0] == licence:
        return None
    if is_allowed(licence, rules.allowed):
        return None
    return f"is under {licence}, which licences.toml does not allow: replace it, or give a reason there"


def is_allowed(expression: str, allowed: Mapping[str, str]) -> bool:
    """Whether one choice of an SPDX expression needs allowed licences only.

    `WITH` binds closest, then `AND`, then `OR`, and parentheses group, as annex D of SPDX 2.3 has it.
    """
    text = re.sub(r"\s+WITH\s+", "\0", expression)
    words = re.findall(r"[()]|[^\s()]+", text)
    verdict, rest = _any_of(words, allowed)
    if rest:
        raise InvalidLicenseExpression(f"cannot read licence {expression!r}: {rest[0]!r} is one word too many")
    return verdict


def _any_of(words: list[str], allowed: Mapping[str, str]) -> tuple[bool, list[str]]:
    verdict, rest = _all_of(words, allowed)
    while rest and rest[0].upper() == "OR":
        other, rest = _all_of(rest[1:], allowed)
        verdict = verdict or other
    return verdict, rest


def _all_of(words: list[str], allowed: Mapping[str, str]) -> tuple[bool, list[str]]:
    verdict, rest = _one(words, allowed)
    while rest and rest[0].upper() == "AND":
        other, rest = _one(rest[1:], allowed)
        verdict = verdict and other
    return verdict, rest


def _one(words: list[str], allowed: Mapping[str, str]) -> tuple[bool, list[str]]:
    if words and words[0] == "(":
        verdict, rest = _any_of(words[1:], allowed)
        return verdict, rest[1:]
    return bool(words) and words[0].replace("\0", " WITH ") in allowed, words[1:]


def page(packages: tuple[LicensedPackage, ...], rules: LicenceRules) -> str:
    """Return the list of licences as a page of the documentation."""
    lines = [_HEAD, "", "| package | version | licence | brought by |", "|---|---|---|---|"]
    for one in packages:
        brought = ", ".join(f"`{extra}`" for extra in one.package.extras) or "core"
        lines.append(f"| {one.package.name} | {', '.join(one.package.versions)} | {one.licence} | {brought} |")
    lines += ["", "Copyleft, allowed for these packages alone:", ""]
    lines += [f"- {name}, {licence}: {why}." for name, (licence, why) in sorted(rules.exceptions.items())]
    lines += ["", _FONT]
    return "\n".join(lines) + "\n"


def texts(packages: tuple[LicensedPackage, ...]) -> str:
    """Return every licence and notice file that the installed packages carry, one after another."""
    parts = []
    for one in packages:
        parts.append(f"{'=' * 100}\n{one.package.name} {', '.join(one.package.versions)}: {one.licence}\n{'=' * 100}\n")
        files = metadata.files(one.package.name) or []
        named = sorted(file for file in files if _is_licence(file.as_posix()))
        parts += [f"--- {file.name}\n\n{file.read_text(encoding='utf-8').strip()}\n" for file in named]
        if not named:
            parts.append("(The package carries no licence file; the licence above is what its metadata state.)\n")
    return "\n".join(parts)


def _is_licence(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return ".dist-info" in folder and re.match(r"(licen[cs]e|copying|notice|authors)", name, re.I) is not None


def main(arguments: list[str]) -> int:
    """Write the list, or with `--check` judge it.

    Returns:
        0, 1 where a package may not be shipped, 2 for wrong use.
    """
    if arguments not in ([], ["--check"]):
        print("usage: python -m deploy.release.licences [--check]", file=sys.stderr)
        return 2
    rules = read_rules()
    packages = licensed_packages(rules)
    for one in packages:
        if one.objection is not None:
            print(f"{one.package.name} {one.objection}", file=sys.stderr)
    if any(one.objection is not None for one in packages):
        return 1
    if not arguments:
        LIST.write_text(page(packages, rules), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
