"""The area node: driver and cards, processes and cgroups, the kubelet's socket, HAMi's regions; on the node itself.

What the node exporter and the agent would open is opened as they do, once, and closed again.
"""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from exporter.process_stat import ProcessStats
from exporter.regions.reader import HamiReader
from fleet.catalogue import find_model
from fleet.errors import GputideError, Unavailable
from fleet.regions.doubts import RegionDoubt, doubts_of
from fleet.sentences import sentence
from fleet.settings.exporter import ExporterSettings
from fleet.settings.settings import Settings
from gputide.doctor.finding import Area, Check, Diagnosis, a_check, finding, otherwise, some, unchecked, well

if TYPE_CHECKING:
    from exporter.nvml.figures import CardReading, CardsReading

READ_SECONDS = 5.0
"""Longest time for one reading of all cards; a card that hangs is told as such."""
DRIVER_MIN = 510
"""First driver that reports what it reserves of the framebuffer apart from what is used."""
_KUBELET_SECONDS = 5.0
_REGION_BACKENDS = ("hami", "effectivegpu", "volcano")
_REGION_SECONDS = 5.0
_YOUNG = (RegionDoubt.UNINITIALISED, RegionDoubt.NO_CARDS)
"""What a region is for the moment in which its container starts."""


def node_checks(settings: Settings) -> tuple[Check, ...]:
    """What is looked at of this node."""
    node, area = _Node(settings), Area.NODE
    of_cards = (
        "card-unwell card-xid sm-active-unavailable mig-without-activity mig-empty processes-untold "
        "mps-hides-clients compute-mode card-model-unknown nvml-right-missing"
    )
    return (
        a_check(area, "driver", node.driver, "nvml-missing nvml-driver driver-old no-cards extra-missing"),
        a_check(area, "cards", node.cards, of_cards, needs="driver"),
        a_check(area, "processes", node.processes, "host-pids-hidden cgroups-hidden"),
        a_check(area, "kubelet", node.kubelet, "pod-resources-missing pod-resources-denied"),
        a_check(area, "regions", node.regions, "regions-missing regions-denied region-doubtful"),
    )


@dataclass(kw_only=False)
class _Node:
    """This node; mutable: what was read once is kept for the next check."""

    settings: Settings

    @property
    def _exporter(self) -> ExporterSettings:
        return self.settings.exporter

    @cached_property
    def _reading(self) -> CardsReading:
        """Two readings of the cards, the second: activity is known of a time, and not of a moment."""
        from exporter.nvml.cards import NvmlCards

        library = self._exporter.nvml_library
        cards = NvmlCards(library_path=None if library is None else str(library), sample_seconds=0.1)
        try:
            cards.read(READ_SECONDS)
            return cards.read(READ_SECONDS)
        finally:
            cards.close()

    def driver(self) -> Iterator[Diagnosis]:
        """Whether the driver answers."""
        try:
            reading = self._reading
        except ImportError as exc:
            text = sentence("doctor.found.not_installed", name=str(exc.name))
            yield finding("extra-missing", text, subject="exporter", extra="exporter")
            return
        except Unavailable as exc:
            code = "nvml-missing" if "cannot load" in str(exc) else "nvml-driver"
            yield finding(code, exc.said)
            return
        version = reading.versions.driver or ""
        told = version or sentence("doctor.found.unknown_version")
        if not reading.cards and not reading.unnamed:
            yield finding("no-cards", sentence("doctor.found.driver_no_card", version=told))
            return
        major = version.partition(".")[0]
        if major.isdigit() and int(major) < DRIVER_MIN:
            yield finding("driver-old", sentence("doctor.found.driver", version=told))
        cuda, cards = str(reading.versions.cuda), len(reading.cards)
        yield otherwise(sentence("doctor.found.driver_cards", version=version, cuda=cuda, cards=cards))

    def cards(self) -> Iterator[Diagnosis]:
        """How each card fares."""
        from exporter.nvml.figures import CardState

        reading = self._reading
        if reading.unnamed:
            text = sentence("doctor.found.unnamed", cards=reading.unnamed)
            yield finding("card-unwell", text, index="N")
        for card in reading.cards:
            found = list(_card(card)) if card.state is CardState.OK else [_unwell(card)]
            name = f"{card.identity.card} ({card.identity.card_model})"
            yield from found or [well(sentence("doctor.found.card_answers"), name)]

    def processes(self) -> Iterator[Diagnosis]:
        """Whether the host's processes and their cgroups are seen."""
        proc = self._exporter.proc_folder
        if not ProcessStats(str(proc)).sees_host():
            text = sentence("doctor.found.pid_namespace", folder=str(proc))
            yield finding("host-pids-hidden", text)
            return
        own = _text(proc / "1" / "cgroup")
        lines = own.splitlines()
        if any(line.split(":", 2)[-1].startswith("/..") for line in lines):
            yield finding("cgroups-hidden", f"{proc}/1/cgroup: {own[:100]}")
            return
        version = "2" if len(lines) == 1 and own.startswith("0::") else "1"
        yield well(sentence("doctor.found.processes", version=str(version)))

    def kubelet(self) -> Iterator[Diagnosis]:
        """Whether the kubelet reports which devices it handed out."""
        path = self._exporter.pod_resources_socket
        if not self._exporter.pod_resources:
            yield unchecked("exporter.pod_resources=false")
            return
        try:
            is_socket = stat.S_ISSOCK(path.stat().st_mode)
        except PermissionError as exc:
            yield finding("pod-resources-denied", str(exc))
            return
        except OSError as exc:
            yield finding("pod-resources-missing", f"{path}: {exc.strerror}")
            return
        if not is_socket:
            yield finding("pod-resources-missing", sentence("doctor.found.no_socket", path=str(path)))
            return
        try:
            from exporter.kubelet.client import KubeletPodResources
        except ImportError as exc:
            yield unchecked(sentence("doctor.found.install_exporter", name=str(exc.name)))
            return
        client = KubeletPodResources(str(path), message_bytes_max=self._exporter.pod_resources_bytes_max)
        try:
            pods = client.list(_KUBELET_SECONDS)
        except GputideError as exc:
            yield finding("pod-resources-denied", exc.said)
            return
        finally:
            client.close()
        yield well(sentence("doctor.found.socket_tells", path=str(path), pods=len(pods)))

    def regions(self) -> Iterator[Diagnosis]:
        """Whether shared regions are there, can be read and are believed."""
        folder = self._exporter.containers_folder
        backend = self.settings.enforcer.backend
        if folder is None:
            yield unchecked("exporter.containers_folder=none")
            return
        if not folder.is_dir():
            if backend in _REGION_BACKENDS:
                text = sentence("doctor.found.no_folder", folder=str(folder), backend=backend)
                yield finding("regions-missing", text)
            else:
                yield well(sentence("doctor.found.folder_absent", folder=str(folder), backend=backend))
            return
        if not os.access(folder, os.R_OK | os.X_OK) or not os.access(folder, os.W_OK):
            is_read = os.access(folder, os.R_OK | os.X_OK)
            text = sentence("doctor.found.unwritable" if is_read else "doctor.found.unreadable", folder=str(folder))
            yield finding("regions-denied", text, folder=str(folder))
        reader = HamiReader(folder, self._exporter.claims_folder)
        try:
            containers = reader.read({}, now_seconds=time.time(), deadline_seconds=_REGION_SECONDS).containers
        finally:
            reader.close()
        doubtful = 0
        for key, bits in zip(containers.keys, containers.doubts.tolist(), strict=True):
            doubts = [doubt for doubt in doubts_of(bits) if doubt not in _YOUNG]
            if doubts:
                doubtful += 1
                yield finding("region-doubtful", some(map(str, doubts)), subject=f"{key.pod_uid}_{key.container}")
        count = len(containers.keys)
        yield well(sentence("doctor.found.regions", believed=count - doubtful, containers=count))


def _unwell(card: CardReading) -> Diagnosis:
    identity = card.identity
    text = sentence("doctor.found.card_state", state=card.state.value, seconds=f"{card.age_seconds:.0f}")
    return finding("card-unwell", text, subject=str(identity.card), index=str(identity.index))


def _card(card: CardReading) -> Iterator[Diagnosis]:
    """What a card that answers lacks."""
    from exporter.attribution.mps import lists_mps_clients
    from exporter.nvml.figures import Activity, ComputeMode, Gauge

    identity, figures = card.identity, card.figures
    subject, index = str(identity.card), str(identity.index)
    if find_model(identity.card_model) is None:
        model = str(identity.card_model)
        yield finding("card-model-unknown", model, subject=subject, model=model)
    if figures is None:
        yield unchecked(sentence("doctor.found.no_figures"), subject)
        return
    if any(figures.gauges.get(gauge) for gauge in (Gauge.ROWS_REMAP_PENDING, Gauge.ROWS_REMAP_FAILED)) or card.last_xid:
        rows = str(figures.gauges.get(Gauge.ROWS_REMAP_PENDING))
        yield finding("card-xid", sentence("doctor.found.xid", xid=str(card.last_xid), rows=rows), subject=subject)
    if figures.mig_mode:
        if not figures.migs:
            yield finding("mig-empty", sentence("doctor.found.mig_bare"), subject=subject, index=index)
        elif not any(mig.activities for mig in figures.migs):
            profiles = some(mig.mig_profile for mig in figures.migs)
            yield finding("mig-without-activity", profiles, subject=subject)
    elif Activity.SM_ACTIVE not in figures.activities:
        names = some(activity.value for activity in figures.activities)
        text = sentence("doctor.found.model_tells", model=identity.card_model, names=names)
        yield finding("sm-active-unavailable", text, subject=subject)
    if figures.processes is None:
        calls = some(f"{call} {word}" for call, word in figures.failed_calls)
        yield finding("processes-untold", calls, subject=subject)
    is_mps = lists_mps_clients(figures)
    if is_mps:
        yield finding("mps-hides-clients", sentence("doctor.found.mps_clients"), subject=subject)
    elif figures.compute_mode not in (None, ComputeMode.DEFAULT):
        text = sentence("doctor.found.compute_mode", mode=figures.compute_mode.value)
        yield finding("compute-mode", text, subject=subject, index=index)
    denied = [call for call, word in figures.failed_calls if word == "no_permission"]
    if denied:
        yield finding("nvml-right-missing", some(denied), subject=subject)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
