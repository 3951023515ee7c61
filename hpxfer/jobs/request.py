"""The request that travels to a cluster with a job, and the answer that comes back in its log.

Ray runs a job's entrypoint through a shell. So the entrypoint is a constant, and the request travels in an environment
variable, as base64 of compressed JSON. Nothing is passed through a shell. A `working_dir` would not do: nodes on one
machine share Ray's folder for it, and the first node that no longer needs it deletes it for all.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import shlex
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, get_args

from hpxfer.errors import HpxferError, shown

# `exec`: a signal for the job reaches Python and not a shell around it. `-P`: nothing is imported from the folder in
# which somebody started Ray.
ENTRYPOINT = "exec python -P -m hpxfer.cli.job_entry"
VARIABLE = "HPXFER_JOB"
# Linux limits a variable to 128 KiB.
MOST_CHARACTERS = 100_000
# Limit for the JSON, so that a small variable cannot fill the memory.
_MOST_BYTES = 64 * 2**20
DEFAULT_ROOT = "~/hpxfer-results"
DEFAULT_ADDRESS = "http://127.0.0.1:8265"  # of Ray's dashboard

# `run` trains. The shell that waits for them asks the other two, which answer in their log.
Action = Literal["run", "check", "fetch"]

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_CHUNK_BYTES = 48 * 1024


@dataclass(frozen=True, kw_only=True)
class Request:
    """What a job is asked to do."""

    action: Action
    job: str  # id of the run: the job's own, or that of the run it is asked about
    root: str  # the folder on the cluster that holds the sweep's own folder, or a URI
    name: str  # of the sweep
    nonce: str = ""  # a random mark of the answer's lines
    price_per_hour: float | None = None
    strict_memory: bool = True
    reuse: tuple[str, ...] = ()  # results folders on the cluster, or URIs
    strict_code: bool = False
    plugins: Mapping[str, str] = field(default_factory=dict)  # name -> source, see `hpxfer.jobs.travel`
    files: Mapping[str, str] = field(default_factory=dict)  # name -> content, see `hpxfer.jobs.travel`


def where(root: str) -> str:
    """Return a results root as this machine spells it. `~` is the home folder of the user who started Ray here."""
    return root if "://" in root else os.path.expanduser(root)


def is_job_id(text: str) -> bool:
    """Return whether a text may be a job's id, which becomes part of a URL and of file names."""
    return _ID.fullmatch(text) is not None


def ray_job(action: str, *arguments: str, address: str) -> str:
    """Return Ray's own command about a job, e.g. `ray job logs --address http://head:8265 hpxfer-a-1`."""
    return shlex.join(["ray", "job", action, "--address", address, *arguments])


def packed(request: Request, sweep: str) -> str:
    """Return the text that travels with a job. Raise HpxferError if the sweep is too long."""
    content = json.dumps({**asdict(request), "sweep": sweep}).encode()
    text = base64.b64encode(zlib.compress(content, 9)).decode("ascii")
    if len(text) <= MOST_CHARACTERS and len(content) <= _MOST_BYTES:
        return text
    what, largest = "the sweep", ""
    if request.files:
        name = max(request.files, key=lambda name: len(request.files[name]))
        what, largest = "trainer.files:", f"; the largest is {name} ({len(request.files[name]) / 1024:.0f} KiB)"
    raise HpxferError(
        f"{what} must fit into {MOST_CHARACTERS} characters to be submitted, compressed, got {len(text)}{largest}; or "
        "give `hpxfer run` on the cluster the file"
    )


def unpacked(text: str) -> tuple[Request, str]:
    """Return the request and the sweep that travelled with a job. Raise HpxferError if the text holds none."""
    try:
        data = json.loads(zlib.decompressobj().decompress(base64.b64decode(text, validate=True), _MOST_BYTES))
        sweep = data.pop("sweep")
        request = Request(**{**data, "reuse": tuple(data.get("reuse", ()))})
    except (ValueError, LookupError, TypeError, AttributeError, zlib.error) as error:
        raise HpxferError(f"{VARIABLE}: must be what `hpxfer submit` packs, got {error}") from None
    maps = (request.plugins, request.files)
    are_maps = all(isinstance(each, dict) for each in maps)
    texts = [sweep, request.root, request.name, request.job, request.nonce, *request.reuse]
    texts += [text for each in maps for pair in each.items() for text in pair] if are_maps else []
    legal = request.action in get_args(Action) and are_maps and all(isinstance(text, str) for text in texts)
    if not legal or not is_job_id(request.job) or not is_job_id(request.name):
        raise HpxferError(f"{VARIABLE}: must name an action, a job and a sweep, got {shown(request)}")
    return request, sweep


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer in a job's log: its `data`, and the files that it sent."""

    data: dict[str, Any]
    files: dict[str, bytes]


def answer_lines(nonce: str, data: dict[str, Any], files: dict[str, bytes] | None = None) -> Iterator[str]:
    """Yield the lines of an answer: the files in chunks, then one line that describes them. A log without it has no
    answer.

    Lines of others, e.g. Ray's, may stand between them.
    """
    files = files or {}
    for index, content in enumerate(files.values()):
        for start in range(0, len(content), _CHUNK_BYTES):
            chunk = base64.b64encode(content[start : start + _CHUNK_BYTES]).decode("ascii")
            yield f"{_mark(nonce, 'data')}{index}:{chunk}"
    sent = [{"name": name, "sha256": hashlib.sha256(content).hexdigest()} for name, content in files.items()]
    yield f"{_mark(nonce, 'answer')}{json.dumps({'data': data, 'files': sent})}"


def read_answer(log: str, nonce: str) -> Answer | None:
    """Return the answer in a job's log, or None if there is none. Raise HpxferError if a file did not arrive whole."""
    last, chunks = None, dict[int, list[str]]()
    for line in log.splitlines():
        if line.startswith(_mark(nonce, "answer")):
            last = line.removeprefix(_mark(nonce, "answer"))
        elif line.startswith(_mark(nonce, "data")):
            number, _, chunk = line.removeprefix(_mark(nonce, "data")).partition(":")
            chunks.setdefault(int(number), []).append(chunk)
    if last is None:
        return None
    header = json.loads(last)
    files = {}
    for index, entry in enumerate(header["files"]):
        content = _decoded(chunks.get(index, ()))
        if content is None or hashlib.sha256(content).hexdigest() != entry["sha256"]:
            raise HpxferError(f"{entry['name']}: did not arrive completely through the job's log; fetch again")
        files[entry["name"]] = content
    return Answer(data=header["data"], files=files)


def _mark(nonce: str, kind: str) -> str:
    return f"hpxfer-{kind}:{nonce}:"


def _decoded(chunks: Iterable[str]) -> bytes | None:
    try:
        return b"".join(base64.b64decode(chunk, validate=True) for chunk in chunks)
    except binascii.Error:
        return None
