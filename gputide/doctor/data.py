"""The areas data and history: the data folder, its disk and its ledger, and what was collected so far."""

from __future__ import annotations

import os
import re
import shutil
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import datetime
from functools import partial
from itertools import islice
from pathlib import Path

from dashboards.stored.arrivals import newest_windows
from enforcer.record.plan_status import standing, unrelieved_harm
from enforcer.safety.freeze import frozen_by
from fleet.errors import GputideError, Misconfigured, NotEnoughData
from fleet.inventory import Inventory
from fleet.money.prices import PriceBook
from fleet.schema import Measure
from fleet.sentences import Sentence, sentence
from fleet.settings.price_book import with_price_book
from fleet.units import format_percent, format_plan_id
from gputide.container.history import Analysed, load_planned
from gputide.container.ledgers import anchored_folder
from gputide.container.plans import journal, plan_store
from gputide.container.warehouse import warehouse, warehouse_folder
from gputide.doctor.finding import Area, Check, Diagnosis, a_check, finding, otherwise, some, unchecked, well
from gputide.session import Session

DISK_BYTES_MIN = 2 * 2**30
FULL_DAYS_MIN = 14
BUS_RATIO_MAX = 0.8
COVERAGE_MIN = 0.9
STALE_SECONDS = 3 * 3600
FUTURE_SECONDS = 60.0
_GROWTH_DAYS = 7
_FILES_MAX = 200_000
_DATE = re.compile(r"dt=(\d{4}-\d{2}-\d{2})", re.ASCII)
_LOCK = re.compile(r"^\d+: FLOCK\s+\S+\s+\S+\s+(-?\d+)\s+[0-9a-f]+:[0-9a-f]+:(\d+)\s", re.ASCII)
_MEASURES = {
    Measure.SM_ACTIVE: (
        sentence("doctor.found.loss_sm_active"),
        "echo 'DCGM_FI_PROF_SM_ACTIVE, gauge, SM active.' >> counters.csv  # of dcgm-exporter",
    ),
    Measure.FRAMEBUFFER_USED: (
        sentence("doctor.found.loss_framebuffer"),
        "echo 'DCGM_FI_DEV_FB_USED, gauge, Framebuffer used (MiB).' >> counters.csv  # of dcgm-exporter",
    ),
    Measure.KV_CACHE_USAGE: (
        sentence("doctor.found.loss_kv_cache"),
        "kubectl edit deployment NAME  # lower what its server takes at its start (vLLM: --gpu-memory-utilization)",
    ),
    Measure.ENCODER: (
        sentence("doctor.found.loss_encoder"),
        "echo 'DCGM_FI_DEV_ENC_UTIL, gauge, Encoder utilization (in %).' >> counters.csv  # of dcgm-exporter",
    ),
    Measure.POWER: (
        sentence("doctor.found.loss_power"),
        "echo 'DCGM_FI_DEV_POWER_USAGE, gauge, Power draw (in W).' >> counters.csv  # of dcgm-exporter",
    ),
    Measure.REQUEST_RATE: (
        sentence("doctor.found.loss_request_rate"),
        "gputide admin grafana export ./grafana  # load its rules where your inference servers are scraped",
    ),
}


def data_checks(session: Session) -> tuple[Check, ...]:
    """What is looked at of the data folder."""
    of_folder = (
        "data-folder-missing data-folder-open data-folder-read-only clock-behind-data dead-letters folder-frozen"
    )
    return (
        a_check(Area.DATA, "folder", partial(_folder, session), of_folder),
        a_check(Area.DATA, "disk", partial(_disk, session), "disk-low disk-filling bus-filling"),
        a_check(Area.DATA, "ledger", partial(_ledger, session), "ledger-broken ledger-unkeyed run-open"),
        a_check(Area.DATA, "relief", partial(_relief, session), "relief-missing"),
    )


def history_checks(session: Session) -> tuple[Check, ...]:
    """What is looked at of the history; it is loaded once."""
    codes = (
        "history-none history-short history-stale history-gaps measure-missing cluster-ambiguous price-missing "
        "prices-unusable"
    )
    return (a_check(Area.HISTORY, "history", partial(_history, session), codes, seconds_max=120.0),)


def _folder(session: Session) -> Iterator[Diagnosis]:
    path = session.data_path
    try:
        folder = session.folder()
    except GputideError as exc:
        yield finding("data-folder-missing", exc.said, subject=str(path), folder=str(path))
        return
    if not os.access(path, os.W_OK | os.X_OK):
        user = str(os.getuid())
        text = sentence("doctor.found.may_not_write", user=user)
        yield finding("data-folder-read-only", text, subject=str(path), user=user, folder=str(path))
    found = path.stat()
    if found.st_uid == os.geteuid() and found.st_mode & stat.S_IRWXO:
        # One of somebody else, such as a volume of Kubernetes, is not this user's to close.
        text = sentence("doctor.found.open_to", mode=f"{stat.S_IMODE(found.st_mode):04o}")
        yield finding("data-folder-open", text, subject=str(path), folder=str(path))
    ahead = _of_the_future(path)
    if ahead:
        yield finding("clock-behind-data", sentence("doctor.found.of_future", names=some(ahead)))
    letters = _size(folder.dead_letters)
    if letters[1]:
        text = sentence("doctor.found.dead_letters", files=letters[1], bytes=str(letters[0]))
        yield finding("dead-letters", text, folder=str(folder.dead_letters))
    frozen = frozen_by(folder.freeze)
    if frozen is not None:
        yield finding("folder-frozen", str(frozen))
    yield otherwise(sentence("doctor.found.path", path=str(path), what=_writer(path)))


def _of_the_future(folder: Path) -> list[str]:
    """What in a folder was changed after now by this machine's clock."""
    found = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with suppress(OSError):  # replaced since it was listed
                if entry.stat().st_mtime > time.time() + FUTURE_SECONDS:
                    found.append(entry.name)
    return found


def _writer(path: Path) -> Sentence:
    """Who writes now, by the kernel's own list; asking the lock would take it from somebody."""
    lock = path / "writer.lock"
    try:
        inode = str(lock.stat().st_ino)
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return sentence("doctor.found.nobody_wrote")
    holders = [match[1] for line in lines if (match := _LOCK.match(line)) and match[2] == inode]
    if holders:
        return sentence("doctor.found.writes", process=str(holders[0]))
    return sentence("doctor.found.nobody_writes")


def _disk(session: Session) -> Iterator[Diagnosis]:
    folder, settings = session.folder(), session.settings
    free = shutil.disk_usage(folder.path).free
    room = f"{free / 2**30:.1f}"
    left = sentence("doctor.found.free", free=room)
    if free < DISK_BYTES_MIN:
        yield finding("disk-low", left, subject=str(folder.path))
    growth = daily_growth(warehouse_folder(folder, settings))
    days = None if not growth else free / growth
    if days is not None and days < FULL_DAYS_MIN:
        text = sentence("doctor.found.disk_full", days=f"{days:.0f}", free=room, growth=f"{growth / 2**30:.2f}")
        yield finding("disk-filling", text, subject=str(folder.path))
    held = sum(_size(folder.bus(lane))[0] for lane in folder.bus_lanes)
    if held > BUS_RATIO_MAX * settings.bus.bytes_max:
        text = sentence("doctor.found.bus_held", held=str(held), most=str(settings.bus.bytes_max))
        yield finding("bus-filling", text)
    if days is not None:
        told, growth_mib = f"{min(days, 36500):,.0f}", f"{growth / 2**20:.1f}"
        left = sentence("doctor.found.free_for", free=room, days=told, growth=growth_mib)
    yield otherwise(left)


def daily_growth(folder: Path) -> float:
    """Bytes that a day of samples takes in a warehouse, the mean of its last full days; 0 where there are too few.

    Args:
        folder: of the warehouse; its partitions are named `dt=YYYY-MM-DD`. The newest day is still being filled.
    """
    sizes: dict[str, int] = {}
    for path, size in islice(_files(folder), _FILES_MAX):
        match = _DATE.search(path) if path.endswith(".parquet") else None
        if match is not None:
            sizes[match[1]] = sizes.get(match[1], 0) + size
    full = sorted(sizes)[:-1][-_GROWTH_DAYS:]
    return sum(sizes[day] for day in full) / len(full) if full else 0.0


def _size(folder: Path) -> tuple[int, int]:
    """Bytes and files of a folder; none where it is not there."""
    sizes = [size for _, size in _files(folder)]
    return sum(sizes), len(sizes)


def _files(folder: Path) -> Iterator[tuple[str, int]]:
    """Path and bytes of every file below a folder; what others merge or remove meanwhile is passed over."""
    for place, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(place, name)
            with suppress(OSError):
                yield path, os.stat(path).st_size


def _ledger(session: Session) -> Iterator[Diagnosis]:
    folder = session.folder()
    try:
        with anchored_folder(folder, session.settings) as anchored:
            looks, trust, unread = anchored.looks(), anchored.trust, anchored.unread
        broken = [look for look in looks if look.fault]
        yield from (finding("ledger-broken", look.fault, subject=look.name) for look in broken)
        if unread:
            yield unchecked(unread)
        if broken:
            return
        runs = journal(folder).runs()
    except GputideError as exc:
        yield finding("ledger-broken", exc.said)
        return
    unkeyed = {look.name: look.unmarked for look in looks if folder.ledger_key is not None and look.unmarked}
    if unkeyed:
        text = sentence("doctor.found.unkeyed", count=sum(unkeyed.values()), names=", ".join(unkeyed))
        yield finding("ledger-unkeyed", text)
    still_open = [run.plan_id for run in runs if run.is_open]
    if still_open:
        text = sentence("doctor.found.open_runs", open=len(still_open), runs=len(runs))
        yield finding("run-open", text, subject=still_open[0], plan=still_open[0])
    yield otherwise(sentence("doctor.found.chain", runs=len(runs), trust=trust))


def _relief(session: Session) -> Iterator[Diagnosis]:
    """Whether plans of which something stands in the cluster count on relief that does not run, as `apply` sees it."""
    folder = session.folder()
    plans, runs = plan_store(folder), journal(folder).runs()
    kept = frozenset(plans.ids())
    for name in dict.fromkeys(run.plan_id for run in runs):
        # Of a plan that is gone nobody knows what it counts on.
        if name not in kept or not standing([run for run in runs if run.plan_id == name]):
            continue
        harm = unrelieved_harm(plans.get(name), folder.relief_lock)
        if harm is not None:
            text = sentence("guard.relief_missing", harm=format_percent(harm, digits=1))
            yield finding("relief-missing", text, subject=format_plan_id(name))
    yield otherwise(sentence("doctor.found.relieved"))


def _history(session: Session) -> Iterator[Diagnosis]:
    settings = session.settings
    try:
        folder, now = session.folder(), session.now()
        known = warehouse(folder, settings).clusters()
        if len(known) > 1 and settings.cluster.name not in known:
            text = sentence("doctor.found.clusters", cluster=settings.cluster.name, names=some(known))
            yield finding("cluster-ambiguous", text, cluster=known[0])
            return
        found = load_planned(session)
    except NotEnoughData as exc:
        yield finding("history-none", exc.said)
        return
    grid = found.history.slices
    days = grid.steps * grid.step_seconds / 86400
    text = sentence("doctor.found.history", days=f"{days:.1f}", step=str(found.source_seconds), slices=len(grid.keys))
    yield from [finding("history-short", text)] if days < 1 else _fresh(found, session, now)
    yield otherwise(text)
    missing = [measure for measure in _MEASURES if measure not in grid.mean]
    for measure in missing:
        loss, remedy = _MEASURES[measure]
        # The remedy is ours, and a command already: nothing of it is quoted.
        yield replace(finding("measure-missing", loss, subject=measure.value, check="measures"), mend=remedy)
    told = sentence("doctor.found.collected", collected=len(_MEASURES) - len(missing), all=len(_MEASURES))
    yield well(told, check="measures")
    yield replace(_prices(session, found.history.inventory), check="prices")


def _fresh(found: Analysed, session: Session, now: datetime) -> Iterator[Diagnosis]:
    """Whether samples still come, and how many of them are missing."""
    source = warehouse(session.folder(), session.settings)
    newest = newest_windows(source, session.settings).get(found.profiles.cluster, found.history.slices.since)
    age = (now - newest).total_seconds()
    if age > max(STALE_SECONDS, 3 * found.source_seconds):
        text = sentence("doctor.found.newest", moment=f"{newest:%Y-%m-%d %H:%M}", hours=f"{age / 3600:.1f}")
        yield finding("history-stale", text)
    coverage = found.profiles.coverage_ratio
    if coverage < COVERAGE_MIN:
        yield finding("history-gaps", sentence("doctor.found.coverage", coverage=format_percent(coverage)))


def _prices(session: Session, inventory: Inventory) -> Diagnosis:
    models = {card.card_model for card in inventory.cards}
    try:
        settings = with_price_book(session.settings, session.data_path)
        prices = PriceBook(settings, inventory.nodes).at(session.now())
        unpriced = sorted({card.card_model for card in inventory.cards if prices.of(card).amortised is None})
    except Misconfigured as exc:
        return finding("prices-unusable", exc.said)
    except GputideError as exc:
        return unchecked(exc.said)
    if unpriced:
        text = sentence("doctor.found.unpriced", unpriced=len(unpriced), models=len(models), names=some(unpriced))
        return finding("price-missing", text, subject=some(unpriced), model=unpriced[0])
    return well(sentence("doctor.found.priced", models=len(models)))
