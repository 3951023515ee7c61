"""The server of a live page: on the loopback interface, for those who know its token, and for reading alone.

Other programs and users of this machine can reach the loopback interface, and so can any web page in its browser. So
the path starts with a token that nobody can guess, a request to a name that is not this machine's is refused (DNS
rebinding), and no other page may read, frame or store what is answered.
"""

from __future__ import annotations

import hmac
import json
import secrets
import socketserver
import sys
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from hpxfer.errors import HpxferError
from hpxfer.host.files import reason
from hpxfer.live.page import LivePage
from hpxfer.live.state import LiveState

HOST = "127.0.0.1"
# What the Host header may name. A port that is forwarded to this one, e.g. by ssh, may have another number.
HOST_NAMES = ("127.0.0.1", "localhost", "::1")
TOKEN_BYTES = 24
REQUEST_S = 30.0
_HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
_TEXT = "text/plain; charset=utf-8"
_HTML = "text/html; charset=utf-8"

Answer = tuple[str, bytes]  # a content type and the content


class LiveServer(ThreadingHTTPServer):
    """The server. It listens from the start, and answers while `serve_forever` runs."""

    daemon_threads = True

    def __init__(self, page: LivePage, state: LiveState, port: int = 0) -> None:
        """Listen on a port, or on any free one. Raise HpxferError if the port cannot be had."""
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.policy = page.policy
        self.answers: dict[str, Callable[[], Answer]] = {
            "": lambda: (_HTML, page.html.encode()),
            "state": lambda: ("application/json", json.dumps(state.ask(), allow_nan=False).encode()),
            "report": lambda: (_HTML, state.contents().encode()),
        }
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            raise HpxferError(
                f"--port: must be a port that can be listened on, got {port}: {reason(error)}; leave the option out to "
                "take any free port"
            ) from None

    def server_bind(self) -> None:
        """Bind the socket. That of the parent class asks the network for this machine's name."""
        socketserver.TCPServer.server_bind(self)
        self.server_name, self.server_port = HOST, int(self.server_address[1])

    @property
    def url(self) -> str:
        """The address of the page, with its token."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore a browser that goes away in the middle of an answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    server: LiveServer
    timeout = REQUEST_S

    def do_GET(self) -> None:
        if _host_name(self.headers.get("Host", "")) not in HOST_NAMES:
            self.send_error(HTTPStatus.FORBIDDEN)
            return
        token, _, name = self.path.partition("?")[0].removeprefix("/").partition("/")
        is_known = hmac.compare_digest(token.encode(), self.server.token.encode())
        answer = self.server.answers.get(name) if is_known else None
        if answer is None:
            self.send_error(HTTPStatus.NOT_FOUND)
        else:
            self._send(HTTPStatus.OK, *answer())

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_POST(self) -> None:
        self.send_error(HTTPStatus.METHOD_NOT_ALLOWED)

    do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_POST

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with an error in a few plain words, which repeat nothing of the request."""
        self._send(HTTPStatus(code), _TEXT, f"{code} {HTTPStatus(code).phrase}\n".encode())

    def version_string(self) -> str:
        """Return what the header `Server` says."""
        return "hpxfer"

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing: the terminal belongs to the watch, and a line would hold the token."""

    def _send(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        headers = {**_HEADERS, "Content-Security-Policy": self.server.policy, "Content-Type": kind}
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            headers["Allow"] = "GET, HEAD"
        for name, value in {**headers, "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


def _host_name(header: str) -> str:
    """Return the name of a Host header without its port."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""
