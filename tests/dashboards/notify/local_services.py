"""A chat service and a mail server on loopback that keep what came over the wire, and answer as a test wants."""

from __future__ import annotations

import http.server
import socketserver
import ssl
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

CERTIFICATES = Path(__file__).parents[2] / "pipeline" / "certificates"
AUTHORITY = CERTIFICATES / "authority.pem"


@dataclass(kw_only=True)
class Received:
    """One POST as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(kw_only=True)
class Answer:
    """What is answered: status, body and headers."""

    status: int = 200
    body: bytes = b'{"errcode":0,"code":0}'
    headers: dict[str, str] = field(default_factory=dict)


class ChatService:
    """Answers POSTs in order; the last answer goes on."""

    def __init__(self, answers: Sequence[Answer], *, has_tls: bool) -> None:
        self.received: list[Received] = []
        waiting = list(answers)
        service = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.received.append(Received(path=self.path, headers=dict(self.headers), body=body))
                answer = waiting.pop(0) if len(waiting) > 1 else waiting[0]
                self.send_response(answer.status)
                for name, value in {**answer.headers, "Content-Length": str(len(answer.body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.handle_error = lambda *_: None  # type: ignore[method-assign] # a client that hangs up is a case here
        if has_tls:
            self.server.socket = server_context().wrap_socket(self.server.socket, server_side=True)
        scheme = "https" if has_tls else "http"
        self.url = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"


@contextmanager
def chat_service(*answers: Answer, has_tls: bool = False) -> Iterator[ChatService]:
    """Run a chat service."""
    service = ChatService(answers or (Answer(),), has_tls=has_tls)
    with running(service.server):
        yield service


class MailServer(socketserver.ThreadingTCPServer):
    """Speaks as much SMTP as a client needs (RFC 5321, 3207, 4954), and keeps what it heard."""

    daemon_threads = True

    def __init__(self, *, has_starttls: bool, answers: dict[str, str] | None = None) -> None:
        self.mails: list[bytes] = []
        self.commands: list[tuple[str, bool]] = []
        self.has_starttls = has_starttls
        self.answers = answers or {}
        super().__init__(("127.0.0.1", 0), _Session)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self.server_address[1])

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of a client that hung up."""


class _Session(socketserver.StreamRequestHandler):
    server: MailServer

    def handle(self) -> None:
        is_secret = False
        self._say("220 localhost")
        while line := self.rfile.readline():
            command = line.decode().strip()
            word = command.partition(" ")[0].upper()
            self.server.commands.append((command, is_secret))
            if word in self.server.answers:
                self._say(self.server.answers[word])
            elif word == "EHLO":
                offers = [
                    "localhost",
                    *(["STARTTLS"] if self.server.has_starttls and not is_secret else []),
                    "AUTH PLAIN",
                ]
                for place, offer in enumerate(offers):
                    self._say(f"250{' ' if place == len(offers) - 1 else '-'}{offer}")
            elif word == "STARTTLS":
                self._say("220 go ahead")
                self.request = server_context().wrap_socket(self.request, server_side=True)
                self.rfile, self.wfile = self.request.makefile("rb"), self.request.makefile("wb", buffering=0)
                is_secret = True
            elif word == "DATA":
                self._say("354 end with a full stop")
                mail = b""
                while (part := self.rfile.readline()) != b".\r\n":
                    mail += part
                self.server.mails.append(mail)
                self._say("250 taken")
            elif word == "QUIT":
                self._say("221 bye")
                return
            else:
                self._say("235 fine" if word == "AUTH" else "250 fine")

    def _say(self, line: str) -> None:
        self.wfile.write(f"{line}\r\n".encode())


@contextmanager
def mail_server(*, has_starttls: bool = False, answers: dict[str, str] | None = None) -> Iterator[MailServer]:
    """Run a mail server."""
    server = MailServer(has_starttls=has_starttls, answers=answers)
    with running(server):
        yield server


@contextmanager
def running(server: socketserver.BaseServer) -> Iterator[None]:
    """Serve in a thread."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def server_context() -> ssl.SSLContext:
    """TLS of localhost by an authority that no system trusts."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "receiver.pem", CERTIFICATES / "receiver.key.pem")
    return context
