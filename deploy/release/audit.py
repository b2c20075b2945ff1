"""Asks whether known vulnerabilities are in what `uv.lock` installs, shipped or for developers.

    python -m deploy.release.audit [--service-url URL]      called by `make audit`

uv asks the advisory database (OSV; another address of the same protocol by `--service-url`, such as a mirror of the
company). No answer is not a good answer: exit status 0 nothing known, 1 something known, 5 not asked.
"""

from __future__ import annotations

import subprocess
import sys

from bootstrap import find_uv, install_uv, uv_environment
from deploy.release.licences import ROOT
from fleet.errors import EXIT_FINDINGS, Unavailable

_UV_FOUND = 1
"""How uv ends when it found something; any other status but 0 means that it couldn't ask."""


def main(arguments: list[str]) -> int:
    """Run the audit; further arguments go to `uv audit`, such as `--ignore ADVISORY`."""
    uv = find_uv() or install_uv()
    if uv is None:
        print("audit: not asked: there is no uv, and the package index brought none", file=sys.stderr)
        return Unavailable.exit_status
    command = [uv, "audit", "--frozen", "--preview-features", "audit-command", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=uv_environment(), capture_output=True, text=True, check=False)
    print(done.stdout, end="")
    print(done.stderr, end="", file=sys.stderr)
    if done.returncode == 0:
        return 0
    if done.returncode == _UV_FOUND:
        return EXIT_FINDINGS
    print("audit: NOT ASKED: whether vulnerabilities are known stays open (exit status 5)", file=sys.stderr)
    return Unavailable.exit_status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
