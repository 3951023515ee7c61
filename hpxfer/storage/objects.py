"""Named objects in a folder of this disk or in a bucket: one interface. An object is whole or absent.

obstore talks to S3, GCS and Azure, and waits for a network that is down. Its own local store does not flush what it
writes to the disk, so a `Folder` writes by itself. All methods raise OSError if the disk or the storage refuses.
"""

from __future__ import annotations

import os
import re
import secrets
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import from_url
from pyarrow.fs import resolve_s3_region

from hpxfer.errors import HpxferError, first_line
from hpxfer.host import Uri, half_written, open_regular, parse_root, reason

if TYPE_CHECKING:
    from obstore import UpdateVersion
    from obstore.store import ObjectStore

# How long a patient bucket waits for a network that is down.
PATIENCE_S = 300.0
_WAIT_S, _TRIES = 30.0, 3
FIX = "check its name, the network and the credentials in the environment"
# Holds a random token. A worker that can read it back sees the driver's folder, and not one of the same name on another
# machine. A driver that starts later writes another token, so that the workers of an earlier one write no more.
MARKER = "driver"
_ANSWER = re.compile(r"<Code>(\w+)</Code>\s*<Message>(.*?)</Message>", re.DOTALL)


class Folder:
    """A folder on this disk. It is made when an object is put, and removed with its last object."""

    def __init__(self, folder: Path) -> None:
        self._folder, self.where = folder, str(folder.resolve())  # for people and for other processes

    def stamps(self) -> dict[str, Hashable]:
        """Return name -> a stamp that changes with the object. The mapping is empty if there is no such folder."""
        out: dict[str, Hashable] = {}
        with suppress(OSError), os.scandir(self._folder) as entries:
            for entry in entries:
                with suppress(OSError):  # removed meanwhile
                    if entry.is_file(follow_symlinks=False):
                        state = entry.stat(follow_symlinks=False)
                        out[entry.name] = (state.st_ino, state.st_size, state.st_mtime_ns)
        return out

    def open(self, name: str) -> IO[bytes]:
        """Return an object opened for reading in parts."""
        return open_regular(self._folder / name)

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        """Provide an object as a file on this disk, which the caller must not change."""
        yield self._folder / name

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        """Replace an object by what `write` writes to the path that it gets."""
        self._folder.mkdir(parents=True, exist_ok=True)
        temporary = half_written(self._folder / name)
        try:
            write(temporary)
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            os.replace(temporary, self._folder / name)
        except BaseException:
            with suppress(OSError):
                temporary.unlink()
            raise

    def remove(self, name: str) -> None:
        """Remove an object if it is there, and a folder that holds nothing more."""
        (self._folder / name).unlink(missing_ok=True)
        with suppress(OSError):
            self._folder.rmdir()


@dataclass(frozen=True, kw_only=True)
class Stamp:
    """What a bucket says of an object."""

    size: int
    tag: str


class Bucket:
    """What lies below a URI, see `Folder`. A patient bucket waits minutes for a network that is down."""

    def __init__(self, uri: Uri, *, patient: bool = False) -> None:
        self.uri, self.where = uri, str(uri)
        with storage_errors(str(uri), "cannot be reached", FIX), _answers():
            self._store = _store(uri, patient)

    def stamps(self) -> dict[str, Stamp]:
        with _answers():
            found = obstore.list_with_delimiter(self._store, "/".join(self.uri.path))["objects"]
        return {each["path"].rpartition("/")[2]: _stamp(each) for each in found}

    def stamp(self, name: str) -> Stamp:
        """Return the stamp of an object. Raise FileNotFoundError if there is none."""
        with _answers():
            return _stamp(obstore.head(self._store, self._key(name)))

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Provide an object for reading in parts. What is read are buffers."""
        with _answers():
            yield cast("IO[bytes]", obstore.open_reader(self._store, self._key(name)))

    def part(self, name: str, offset: int, num_bytes: int) -> bytes:
        """Return up to so many bytes of an object from `offset` on."""
        with _answers():
            return bytes(obstore.get_range(self._store, self._key(name), start=offset, length=num_bytes))

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        with tempfile.TemporaryDirectory(prefix="hpxfer-") as scratch:
            self.fetch(name, Path(scratch) / name)
            yield Path(scratch) / name

    def fetch(self, name: str, target: Path) -> None:
        """Copy an object to this disk."""
        temporary = target.with_name(f"{target.name}.{secrets.token_hex(4)}.tmp")
        try:
            with _answers(), open(temporary, "wb") as file:
                for chunk in obstore.get(self._store, self._key(name)):
                    file.write(chunk)
            os.replace(temporary, target)
        finally:
            temporary.unlink(missing_ok=True)

    def put(self, name: str, write: Callable[[Path], object]) -> None:
        with tempfile.TemporaryDirectory(prefix="hpxfer-") as scratch:
            write(Path(scratch) / name)
            self.write(name, Path(scratch) / name)

    def read(self, name: str) -> tuple[bytes, UpdateVersion] | None:
        """Return a small object and the condition that it has not changed. None if it is absent."""
        with suppress(FileNotFoundError), _answers():
            found = obstore.get(self._store, self._key(name))
            unchanged = {part: found.meta[part] for part in ("e_tag", "version") if found.meta.get(part)}
            return bytes(found.bytes()), cast("UpdateVersion", unchanged)
        return None

    def write(self, name: str, content: bytes | Path, condition: Any = "overwrite") -> bool:
        """Write bytes, or a file, or small bytes if there is no object (`create`) or one that has not changed.

        Return whether it was written.
        """
        with _answers():
            try:
                obstore.put(self._store, self._key(name), content, mode=condition)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True

    def remove(self, name: str) -> None:
        with _answers(), suppress(FileNotFoundError):
            obstore.delete(self._store, self._key(name))

    def _key(self, name: str) -> str:
        return "/".join((*self.uri.path, name))


Objects = Folder | Bucket


def objects_at(where: str | Path | Uri) -> Objects:
    """Return what lies in a folder or below a URI. Raise HpxferError if the storage cannot be reached."""
    found = where if isinstance(where, Uri) else parse_root(where)
    return Folder(found) if isinstance(found, Path) else Bucket(found)


def marked(objects: Objects) -> str:
    """Put a new marker, and return its token."""
    token = secrets.token_hex(16)
    objects.put(MARKER, lambda path: path.write_bytes(token.encode()))
    return token


def sees(where: str, token: str) -> bool:
    """Return whether this machine sees the folder of the driver that wrote this token last."""
    with suppress(OSError, HpxferError), objects_at(where).open(MARKER) as file:
        return bytes(file.read()) == token.encode()
    return False


@contextmanager
def storage_errors(where: str, what: str, fix: str) -> Iterator[None]:
    """Turn an OSError into HpxferError: where, what cannot be done, why, and a fix."""
    try:
        yield
    except OSError as error:
        raise HpxferError(f"{where}: {what}: {reason(error)}; {fix}") from None


@contextmanager
def _answers() -> Iterator[None]:
    """Turn the errors of obstore into OSError, with the words of the server alone."""
    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        answer = _ANSWER.search(str(error))
        why = first_line(error) if answer is None else f"{answer[2].strip().rstrip('.')} ({answer[1]})"
        raise (FileNotFoundError if isinstance(error, FileNotFoundError) else OSError)(why) from None


def _stamp(meta: Mapping[str, Any]) -> Stamp:
    return Stamp(size=meta["size"], tag=f"{meta['e_tag']} {meta['last_modified']}")


def _store(uri: Uri, patient: bool) -> ObjectStore:
    options: dict[str, Any] = dict(uri.options)
    protocol, endpoint = options.pop("scheme", "https"), options.pop("endpoint_override", None)
    if uri.scheme == "s3":
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL")
        named = {"AWS_REGION", "AWS_DEFAULT_REGION"} & os.environ.keys()
        if not (endpoint or named or "region" in options):
            with suppress(OSError):
                options["region"] = resolve_s3_region(uri.host)
        options |= _credentials()
    if endpoint:
        protocol, _, address = (endpoint if "://" in endpoint else f"{protocol}://{endpoint}").partition("://")
        endpoint = f"{protocol.lower()}://{address}"
        options["endpoint" if uri.scheme == "s3" else "base_url"] = endpoint
    wait_s, tries = (PATIENCE_S, 10**6) if patient else (_WAIT_S, _TRIES)
    return from_url(
        f"{uri.scheme}://{uri.host}",
        client_options={"allow_http": str(endpoint).startswith("http://"), "timeout": timedelta(minutes=2)},
        retry_config={
            "max_retries": tries,
            "retry_timeout": timedelta(seconds=wait_s),
            "backoff": {"init_backoff": timedelta(seconds=0.2), "max_backoff": timedelta(seconds=30), "base": 2},
        },
        **options,
    )


def _credentials() -> dict[str, Any]:
    """Return what finds the credentials in ~/.aws, if boto3 is installed and the environment has none."""
    if "AWS_ACCESS_KEY_ID" not in os.environ:
        with suppress(ImportError, ValueError):
            from obstore.auth.boto3 import Boto3CredentialProvider

            return {"credential_provider": Boto3CredentialProvider()}
    return {}
