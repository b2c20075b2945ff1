"""Runs the tiers of tests that this machine can run, and says which it could not, and why.

Called by `make test` and `make quick`:

    python tests/run_tiers.py [TIER …] [-- PYTEST ARGUMENTS]

A tier is a pytest marker; a test without one is quick. The quick tier runs first and uses every core. The others wait
for other processes half of the time, so three of them run side by side, each line of their output behind the tier's
name. A tier imports the tests of its own folder only, which saves up to half a minute each. With CI=true a tier that
cannot run is a failure, so that a missing set-up step cannot pass for a green run. At the end stand the files that took
longest, then, of a red run, the names of all failed tests and why each failed; the last line counts tests over all
tiers.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parents[1]
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")
PYTEST_NO_TESTS = 5
SIDE_BY_SIDE = 3
"""Tiers that run at once; the next begins where one ends. Four of them want more memory and no less time."""

QUICK_WORKERS_MAX = 4
"""Workers of the quick tier, whatever the machine has: each loads all tests, which takes seconds and a gigabyte."""

JUNIT_WITH_FILES = ("-o", "junit_family=xunit1")
"""Pytest's options for JUnit files in which a test names its file."""
_REASON_LENGTH_MAX = 300
_SLOWEST = 6
"""Files of a tier that are named with their time."""


class CannotRunError(Exception):
    """This machine lacks what a tier needs; the message says what."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One set of tests with the same needs.

    Attributes:
        name: what people call it.
        marker_expression: what pytest's `-m` selects it by.
        prepare: sets up what the tier needs and returns the environment variables that tell the tests of it.
            Raises CannotRunError.
        folder: where all of its tests are.
        pytest_arguments: more arguments for pytest.
        is_alone: it uses every core, so no other runs beside it.
    """

    name: str
    marker_expression: str
    prepare: Callable[[], dict[str, str]]
    folder: str = "tests"
    pytest_arguments: tuple[str, ...] = ()
    is_alone: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TierRun:
    """What became of one tier; `reason_not_run` is None where it ran, `failed` holds reasons by ids of tests.

    Attributes:
        seconds: what the tests of each file took, by its name.
    """

    tier: str
    passed: int = 0
    seconds: Mapping[str, float] = field(default_factory=dict)
    failed: Mapping[str, str] = field(default_factory=dict)
    skipped: int = 0
    wall_seconds: float = 0.0
    reason_not_run: str | None = None
    exit_status: int = 0


def main(arguments: list[str]) -> int:
    """Run the named tiers, or all of them, and print a summary.

    Returns:
        0 when every test that ran passed (and, with CI=true, every tier ran), else 1; 2 for an unknown tier.
    """
    names, pytest_arguments = _split(arguments)
    known = {tier.name: tier for tier in TIERS}
    if unknown := [name for name in names if name not in known]:
        print(f"no tier called {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    is_ci = os.environ.get("CI", "").lower() == "true"
    wanted = [known[name] for name in names or known]
    runs = run_tiers(wanted, pytest_arguments)
    print_summary(runs, is_ci=is_ci)
    is_red = any(run.exit_status != 0 or (is_ci and run.reason_not_run is not None) for run in runs)
    return int(is_red)


def run_tiers(tiers: Sequence[Tier], pytest_arguments: list[str]) -> list[TierRun]:
    """Run tiers that use every core one after the other, then the others side by side.

    A tier that cannot be prepared never stops the others. The answers are in the order of `tiers`.
    """
    runs = {tier.name: run_tier(tier, pytest_arguments) for tier in tiers if tier.is_alone}
    others = [tier for tier in tiers if not tier.is_alone]
    with ThreadPoolExecutor(max_workers=SIDE_BY_SIDE) as pool:
        runs |= {run.tier: run for run in pool.map(lambda tier: run_tier(tier, pytest_arguments), others)}
    return [runs[tier.name] for tier in tiers]


def run_tier(tier: Tier, pytest_arguments: list[str]) -> TierRun:
    """Prepare one tier and run its tests, with their output on this terminal."""
    print(f"== tier {tier.name}", flush=True)
    try:
        environment = {**os.environ, **tier.prepare()}
    except CannotRunError as reason:
        print(f"   cannot run: {reason}", flush=True)
        return TierRun(tier=tier.name, reason_not_run=str(reason))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder) / "results.xml"
        command = [
            *(sys.executable, "-m", "pytest", "-q", "-m", tier.marker_expression, "-o", f"testpaths={tier.folder}"),
            *(f"--junit-xml={results}", *JUNIT_WITH_FILES, *tier.pytest_arguments, *pytest_arguments),
        ]
        status = _run_shown(command, environment, prefix="" if tier.is_alone else f"{tier.name} | ")
        wall_seconds = time.monotonic() - started
        if status == PYTEST_NO_TESTS:
            return TierRun(tier=tier.name, wall_seconds=wall_seconds, reason_not_run="it holds no test")
        passed, failed, skipped, seconds = read_results(results)
    return TierRun(
        tier=tier.name, passed=passed, failed=failed, skipped=skipped, seconds=seconds, wall_seconds=wall_seconds,
        exit_status=status,
    )  # fmt: skip


def _run_shown(command: list[str], environment: dict[str, str], *, prefix: str) -> int:
    """Run a command in the checkout and return its exit status; with a prefix, each line of its output carries it."""
    if not prefix:
        return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        errors="replace",
    ) as running:  # fmt: skip
        for line in running.stdout or ():
            print(f"{prefix}{line}", end="", flush=True)
    return running.returncode


def read_results(results: Path) -> tuple[int, dict[str, str], int, Mapping[str, float]]:
    """Return how many tests passed, why others failed (errors too) by id, how many were skipped, and seconds by file.

    Args:
        results: a JUnit file that pytest wrote with `JUNIT_WITH_FILES`.
    """
    if not results.is_file():  # pytest fell before it could write; its exit status says so
        return 0, {}, 0, {}
    tests: set[str] = set()
    seconds: defaultdict[str, float] = defaultdict(float)
    skipped: set[str] = set()
    failed: dict[str, str] = {}
    for case in ElementTree.parse(results).iter("testcase"):  # one that fails twice, in its teardown too, has two
        test = _test_id(case)
        tests.add(test)
        seconds[case.get("file", "")] += float(case.get("time", 0.0))
        for part in case:
            if part.tag == "skipped":
                skipped.add(test)
            elif part.tag in ("failure", "error"):
                failed.setdefault(test, " ".join(part.get("message", "").split())[:_REASON_LENGTH_MAX])
    skipped -= failed.keys()
    return len(tests) - len(failed) - len(skipped), failed, len(skipped), seconds


def _test_id(case: ElementTree.Element) -> str:
    """`tests/wire/test_x.py::TestY::test_z`; the file alone where it could not be imported."""
    file, name = case.get("file", ""), case.get("name", "")
    module = file.removesuffix(".py").replace("/", ".")
    classes = case.get("classname", "").removeprefix(module).strip(".").split(".")
    return file if name == module else "::".join(filter(None, (file, *classes, name)))


def print_summary(runs: list[TierRun], *, is_ci: bool) -> None:
    """Print one line per tier, the names of all failed tests, and a last line that counts all tests."""
    print("\n== tiers")
    for run in runs:
        if run.reason_not_run is None:
            what = f"{run.passed} passed, {len(run.failed)} failed, {run.skipped} skipped in {run.wall_seconds:.0f} s"
            if run.exit_status != 0 and not run.failed:
                what += f" (pytest ended with status {run.exit_status})"
        else:
            what = f"{'FAILED: cannot run in CI' if is_ci else 'not run'}: {run.reason_not_run}"
        print(f"   {run.tier:<8} {what}")
        slowest = sorted(run.seconds.items(), key=lambda one: -one[1])[:_SLOWEST]
        if slowest:
            print(" " * 12 + ", ".join(f"{Path(file).name} {taken:.0f} s" for file, taken in slowest))
    failed = {test: reason for run in runs for test, reason in run.failed.items()}
    print("".join(f"FAILED {test} - {reason}\n" for test, reason in failed.items()), end="")
    passed, skipped = sum(run.passed for run in runs), sum(run.skipped for run in runs)
    print(f"{passed} passed, {len(failed)} failed, {skipped} skipped", flush=True)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def prepare_nothing() -> dict[str, str]:
    """These tiers need Python alone."""
    return {}


def prepare_browser() -> dict[str, str]:
    """Find a Chromium, or install one: from Debian as root, else the one that Playwright brings.

    Raises:
        CannotRunError: there is none and none could be installed.
    """
    path = (
        os.environ.get("GPUTIDE_CHROMIUM") or _chromium_on_path() or _chromium_of_debian() or _chromium_of_playwright()
    )
    if path is None:
        raise CannotRunError(
            f"no Chromium: none of {', '.join(CHROMIUM_NAMES)} is on PATH, and neither apt-get (as root) nor "
            "`playwright install chromium` could bring one; GPUTIDE_CHROMIUM names one that lies elsewhere"
        )
    return {"GPUTIDE_CHROMIUM": path}


def prepare_engines() -> dict[str, str]:
    """Fetch Kafka, Flink, Hive and, where there is a Go, build the peers written in it; into a cache.

    Raises:
        CannotRunError: Java, Maven or the network is missing.
    """
    cache = os.environ.get("GPUTIDE_ENGINES_CACHE")
    where = ["--cache", cache] if cache else []
    fetch = [sys.executable, "-m", "gputide.cli", "admin", "engines", "fetch", *where]
    reason = f"`{' '.join(fetch)}` ended without a word"
    with subprocess.Popen(fetch, cwd=ROOT, stderr=subprocess.PIPE, text=True) as fetching:
        for line in fetching.stderr or ():
            print(f"   | {line}", end="", flush=True)
            if line.startswith("gputide: "):
                reason = line.removeprefix("gputide: ").strip()
    if fetching.returncode != 0:
        raise CannotRunError(reason)
    asked = [sys.executable, "-c", "import gputide.operate.engine_cache as c; print(c.default_cache_path())"]
    cache = cache or subprocess.run(asked, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    # Tests that need these peers skip, or fail in CI, where they could not be built; the others run.
    _succeeds([sys.executable, str(ROOT / "tests" / "engines" / "go_peers.py"), cache], {"PYTHONPATH": str(ROOT)})
    # No test lets a Java run long enough for its second compiler to pay: starts take two fifths less without it, and
    # a quarter less again where the classes of the engines' own jars are taken for well-formed.
    quick_to_start = "-XX:TieredStopAtLevel=1 -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
    return {"GPUTIDE_ENGINES_CACHE": cache, "JAVA_TOOL_OPTIONS": quick_to_start}


def prepare_cluster() -> dict[str, str]:
    """Build the Kubernetes control plane, helm, Kueue, Krew and the judge of bundles into the cache.

    Raises:
        CannotRunError: Go or the network is missing.
    """
    building = (
        "import os, sys\nfrom pathlib import Path\nimport gputide.operate.engine_cache as c, tests.control_plane as k"
        "\nfrom tests.engines import go_peers as g\ntell = lambda line: print(line, file=sys.stderr, flush=True)"
    )
    building += "\ncache = Path(os.environ.get('GPUTIDE_ENGINES_CACHE') or c.default_cache_path())"
    building += "\nnodes = (g.build_kueue, g.build_karpenter)"
    building += "\nfor build in (k.kubernetes_programs, *nodes, g.build_krew, g.build_operator_verify):"
    building += "\n    build(cache, tell=tell)\nprint(cache)"
    with tempfile.TemporaryFile("w+") as answer:
        with subprocess.Popen(
            [sys.executable, "-c", building], cwd=ROOT, stdout=answer, stderr=subprocess.PIPE, text=True
        ) as preparing:
            reason = "the build of Kubernetes ended without a word"
            for line in preparing.stderr or ():
                print(f"   | {line}", end="", flush=True)
                if line.startswith("fleet.errors."):
                    reason = line.partition(": ")[2].strip()
        if preparing.returncode != 0:
            raise CannotRunError(reason)
        answer.seek(0)
        return {"GPUTIDE_CLUSTER_CACHE": answer.read().strip()}


def _chromium_on_path() -> str | None:
    return next(filter(None, map(shutil.which, CHROMIUM_NAMES)), None)


def _chromium_of_debian() -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    print("   no Chromium on PATH: installing Debian's", flush=True)
    for command in (["apt-get", "update", "-q"], ["apt-get", "install", "-qy", "--no-install-recommends", "chromium"]):
        if not _succeeds(command, {"DEBIAN_FRONTEND": "noninteractive"}):
            return None
    return _chromium_on_path()


def _chromium_of_playwright() -> str | None:
    print("   no Chromium on PATH: asking Playwright for its own", flush=True)
    if not _succeeds([sys.executable, "-m", "playwright", "install", "chromium"], {}):
        return None
    where = "from playwright.sync_api import sync_playwright as s\nwith s() as p: print(p.chromium.executable_path)"
    answer = subprocess.run([sys.executable, "-c", where], capture_output=True, text=True, check=False)
    path = answer.stdout.strip()
    return path if answer.returncode == 0 and Path(path).is_file() else None


def _succeeds(command: list[str], environment: dict[str, str]) -> bool:
    """Run a command; show what it said only if it failed."""
    done = subprocess.run(
        command, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        print("\n".join(f"   | {line}" for line in done.stdout.splitlines()[-10:]), flush=True)
    return done.returncode == 0


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Split `TIER … -- PYTEST ARGUMENTS` at the dashes."""
    if "--" not in arguments:
        return arguments, []
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1 :]


# The fast answer first, then the long ones first: the shortest fills the place of the first that ends.
TIERS = (
    Tier(
        name="quick",
        marker_expression="not browser and not cluster and not engines and not long",
        prepare=prepare_nothing,
        # A module stays on one worker, so that its fixtures are made once. A quarter of their time they wait, for a
        # thread, a disk or a moment: one worker more than there are cores fills that.
        pytest_arguments=("-n", str(min(QUICK_WORKERS_MAX, cores() + 1)), "--dist", "loadscope"),
        is_alone=True,
    ),
    Tier(
        name="engines",
        marker_expression="engines",
        prepare=prepare_engines,
        folder="tests/engines",
        # Half its time it waits: for a Java to start, a fault to pass, a checkpoint. Two workers, each with a broker
        # of its own, fill that. Modules are handed out in the order of collection, so that long ones with one test
        # aren't last.
        pytest_arguments=("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
    Tier(
        name="cluster",
        marker_expression="cluster",
        prepare=prepare_cluster,
        folder="tests/cluster",
        # As the engines: two workers, each with a control plane of its own.
        pytest_arguments=("-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"),
    ),
    Tier(name="long", marker_expression="long", prepare=prepare_nothing),
    Tier(name="browser", marker_expression="browser", prepare=prepare_browser, folder="tests/browser"),
)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
