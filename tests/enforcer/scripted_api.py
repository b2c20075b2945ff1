"""An API server of a few lines that answers as a test tells it, and keeps what it was asked."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.exporter.kubeconfigs import write_kubeconfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    body: Any
    agent: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One answer, of bytes as they are; a status of 0 breaks the connection off."""

    status: int = 200
    document: Any = None
    headers: tuple[tuple[str, str], ...] = ()


Script = Callable[[Heard, int], Told]


class ScriptedApi:
    """Answers the n-th request, from 1, by a script.

    Args:
        folder: for its kubeconfig.
        script: gives the answers.
    """

    def __init__(self, folder: Path, script: Script) -> None:
        self.heard: list[Heard] = []
        lock = threading.Lock()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def answer(self) -> None:
                place = urlsplit(self.path)
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                heard = Heard(
                    method=self.command, path=place.path, query=dict(parse_qsl(place.query)),
                    body=json.loads(body) if body else None, agent=self.headers["User-Agent"],
                )  # fmt: skip
                with lock:
                    server.heard.append(heard)
                    number = len(server.heard)
                told = script(heard, number)
                if told.status == 0:
                    self.close_connection = True
                    return
                content = told.document if isinstance(told.document, bytes) else json.dumps(told.document).encode()
                self.send_response(told.status)
                for name, value in (*told.headers, ("Content-Length", str(len(content)))):
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(content)

            do_GET = do_POST = do_PATCH = do_PUT = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        server = self
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.02})
        self._thread.start()
        self.kubeconfig = write_kubeconfig(folder, f"http://127.0.0.1:{self._http.server_address[1]}")

    def close(self) -> None:
        """Stop."""
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()
