"""The request that travels to a cluster with a job, and the answer that comes back in its log.

Ray runs a job's entrypoint through a shell. So the entrypoint is a constant, and the request travels in an environment
variable. A `working_dir` would not do: nodes on one machine share Ray's folder for it, and the first node that no
longer needs it deletes it for all.
"""

from __future__ import annotations

import base64
import json
import os
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationError

from hpxfer.errors import HpxferError, first_line

# `exec`: a signal for the job reaches Python and not a shell around it. `-P`: nothing is imported from the folder in
# which somebody started Ray.
ENTRYPOINT = "exec python -P -m hpxfer.cli.job_entry"
VARIABLE = "HPXFER_JOB"
# Linux limits a variable to 128 KiB.
MOST_CHARACTERS = 100_000
# Limits of what is unpacked, so that a small text cannot fill the memory.
_MOST_BYTES = 64 * 2**20
_MOST_ANSWER_BYTES = 2**30

ID = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$"  # of a job and of a sweep: it becomes part of a URL and of file names
Id = Annotated[str, StringConstraints(pattern=ID)]


class Request(BaseModel):
    """What a job is asked to do."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    # `run` trains. The shell that waits for them asks the other two, which answer in their log.
    action: Literal["run", "check", "fetch"]
    job: Id  # id of the run: the job's own, or that of the run it is asked about
    root: str  # the folder on the cluster that holds the sweep's own folder, or a URI
    name: Id  # of the sweep
    sweep: str = ""  # the sweep file's text
    nonce: str = ""  # a random mark of the answer's line
    price_per_hour: float | None = None
    strict_memory: bool = True
    strict_code: bool = False
    reuse: tuple[str, ...] = ()  # results folders on the cluster, or URIs
    files: dict[str, bytes] = {}  # name -> content, see `hpxfer.jobs.travel`

    @property
    def where(self) -> str:
        """The root as this machine spells it."""
        return where(self.root)


def where(root: str) -> str:
    """Return a results root as this machine spells it. `~` is the home folder of the user who started Ray here."""
    return root if "://" in root else os.path.expanduser(root)


def packed(request: Request) -> str:
    """Return the text that travels with a job. Raise HpxferError if it is too long."""
    text = bundled(request.model_dump(mode="json", exclude={"files"}), request.files)
    if len(text) <= MOST_CHARACTERS:
        return text
    what, largest = "the sweep", ""
    if request.files:
        name = max(request.files, key=lambda name: len(request.files[name]))
        what, largest = "its files", f"; the largest is {name} ({len(request.files[name]) / 1024:.0f} KiB)"
    raise HpxferError(
        f"{what} must fit into {MOST_CHARACTERS} characters to be submitted, compressed, got {len(text)}{largest}; or "
        "give `hpxfer run` on the cluster the file"
    )


def unpacked(text: str) -> Request:
    """Return the request that travelled with a job. Raise HpxferError if the text holds none."""
    try:
        data, files = unbundled(text, _MOST_BYTES)
        return Request.model_validate({**data, "files": files})
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise HpxferError(f"{VARIABLE}: must be a request, got {first['loc']}: {first['msg']}") from None
    except (ValueError, TypeError) as error:
        raise HpxferError(f"{VARIABLE}: must be what `hpxfer submit` packs, got {first_line(error)}") from None


def answer_line(nonce: str, data: dict[str, Any], files: Mapping[str, bytes] | None = None) -> str:
    """Return an answer as one line of a log."""
    return f"hpxfer-answer:{nonce}:{bundled(data, files or {})}"


def read_answer(log: str, nonce: str) -> tuple[dict[str, Any], dict[str, bytes]] | None:
    """Return data and files of the answer in a job's log, or None if there is none.

    Lines of others, e.g. Ray's, may stand around it. Raise HpxferError if it did not arrive whole.
    """
    mark = f"hpxfer-answer:{nonce}:"
    found = [line for line in log.splitlines() if line.startswith(mark)]
    try:
        return unbundled(found[-1].removeprefix(mark), _MOST_ANSWER_BYTES) if found else None
    except ValueError as error:
        raise HpxferError(f"the answer did not arrive completely through the job's log ({error}); try again") from None


def bundled(data: dict[str, Any], files: Mapping[str, bytes]) -> str:
    """Return JSON-ready data and files as one line of ASCII that no shell reads: compressed, with a checksum."""
    header = json.dumps({"data": data, "files": {name: len(content) for name, content in files.items()}})
    return base64.b64encode(zlib.compress(b"\0".join([header.encode(), *files.values()]), 9)).decode("ascii")


def unbundled(text: str, most: int) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Return data and files. Raise ValueError if the text holds none, is damaged, or unpacks to more than `most`."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(base64.b64decode(text, validate=True), most)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not stream.eof:
        raise ValueError("it is cut, or too large")
    start = len(raw) if (end := raw.find(b"\0")) < 0 else end
    header = json.loads(raw[:start])
    if not isinstance(header, dict) or header.keys() != {"data", "files"} or not isinstance(header["data"], dict):
        raise ValueError("it is no request or answer")
    files = {}
    for name, size in header["files"].items():
        files[name] = raw[start + 1 : start + 1 + size]
        start += 1 + size
    return header["data"], files
