"""Makes the GPU-sharing backend that the settings name, with what sets this installation apart.

Called by whoever renders changes: apply, preview, emit, and the plan store.
"""

from __future__ import annotations

from datetime import datetime

from enforcer.backend import Backend
from enforcer.backends.effectivegpu import EffectiveGpuBackend, words_of_models
from enforcer.backends.hami import HamiBackend
from enforcer.backends.hami_dialect import HAMI_WORDS, HamiDialect
from enforcer.backends.register import BACKENDS
from enforcer.backends.volcano import VolcanoBackend
from enforcer.dialect import ObjectKey
from fleet.errors import Misconfigured
from fleet.settings.settings import Settings


def backend(settings: Settings, now: datetime) -> Backend:
    """The backend that renders changes.

    Args:
        settings: all settings; `enforcer.backend` names it, `backends` says how it is installed.
        now: the moment of the change.

    Raises:
        Misconfigured: the settings name one that renders nothing.
    """
    installed = settings.backends
    match settings.enforcer.backend:
        case "hami":
            dialect = HamiDialect(
                device_config=_config_map(installed.hami_device_config),
                node_config=_config_map(installed.hami_node_config),
                plugin=_daemon_set(installed.hami_device_plugin),
            )
            return HamiBackend(now, dialect, cordons_emptied_nodes=installed.hami_cordons_emptied_nodes)
        case "effectivegpu":
            dialect = HamiDialect(
                words_of_models(HAMI_WORDS, installed.effectivegpu_model_resources),
                device_config=_config_map(installed.effectivegpu_device_config),
                node_config=_config_map(installed.effectivegpu_node_config),
                plugin=_daemon_set(installed.effectivegpu_device_plugin),
            )
            return EffectiveGpuBackend(now, dialect)
        case "volcano":
            return VolcanoBackend(now, low_priority_queue=installed.volcano_low_priority_queue)
        case name:
            chosen = dict(BACKENDS).get(name)
            if chosen is None:
                known = ", ".join(known for known, _ in BACKENDS)
                raise Misconfigured(f"cannot render for enforcer.backend={name!r}: expected one of {known}")
            return chosen(now)


def _daemon_set(text: str) -> ObjectKey:
    namespace, _, name = text.partition("/")
    return "DaemonSet", namespace, name


def _config_map(text: str) -> ObjectKey:
    namespace, _, name = text.partition("/")
    return "ConfigMap", namespace, name
