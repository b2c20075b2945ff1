"""The software bill of materials of gputide with all its extras, in CycloneDX 1.5 (JSON), the same bytes each time.

Called by `make release`. uv writes it from `uv.lock` (`uv export --format cyclonedx1.5`), with every package's hashes
and who needs whom; here the licences are added, and what differs from run to run is taken from the release: its time,
and a serial number made of the content (the specification asks for a UUID of RFC 4122; version 5 is one).
"""

from __future__ import annotations

import json
import subprocess
import uuid
from collections.abc import Mapping
from datetime import datetime
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from packaging.markers import Marker
from packaging.utils import canonicalize_name

from bootstrap import uv_environment
from deploy.release.licences import ROOT, LicensedPackage
from deploy.release.locked_packages import PROJECT
from fleet.errors import Unavailable
from fleet.units import format_time


def bill_of_materials(
    uv: str, packages: tuple[LicensedPackage, ...], *, version: str, released_at: datetime
) -> dict[str, Any]:
    """Return the bill as CycloneDX has it.

    Args:
        uv: the program, 0.9 or later.
        packages: what is shipped; others, such as those for other systems than Linux, are left out.
        version: of gputide.
        released_at: what the bill says of when it was made.

    Raises:
        Unavailable: this uv can't write bills.
    """
    command = [uv, "export", "--frozen", "--no-dev", "--all-extras", "--format", "cyclonedx1.5", "--quiet"]
    done = subprocess.run(command, cwd=ROOT, env=uv_environment(), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unavailable(f"cannot write the bill of materials: `{' '.join(command)}` said {done.stderr.strip()!r}")
    return completed(json.loads(done.stdout), packages, version=version, released_at=released_at)


def named_for(bill: Mapping[str, Any], environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """Return name and version of what a bill says is installed in an environment, such as the image's.

    Args:
        environment: what markers are judged by, as PEP 508 names it; what is missing is this machine's.
    """
    return frozenset(
        (component["name"], component["version"])
        for component in bill["components"]
        if all(
            Marker(one["value"]).evaluate(dict(environment))
            for one in component.get("properties", ())
            if one["name"] == "uv:package:marker"
        )
    )


def installed_in(site: Path) -> frozenset[tuple[str, str]]:
    """Return name, as in PEP 503, and version of all that lies in a folder of packages, gputide left out."""
    found = {(canonicalize_name(one.metadata["Name"]), one.version) for one in distributions(path=[str(site)])}
    return frozenset((str(name), version) for name, version in found if name != PROJECT)


def completed(
    bill: dict[str, Any], packages: tuple[LicensedPackage, ...], *, version: str, released_at: datetime
) -> dict[str, Any]:
    """Return uv's bill with licences, of the shipped packages alone, and with nothing in it that changes by itself."""
    licence_of = {one.package.name: one.licence for one in packages}
    kept = [component for component in bill["components"] if component["name"] in licence_of]
    for component in kept:
        component["licenses"] = [{"expression": licence_of[component["name"]]}]
    project = bill["metadata"]["component"]
    project |= {
        "type": "application",
        "version": version,
        "purl": f"pkg:pypi/{PROJECT}@{version}",
        "licenses": [{"expression": "Apache-2.0 AND OFL-1.1"}],
    }
    bill["components"] = kept
    known = {component["bom-ref"] for component in kept} | {project["bom-ref"]}
    bill["dependencies"] = [
        {**entry, "dependsOn": [ref for ref in entry.get("dependsOn", ()) if ref in known]}
        for entry in bill["dependencies"]
        if entry["ref"] in known
    ]
    bill["metadata"]["timestamp"] = format_time(released_at)
    del bill["serialNumber"]
    content = json.dumps(bill, sort_keys=True)
    return {**bill, "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, content)}"}
