"""The node exporter's own process: `python -m gputide.node_exporter OPTIONS`; see `gputide.node_options`.

Nobody calls it by hand.
"""

from __future__ import annotations

import sys
import traceback

from fleet.errors import EXIT_BUG
from gputide.node_options import options_of


def main() -> int:
    """The process.

    Returns:
        Exit status.
    """
    # structlog does without it where it is not there; only its pretty tracebacks need it, and it is six megabytes.
    sys.modules.setdefault("rich", None)  # type: ignore[arg-type]
    from gputide.wiring_node import serve_node

    try:
        return serve_node(options_of(sys.argv[1]))
    except Exception:  # noqa: BLE001 - the outermost frame of a process: whatever comes here is a bug, and is shown
        traceback.print_exc()
        return EXIT_BUG


if __name__ == "__main__":
    sys.exit(main())
