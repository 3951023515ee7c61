"""The server of a live page: who gets an answer, and who gets none."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

import pytest
from made_runs import run_status

from hpxfer.errors import HpxferError
from hpxfer.live.judging import Judging
from hpxfer.live.page import live_page
from hpxfer.live.server import LiveServer
from hpxfer.live.state import LiveState
from hpxfer.progress.file import write
from hpxfer.progress.watch import view_now
from hpxfer.store.location import location_at

EVIL = "<script>alert('x')</script>"
LIMIT_S = 60


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    """A server for a run that has ended, whose driver has a hostile name."""
    write(tmp_path, state="ended", run="a", counter=1, run_status=run_status(sweep=EVIL, errors=(EVIL,)))
    judging = Judging(tmp_path, EVIL)
    state = LiveState(EVIL, judging)
    state.show(view_now(location_at(tmp_path)))
    with LiveServer(live_page(EVIL), state) as found:
        thread = threading.Thread(target=found.serve_forever, args=(0.01,))
        thread.start()
        yield found
        found.shutdown()
        thread.join()
    judging.close()


def asked(
    server: LiveServer, path: str, method: str = "GET", host: str | None = None
) -> tuple[int, dict[str, str], str]:
    """Return the status, the headers and the content of an answer. `{token}` in the path stands for the server's."""
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=LIMIT_S)
    connection.putrequest(method, path.replace("{token}", server.token), skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{server.server_port}" if host is None else host)
    connection.endheaders()
    answer = connection.getresponse()
    content = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), content


def raw(server: LiveServer, request: bytes) -> bytes:
    """Return the whole answer to what is sent."""
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=LIMIT_S) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        answer = b""
        while part := connection.recv(65536):
            answer += part
        return answer


def test_it_listens_on_the_loopback_interface_alone(server: LiveServer) -> None:
    assert server.server_address[0] == "127.0.0.1"
    assert server.url == f"http://127.0.0.1:{server.server_port}/{server.token}/"
    assert len(server.token) >= 32


def test_no_two_servers_have_one_token(server: LiveServer, tmp_path: Path) -> None:
    judging = Judging(tmp_path, "")
    with LiveServer(live_page(""), LiveState("", judging)) as other:
        assert other.token != server.token
    judging.close()


def test_the_page_holds_its_style_and_script_and_says_nothing_of_the_token(server: LiveServer) -> None:
    status, headers, content = asked(server, "/{token}/")
    assert (status, headers["Content-Type"]) == (HTTPStatus.OK, "text/html; charset=utf-8")
    assert "://" not in content
    assert server.token not in content
    assert "<script>alert" not in content
    assert asked(server, "/{token}")[2] == content  # the address without its last slash


def test_the_state_is_json_with_the_run_as_html(server: LiveServer) -> None:
    status, headers, content = asked(server, "/{token}/state?x=1")
    state = json.loads(content)
    assert (status, headers["Content-Type"]) == (HTTPStatus.OK, "application/json")
    assert (state["state"], state["report"]) == ("ended", 0)
    assert state["title"] == f"3 of 10 · {EVIL}"
    assert "trials 3/10 done" in state["run"]
    assert "<script" not in state["run"]
    assert "&lt;script&gt;" in state["run"]


def test_a_report_that_is_not_there_is_empty(server: LiveServer) -> None:
    assert asked(server, "/{token}/report")[::2] == (HTTPStatus.OK, "")


@pytest.mark.parametrize(
    "path",
    ["/", "/state", "/x/state", "/{token}x/state", "/{token}/other", "/{token}/../state", "/{token}/state/", "*"],
)
def test_what_is_unknown_is_not_found_whatever_was_wrong(server: LiveServer, path: str) -> None:
    assert asked(server, path)[::2] == (HTTPStatus.NOT_FOUND, "404 Not Found\n")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "localhost:9999", "LOCALHOST", "[::1]:1"])
def test_names_of_this_machine_are_answered_also_through_a_tunnel(server: LiveServer, host: str) -> None:
    assert asked(server, "/{token}/state", host=host)[0] == HTTPStatus.OK


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost@evil", "["]
)
def test_a_foreign_name_is_refused_even_with_the_token(server: LiveServer, host: str) -> None:
    assert asked(server, "/{token}/state", host=host)[::2] == (HTTPStatus.FORBIDDEN, "403 Forbidden\n")


def test_a_request_without_a_host_is_refused(server: LiveServer) -> None:
    assert b" 403 " in raw(server, f"GET /{server.token}/state HTTP/1.0\r\n\r\n".encode())


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_the_page_is_for_reading_alone(server: LiveServer, method: str) -> None:
    status, headers, _ = asked(server, "/{token}/state", method)
    assert (status, headers["Allow"]) == (HTTPStatus.METHOD_NOT_ALLOWED, "GET, HEAD")


def test_a_head_has_the_headers_alone(server: LiveServer) -> None:
    status, headers, content = asked(server, "/{token}/", "HEAD")
    assert (status, content) == (HTTPStatus.OK, "")
    assert headers["Content-Length"] == str(len(asked(server, "/{token}/")[2].encode()))


@pytest.mark.parametrize(
    "request_", [b"\0\1\r\n\r\n", b"GET http://[ HTTP/1.0\r\n\r\n", b"BREW / HTTP/1.1\r\n\r\n", b""]
)
def test_nonsense_harms_nothing(server: LiveServer, request_: bytes, capfd: pytest.CaptureFixture[str]) -> None:
    assert EVIL.encode() not in raw(server, request_)
    assert asked(server, "/{token}/")[0] == HTTPStatus.OK
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("path", ["/{token}/", "/{token}/state", "/{token}/report", "/nothing"])
def test_every_answer_is_kept_from_other_pages(server: LiveServer, path: str) -> None:
    headers = asked(server, path)[1]
    assert headers["Cache-Control"] == "no-store"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "Access-Control-Allow-Origin" not in headers
    rules = dict(rule.split(" ", 1) for rule in headers["Content-Security-Policy"].split("; "))
    assert (rules["default-src"], rules["connect-src"], rules["frame-ancestors"]) == ("'none'", "'self'", "'none'")
    assert "unsafe" not in headers["Content-Security-Policy"]


def test_a_port_in_use_is_one_clear_message(server: LiveServer, tmp_path: Path) -> None:
    judging = Judging(tmp_path, "")
    with pytest.raises(
        HpxferError, match=f"^--port: must be a port .* got {server.server_port}: Address already in use; "
    ):
        LiveServer(live_page(""), LiveState("", judging), server.server_port)
    judging.close()
