"""How the folders of a warehouse's partitions are named, so that foreign text stays one harmless part of a path.

    pod_usage/dt=2026-01-05/cluster=c1       the first folder of a partition
    pod_usage/dt=2026-01-05/cluster=c1@1     the one that took its place

Called by `warehouse.files`, and by `catalogue_hive`, whose partitions have the same names.
"""

from __future__ import annotations

from hashlib import blake2b
from urllib.parse import quote

_NAME_BYTES_MAX = 200
_RESERVED = ("__HIVE_DEFAULT_", "_INTERMEDIATE_")
"""What Hive keeps for itself: it refuses a partition whose value holds such a name (`PartitionUtils`, error 10111)."""


def first_folder(table: str, date: str, cluster: str) -> str:
    """The folder that the first rows of a partition go to."""
    return f"{table}/dt={date}/cluster={safe_name(cluster)}"


def folder_number(folder: str) -> int:
    """How many folders a partition had before this one; `@` is in no `safe_name`."""
    return int(folder.partition("@")[2] or 0)


def next_folder(folder: str) -> str:
    """The name of the folder that takes a folder's place."""
    first = folder.partition("@")[0]
    return f"{first}@{folder_number(folder) + 1}"


def safe_name(text: str) -> str:
    """Foreign text as one harmless part of a path and value of a partition, different for different texts."""
    name = quote(text, safe="")
    if name.startswith("."):
        name = name.replace(".", "%2E")
    if any(word in name for word in _RESERVED):
        name = name.replace("_", "%5F")
    if not name or len(name) > _NAME_BYTES_MAX:
        return f"%{blake2b(text.encode(), digest_size=16).hexdigest()}"
    return name
