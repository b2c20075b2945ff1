"""What runs the report every week: a CronJob of Kubernetes and a line of crontab. Called by `gputide report schedule`.

Sources: kubernetes.io/docs/concepts/workloads/controllers/cron-jobs (`batch/v1`), crontab(5).
"""

from __future__ import annotations

import re
import shlex
from typing import Any

import yaml

from fleet.errors import Misconfigured

_FIELD = r"(?:\*|\d{1,2}(?:-\d{1,2})?(?:,\d{1,2}(?:-\d{1,2})?)*)(?:/\d{1,2})?"
_CRON = re.compile(rf"{_FIELD}(?: {_FIELD}){{4}}", re.ASCII)
_LIMITS = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.ASCII)
_IMAGE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/:@-]{0,511}", re.ASCII)
_DATA_PATH = "/var/lib/gputide"
_USER = 65532


def cron_job(
    arguments: tuple[str, ...],
    *,
    cron: str,
    time_zone: str,
    namespace: str,
    image: str,
    claim: str,
    config_map: str | None,
) -> str:
    """A CronJob as YAML.

    Args:
        time_zone: IANA name that the fields are in.
        claim: PersistentVolumeClaim that holds the data folder.
        config_map: ConfigMap whose key `gputide.toml` holds the settings; None for defaults.

    Raises:
        Misconfigured: one of them can't be used.
    """
    _checked(cron)
    for name, value in (("--namespace", namespace), ("--claim", claim), ("--config-map", config_map)):
        if value is not None and _NAME.fullmatch(value) is None:
            raise Misconfigured(f"cannot use {name} {value!r}: Kubernetes takes a-z, 0-9 and -, at most 63 of them")
    if _IMAGE.fullmatch(image) is None:
        raise Misconfigured(f"cannot use --image {image!r}: it is no name of an image")
    mounts: list[dict[str, Any]] = [{"name": "data", "mountPath": _DATA_PATH}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[dict[str, Any]] = [
        {"name": "data", "persistentVolumeClaim": {"claimName": claim}},
        {"name": "tmp", "emptyDir": {}},
    ]
    before = ["--data-dir", _DATA_PATH]
    if config_map is not None:
        mounts.append({"name": "settings", "mountPath": "/etc/gputide", "readOnly": True})
        volumes.append({"name": "settings", "configMap": {"name": config_map}})
        before += ["--config", "/etc/gputide/gputide.toml"]
    container = {
        "name": "report",
        "image": image,
        "args": [*before, *arguments],
        "resources": {"requests": {"cpu": "200m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}},
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": mounts,
    }
    pod = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    manifest = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {
            "name": "gputide-report",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/name": "gputide", "app.kubernetes.io/component": "report"},
        },
        "spec": {
            "schedule": cron,
            "timeZone": time_zone,
            # People would get two reports of one week.
            "concurrencyPolicy": "Forbid",
            "startingDeadlineSeconds": 3600,
            "successfulJobsHistoryLimit": 3,
            "failedJobsHistoryLimit": 3,
            "jobTemplate": {"spec": {"backoffLimit": 2, "template": {"spec": pod}}},
        },
    }
    return str(yaml.safe_dump(manifest, sort_keys=False, width=120))


def crontab_line(arguments: tuple[str, ...], *, cron: str, before: tuple[str, ...]) -> str:
    """A line of crontab, in the time zone of the machine; `%` is escaped, as cron reads it as a line's end.

    Args:
        before: options of the whole program.

    Raises:
        Misconfigured: `cron` is no schedule.
    """
    _checked(cron)
    return f"{cron} {shlex.join(('gputide', *before, *arguments))}".replace("%", r"\%")


def _checked(cron: str) -> None:
    wrong = Misconfigured(
        f'cannot use --cron {cron!r}: expected five fields, minute hour day month weekday, such as "0 8 * * 1"'
    )
    if _CRON.fullmatch(cron) is None:
        raise wrong
    for part, (least, most) in zip(cron.split(" "), _LIMITS, strict=True):
        if any(not least <= int(number) <= most for number in re.findall(r"\d+", part.partition("/")[0])):
            raise wrong
