"""Which backend the last scan of a cluster planned for, so that later plans on its data folder are for the same one.

Written by `gputide scan`, read by `plan make` and `plan backtest`.
"""

from __future__ import annotations

import json

from pydantic import TypeAdapter, ValidationError

from fleet.data_folder import DataFolder
from fleet.durable import write_durably
from fleet.errors import Corrupt
from fleet.settings.faults import fault_words
from fleet.settings.settings import ClusterChoice
from gputide.container.warehouse import cluster_name
from gputide.session import Session


def remember_backend(folder: DataFolder, cluster: str, backend: str) -> None:
    """Keep the backend that a scan of a cluster planned for, instead of that of an earlier one."""
    kept = {**_remembered(folder), cluster: backend}
    write_durably(folder.scanned_backends, json.dumps(kept, sort_keys=True).encode())


def as_scanned(session: Session, cluster: str | None) -> tuple[Session, tuple[str, ...]]:
    """The session that plans for the backend of the cluster's last scan, and what is said of that.

    It stays as it is, and nothing is said, where somebody set a backend, where the cluster is a real one, and where
    nothing was scanned.

    Args:
        cluster: cluster that is asked for; None for the one that the settings mean.

    Raises:
        Corrupt: what the scan kept can't be read.
    """
    enforcer = session.settings.enforcer
    if "backend" in enforcer.model_fields_set or enforcer.cluster is ClusterChoice.KUBERNETES:
        return session, ()
    kept = _remembered(session.folder())
    name = cluster_name(session.folder(), session.settings, cluster) if kept else ""
    if name not in kept:
        return session, ()
    backend = kept[name]
    said = f"backend {backend}, as the scan of cluster {name} planned for; --set enforcer.backend=NAME changes it"
    return session.with_overrides([f"enforcer.backend={backend}"]), (said,)


def _remembered(folder: DataFolder) -> dict[str, str]:
    path = folder.scanned_backends
    try:
        return TypeAdapter(dict[str, str]).validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except (OSError, ValidationError) as exc:
        fault = fault_words(exc) if isinstance(exc, ValidationError) else exc.strerror
        raise Corrupt(f"cannot read {path}: {fault}; remove it to plan for enforcer.backend") from exc
