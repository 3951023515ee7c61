"""What travels with a job and comes back, and one clear message where a cluster cannot be spoken to. Without Ray."""

from __future__ import annotations

import base64
import os
import re
import socket
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from fixture_types import Patch
from hypothesis import given
from hypothesis import strategies as st

import hpxfer
from hpxfer.errors import HpxferError
from hpxfer.jobs import client as jobs
from hpxfer.jobs.answers import capable_nodes, require_writable
from hpxfer.jobs.client import Cluster, connect
from hpxfer.jobs.commands import cluster_folder, refusals
from hpxfer.jobs.request import Request, answer_line, bundled, packed, read_answer, unpacked
from hpxfer.spec import SweepSpec
from hpxfer.trial import TRAINER_VERSION

REQUEST = Request(action="run", job="hpxfer-a-1", root="/out put/$(touch x)", name="a", nonce="n")
VERSIONS = {"hpxfer": hpxfer.__version__, "trainer": TRAINER_VERSION, "python": "3.11.7"}
NODE = {"host": "b", "node": "0123456789", **VERSIONS, "digest": "d"}
SAID = {"versions": VERSIONS, "host": "head", "digest": "d", "nodes": [NODE]}


FILES = st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=200_000), max_size=4)


@given(sweep=st.text(), root=st.text(), reuse=st.lists(st.text(), max_size=3), name=st.text(), content=st.binary())
def test_a_request_travels_as_it_is_and_holds_nothing_that_a_shell_reads(
    sweep: str, root: str, reuse: list[str], name: str, content: bytes
) -> None:
    more = {"sweep": sweep, "root": root, "reuse": tuple(reuse), "files": {name: content}}
    request = REQUEST.model_copy(update=more)
    text = packed(request)
    assert re.fullmatch(r"[A-Za-z0-9+/=]*", text)
    assert unpacked(text) == request


def test_a_sweep_that_is_too_long_to_travel_is_refused_and_a_long_one_is_not() -> None:
    for text, fits in (
        ("seeds: [" + ", ".join(map(str, range(10_000))) + "]", True),
        (os.urandom(99_999).hex(), False),
    ):
        with nullcontext() if fits else pytest.raises(HpxferError, match="the sweep must fit into 100000 characters"):
            assert unpacked(packed(REQUEST.model_copy(update={"sweep": text}))).sweep == text


GOOD = {"action": "run", "job": "a", "root": "/", "name": "a", "sweep": ""}


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "ä", base64.b64encode(b"x").decode(), bundled(GOOD, {})[:-8], bundled({}, {})),
        *(bundled({**GOOD, **harm}, {}) for harm in ({"action": "rm"}, {"job": "../a"}, {"name": "a/../../b"})),
        *(bundled({**GOOD, **harm}, {}) for harm in ({"root": 3}, {"reuse": 3}, {"reuse": [3]}, {"sweep": None})),
        *(base64.b64encode(zlib.compress(raw)).decode() for raw in (b"[]", b"3", b"{}", b'{"data": 1, "files": {}}')),
        bundled({**GOOD, "more": "1"}, {}),
    ],
)
def test_a_request_of_another_kind_is_refused(text: str) -> None:
    assert unpacked(bundled(GOOD, {}))
    with pytest.raises(HpxferError, match="HPXFER_JOB: must"):
        unpacked(text)


@given(files=FILES, noise=st.text(max_size=40).filter(lambda text: not text.startswith("hpxfer-")))
def test_an_answer_arrives_as_it_was_sent_between_lines_of_others(files: dict[str, bytes], noise: str) -> None:
    said = {"a": 1, "text": "é\n"}
    line = answer_line("me", said, files)
    other = answer_line("other", {"b": 2}, {"x": b"y"})
    assert read_answer(f"{other}\n{noise}\n{line}\n{noise}\n", "me") == (said, files)


def test_a_missing_answer_is_none_and_a_damaged_one_is_refused() -> None:
    line = answer_line("me", {}, {"trials.parquet": os.urandom(1000)})
    assert read_answer("something else", "me") is None
    for harmed in (line[:-40], f"{line[:500]}AAAA{line[504:]}", f"{line[:500]}{line[504:]}"):
        with pytest.raises(HpxferError, match="did not arrive completely through the job's log"):
            read_answer(harmed, "me")


@pytest.mark.parametrize("text", ["", "../x", "a/b", "a b", "a?b", "-a", "a;b", "x" * 201, "ä", "a\n"])
def test_an_id_that_no_job_has_never_reaches_a_url(text: str) -> None:
    with pytest.raises(HpxferError, match="JOB must be an id"):
        Cluster("http://h", client=None).info(text)


@pytest.mark.parametrize(
    ("harm", "found"),
    [
        ({"versions": {**VERSIONS, "hpxfer": "9"}}, "its head has hpxfer 9, not"),
        ({"versions": {**VERSIONS, "trainer": 1}, "error": "unknown key"}, "its head has trainer 1, not"),
        ({"versions": {}}, "its head has hpxfer unknown"),
        ({"error": "data.source: must name data"}, r"on the head \(head\): data.source: must name data"),
        ({"nodes": [{**NODE, "digest": None}]}, r"node b \(01234567\): the sweep's data is not there"),
        ({"nodes": [{**NODE, "digest": "e"}]}, r"other data than the head \(digest e, not d\)"),
        ({"nodes": [{**NODE, "hpxfer": "9"}]}, r"node b \(01234567\) has hpxfer 9, not"),
        ({"nodes": [{**NODE, "python": "3.12.1"}]}, "has python 3.12.1, not 3.11.7"),
        ({"nodes": [{"host": "b", "node": "0123", "error": "No module named 'hpxfer'"}]}, "No module named 'hpxfer'"),
    ],
)
def test_a_cluster_that_does_not_fit_is_said_in_one_line(harm: dict[str, Any], found: str) -> None:
    assert list(refusals(SAID, "http://h")) == []
    (line,) = refusals({**SAID, **harm}, "http://h")
    assert line.startswith("http://h: ")
    assert re.search(found, line)


def _node(cpus: float, gpus: float = 0, *, alive: bool = True) -> dict[str, Any]:
    return {"Alive": alive, "Resources": {"CPU": cpus, "GPU": gpus}}


@pytest.mark.parametrize(
    ("device", "nodes", "found"),
    [
        ("cpu", [_node(0), _node(2), _node(4, 1)], [1, 2]),
        ("auto", [_node(2), _node(4, 1)], [1]),
        ("auto", [_node(2), _node(4)], [0, 1]),
        ("cuda", [_node(2), _node(4, 8), _node(4, 8, alive=False)], [1]),
        ("cuda", [_node(2)], []),
    ],
)
def test_the_data_is_looked_for_where_a_stack_may_run(
    smoke: SweepSpec, device: str, nodes: list[dict[str, Any]], found: list[int]
) -> None:
    spec = smoke.model_copy(update={"resources": smoke.resources.model_copy(update={"device": device})})
    with nullcontext() if found else pytest.raises(HpxferError, match="must have a GPU to train on"):
        assert capable_nodes(nodes, spec) == [nodes[index] for index in found]


def test_a_results_root_that_cannot_be_written_is_refused_and_none_is_made(tmp_path: Path) -> None:
    require_writable(tmp_path / "a" / "b")
    assert not (tmp_path / "a").exists()
    (tmp_path / "file").touch()
    with pytest.raises(HpxferError, match="--results: must be a folder that can be written"):
        require_writable(tmp_path / "file" / "below")


def test_the_results_root_of_a_job() -> None:
    for root in ("/shared", "~/mine", "s3://bucket/prefix"):
        assert cluster_folder("--results", root) == root
    for root in ("results", "../x", "~someone"):  # would be in a folder of Ray's
        with pytest.raises(HpxferError, match="--results must be a URI or an absolute path on the cluster"):
            cluster_folder("--results", root)


class _Server(BaseHTTPRequestHandler):
    status, body = 200, b""

    def do_GET(self) -> None:
        self.server.seen.append(self.headers.get("Authorization"))
        self.send_response(self.status)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None: ...


@contextmanager
def serving(status: int, body: bytes) -> Iterator[tuple[str, list[str | None]]]:
    """A server that answers everything alike: its address, and the tokens that it was given."""
    handler = type("Handler", (_Server,), {"status": status, "body": body})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        seen: list[str | None] = []
        server.seen = seen
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", seen
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_token(tmp_path: Path, monkeypatch: Patch) -> None:
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.mark.parametrize(
    ("status", "body", "found"),
    [
        (401, b"Unauthorized", "requires Ray's token, and this shell has none"),
        (403, b"Forbidden", "does not accept this shell's Ray token"),
        (404, b"", r"not as Ray's job server \(.*404.*ray\[default\]"),
        (200, b"<html>", "not as Ray's job server"),
        (200, b"[]", "not as Ray's job server"),
        (500, b"oops", "not as Ray's job server"),
    ],
)
def test_a_server_that_is_no_job_server_is_said_in_one_message(status: int, body: bytes, found: str) -> None:
    with serving(status, body) as (address, _), pytest.raises(HpxferError, match=found) as error:
        connect(address)
    assert "\n" not in str(error.value)


def test_nobody_or_a_silent_server_at_the_address(monkeypatch: Patch) -> None:
    monkeypatch.setattr(jobs, "FIRST_ANSWER_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(HpxferError, match="the server is silent"):
            connect(address)
    with pytest.raises(HpxferError, match=rf"no Ray dashboard answers at {address}: Connection refused"):
        connect(address)
    others = ("", "127.0.0.1:8265", "auto", "ray://h:1", "http://", "http://h:x", "http://u:p@h", "http://h/x?y=1")
    for other in (*others, "http://[::1"):
        with pytest.raises(HpxferError, match="--address must be that of Ray's dashboard"):
            connect(other)


@pytest.mark.parametrize("way", ["variable", "file", "home"])
def test_the_token_is_sent_from_where_ray_looks_for_it(way: str, tmp_path: Path, monkeypatch: Patch) -> None:
    path = tmp_path / ("mine" if way == "file" else ".ray/auth_token")
    path.parent.mkdir(exist_ok=True)
    path.write_text("secret\n")
    if way == "variable":
        monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
        path.write_text("another")
    if way == "file":
        monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(path))
    with serving(200, b'{"ray_version": "2.60.0"}') as (address, seen):
        connect(address)
        connect(address.replace("http", "HTTP"))
        assert set(seen) == {"Bearer secret"}


def test_no_token_is_sent_where_authentication_is_off() -> None:
    # In a process of its own: Ray keeps the mode and the token that it found first.
    code = "import sys; from hpxfer.jobs.client import connect; connect(sys.argv[1])"
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "secret"}
    with serving(200, b'{"ray_version": "2.60.0"}') as (address, seen):
        end = subprocess.run(
            [sys.executable, "-c", code, address], env=environment, capture_output=True, text=True, timeout=300
        )
        assert end.returncode == 0, end.stderr
        assert set(seen) == {None}


def test_a_named_token_file_that_is_not_there(tmp_path: Path, monkeypatch: Patch) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "gone"))
    with pytest.raises(HpxferError, match=r"RAY_AUTH_TOKEN_PATH: .*gone cannot be read: .*No such file"):
        connect("http://127.0.0.1:1")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "a\nb")
    with pytest.raises(HpxferError, match="must be one line"):
        connect("http://127.0.0.1:1")


def test_the_address_that_is_given_wins_over_rays_environment(monkeypatch: Patch) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")
    # Ray asks for a token here if this machine's user had one when ray was imported.
    monkeypatch.setenv("RAY_AUTH_TOKEN", "secret")
    with serving(200, b'{"ray_version": "2.60.0"}') as (address, _):
        assert connect(address)._client.get_address() == address
