"""Serves the admission of pods over TLS, as the API server asks for it: `/pods` for reviews, `/healthz` for a kubelet.

Called by the front door. The API server waits for the answer, so whatever takes too long is ended; with the documented
failure policy the pod then passes as it is.
"""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import sys
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from enforcer.kubernetes.admission_review import PodAdmission
from fleet.errors import Corrupt, Misconfigured
from fleet.listener_files import ListenerFiles
from fleet.logs import logger
from wire.listener_tls import ListenerContexts

REVIEW_BYTES_MAX = 8 * 1024 * 1024
"""Longest review that is read; an object of the API server has less than two MiB."""

CONNECTIONS_MAX = 64

_SECONDS_MAX = 15.0
_CHECK_SECONDS = 0.0


class AdmissionServer:
    """Answers reviews.

    Args:
        admission: gives the seats.
        host: address to listen on.
        port: port; 0 picks a free one.
        certificate_file: chain of its certificate, PEM; read anew when it changes.
        key_file: its key, PEM.
        client_ca_file: authorities, one of which must have signed the certificate that the API server shows; None
            where it shows none.

    Raises:
        Misconfigured: the address or a file can't be used.
    """

    def __init__(
        self,
        admission: PodAdmission,
        *,
        host: str,
        port: int,
        certificate_file: Path,
        key_file: Path,
        client_ca_file: Path | None = None,
    ) -> None:
        self._admission = admission
        files = ListenerFiles(
            section="admission",
            certificate_file=str(certificate_file),
            key_file=str(key_file),
            client_ca_file=None if client_ca_file is None else str(client_ca_file),
        )
        try:
            self._contexts = ListenerContexts(
                files, needs_client=True, now_seconds=time.monotonic, check_seconds=_CHECK_SECONDS
            )
        except Misconfigured as exc:
            asked = "" if client_ca_file is None else f" and --client-ca {client_ca_file}"
            raise Misconfigured(
                f"cannot serve by --certificate {certificate_file} and --key {key_file}{asked}: {exc.__cause__ or exc}"
            ) from exc
        self._log = logger("enforcer.kubernetes.admission_server")
        try:
            self._server = _Server((host, port), _Handler)
        except (OSError, OverflowError) as exc:
            raise Misconfigured(f"cannot listen on {host}:{port}: {exc}; choose another with --listen") from exc
        self._server.app = self

    @property
    def address(self) -> tuple[str, int]:
        """Host and port that it listens on."""
        host, port = self._server.server_address[:2]
        return str(host), int(port)

    def serve(self) -> None:
        """Answer until `stop` is called from another thread."""
        self._server.serve_forever(poll_interval=0.1)
        self._server.server_close()

    def stop(self) -> None:
        """End `serve`."""
        self._server.shutdown()

    def context(self) -> ssl.SSLContext:
        """TLS by the files as they are now."""
        return self._contexts.context()

    def answer(self, body: bytes) -> bytes | None:
        """The answer to the body of a review; None where it is none."""
        try:
            asked = json.loads(body)
            found = self._admission.review(asked if isinstance(asked, dict) else {})
        except (ValueError, RecursionError, Corrupt) as exc:
            self._log.warning("an admission review can't be read", reason=str(exc)[:300])
            return None
        if warnings := found["response"].get("warnings"):
            self._log.warning("a pod passed without its planned seat", reason=warnings[0])
        return json.dumps(found).encode()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    app: AdmissionServer

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(CONNECTIONS_MAX)
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread, unless there are too many."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve one connection; the handshake is the thread's business, and holds nobody else up."""
        try:
            request.settimeout(_SECONDS_MAX)
            with contextlib.suppress(OSError, Misconfigured):
                secured = self.app.context().wrap_socket(request, server_side=True)
                super().process_request_thread(secured, client_address)
        finally:
            self._free.release()
            self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a client that went away or was too slow; anything else is a bug and is told."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: _Server
    protocol_version = "HTTP/1.1"
    timeout = _SECONDS_MAX

    def do_GET(self) -> None:
        """Answer a probe."""
        self._send(HTTPStatus.OK if self.path == "/healthz" else HTTPStatus.NOT_FOUND, b"")

    def do_POST(self) -> None:
        """Answer a review."""
        told = self.headers.get("Content-Length", "")
        if self.path.partition("?")[0] != "/pods" or not told.isascii() or not told.isdecimal():
            self._refuse(HTTPStatus.NOT_FOUND)
        elif int(told[:12]) > REVIEW_BYTES_MAX:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        else:
            answer = self.server.app.answer(self.rfile.read(int(told)))
            if answer is None:
                self._refuse(HTTPStatus.BAD_REQUEST)
            else:
                self._send(HTTPStatus.OK, answer)

    def log_message(self, *_: Any) -> None:
        """Count in the API server's own metrics, and write no line per pod."""

    def _refuse(self, status: HTTPStatus) -> None:
        # What is left of the body would be taken for the next request.
        self.close_connection = True
        self._send(status, b"")

    def _send(self, status: HTTPStatus, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
