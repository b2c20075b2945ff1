"""The first request comes while another thread still loads pandas, as one that reads the warehouse does."""

import subprocess
import sys

PROGRAM = """
import sys, threading, time
from importlib.abc import MetaPathFinder

from dashboards.access.sign_in import Ways
from dashboards.app import create_app
from tests.dashboards.embedded import make_views

half_loaded = threading.Event()

class Slowly(MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "pandas.core.api":
            half_loaded.set()
            time.sleep(1.0)
        return None

sys.meta_path.insert(0, Slowly())
views, _ = make_views()
assert "pandas" not in sys.modules
loader = threading.Thread(target=__import__, args=("pandas",))
loader.start()
assert half_loaded.wait(30.0)
client = create_app(views, ways=Ways(operator="mei")).server.test_client()
print(client.get("/_dash-layout", headers={"Host": "127.0.0.1:8050"}).status_code)
loader.join()
"""


def test_layout_is_answered_while_another_thread_loads_pandas() -> None:
    ended = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ended.stdout.split() == ["200"], ended.stderr
