"""Runs jobs inside Flink's own Python environment: standard library and PyFlink alone, nothing of ours is imported.

Started by `rollup_flink` as a script. Takes one job description per line on standard input and answers with lines of
JSON on standard output; ends when standard input ends, and takes the local cluster with it. A description:

    {"configuration": {"rest.bind-port": "40001"}, "definitions": ["CREATE …"], "inserts": ["INSERT …"]}

Answers: `{"job": "<id>"}` once it is submitted, `{"ended": "FINISHED"}` when it is over, `{"failed": "<reason>"}`.
Several descriptions may be given; jobs run beside each other in the one Java machine.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from typing import Any

_REASON_CHARACTERS_MAX = 4000

_lock = threading.Lock()
_answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
"""The true standard output: the Java machine and PyFlink may write to the usual one."""


def main() -> None:
    """Serves until standard input ends."""
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            description = json.loads(line)
            result = submit(description)
        except Exception as exc:  # noqa: BLE001 - whatever Java throws goes to the caller, which decides
            _say({"failed": _reason(exc)})
            continue
        job = result.get_job_client()
        _say({"job": str(job.get_job_id())})
        threading.Thread(target=_await_end, args=(result,), daemon=True).start()
    _answers.flush()
    os._exit(0)


def submit(description: dict[str, Any]) -> Any:
    """Runs one description; gives PyFlink's `TableResult`."""
    from pyflink.common import Configuration  # noqa: PLC0415 - the Java machine starts here, not at import
    from pyflink.table import EnvironmentSettings, TableEnvironment  # noqa: PLC0415

    configuration = Configuration()
    for key, value in description["configuration"].items():
        configuration.set_string(key, str(value))
    settings = EnvironmentSettings.new_instance().in_streaming_mode().with_configuration(configuration).build()
    tables = TableEnvironment.create(settings)
    for text in description["definitions"]:
        tables.execute_sql(text)
    together = tables.create_statement_set()
    for text in description["inserts"]:
        together.add_insert_sql(text)
    return together.execute()


def _await_end(result: Any) -> None:
    try:
        result.wait()
    except Exception as exc:  # noqa: BLE001 - as above
        _say({"failed": _reason(exc)})
    else:
        _say({"ended": "FINISHED"})


def _reason(exc: Exception) -> str:
    # Java's stack traces run to hundreds of lines; the first one and the causes say it all.
    lines = str(exc).splitlines()
    causes = [line.strip() for line in lines if line.lstrip().startswith("Caused by:")]
    return "; ".join([type(exc).__name__, *lines[:2], *causes])[:_REASON_CHARACTERS_MAX]


def _say(answer: dict[str, Any]) -> None:
    with _lock:
        _answers.write(json.dumps(answer) + "\n")
        _answers.flush()


if __name__ == "__main__":
    main()
