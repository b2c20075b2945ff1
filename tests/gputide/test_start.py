"""What a process loads to start: nothing that its verb does not use."""

import subprocess
import sys
from pathlib import Path

_UNUSED = {"asyncio", "enforcer", "pandas", "recommender", "rich", "structlog"}
_PROGRAM = f"""
import sys
from gputide.cli import main
try:
    main()
except SystemExit as exc:
    assert not exc.code, exc.code
import pyarrow as pa
pa.array(["an array of text, for which pyarrow looks for pandas"])
print(sorted({{name.partition(".")[0] for name in sys.modules}} & {_UNUSED!r}))
print(pa.table({{"a": [1]}}).to_pandas().shape)
"""


def test_a_rollup_starts_without_what_it_does_not_use_and_pandas_is_found_where_it_is_asked_for(tmp_path: Path) -> None:
    words = ["--data-dir", str(tmp_path / "data"), "run", "rollup", "--drain"]
    run = subprocess.run([sys.executable, "-c", _PROGRAM, *words], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-2:] == ["[]", "(1, 1)"]
