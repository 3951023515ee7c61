"""LeaseObject: the lease as an object in a bucket, see `hpxfer.storage.lease_file.LeaseStorage`.

S3 and GCS write an object on a condition: that it is absent, or that it has not changed since it was read. Of two
drivers that write at once, one is refused. obstore sends these requests, which pyarrow cannot.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, first_line
from hpxfer.storage.lease_file import LEASE_FILE
from hpxfer.storage.remote import Remote

if TYPE_CHECKING:
    from obstore.store import ObjectStore

_RETRY_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LeaseObject:
    """An object of storage that writes on a condition. Other storage gets plain writes, and a warning."""

    remote: Remote

    def read(self) -> bytes | None:
        """See `LeaseStorage.read`."""
        found = self._found()
        return None if found is None else found[0]

    def create(self, content: bytes) -> bool:
        """See `LeaseStorage.create`."""
        if self.read() is not None:
            return False
        if self._bucket is None:
            self.remote.write(LEASE_FILE, content)
            return True
        if not self._write(content, "create"):
            return False
        if self._write(content, "create"):  # a store that writes it twice does not know the condition
            _warn(self.remote)
        return True

    def swap(self, old: bytes, new: bytes, *, takeover: bool = False) -> bool:
        """See `LeaseStorage.swap`."""
        found = self._found()
        if found is None or found[0] != old:
            return False
        if self._bucket is None:
            self.remote.write(LEASE_FILE, new)
            return True
        try:
            return self._write(new, found[1])
        except FileNotFoundError:
            return False

    def drop(self, old: bytes) -> None:
        """See `LeaseStorage.drop`."""
        if self.read() == old:
            self.remote.delete(LEASE_FILE)

    def writing(self) -> AbstractContextManager[None]:
        """See `LeaseStorage.writing`. Object storage has no locks."""
        return nullcontext()

    @cached_property
    def _bucket(self) -> ObjectStore | None:
        """The bucket, or None if the storage has no conditional writes that obstore knows."""
        uri, options = self.remote.uri, dict(self.remote.uri.options)
        if uri.scheme not in ("s3", "gs"):
            _warn(self.remote)
            return None
        try:
            from obstore.store import GCSStore, S3Store
        except ImportError:
            raise HpxferError(
                f"{uri}: the lease of results in a bucket needs obstore, which is not installed; "
                "pip install 'hpxfer[s3]'"
            ) from None
        retry: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_RETRY_S)}
        if uri.scheme == "gs":
            return GCSStore(uri.host, retry_config=retry)
        endpoint = options.get("endpoint_override") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and "://" not in endpoint:
            endpoint = f"{options.get('scheme', 'https')}://{endpoint}"
        client: Any = {"allow_http": True} if endpoint and endpoint.startswith("http://") else {}
        where: Any = {"endpoint": endpoint} if endpoint else {}
        return S3Store(uri.host, region=self.remote.region, client_options=client, retry_config=retry, **where)

    @property
    def _key(self) -> str:
        return "/".join((*self.remote.uri.path, LEASE_FILE))

    def _found(self) -> tuple[bytes, Any] | None:
        """Return the content, and the condition that it has not changed, or None if the object is absent."""
        if self._bucket is None:
            content = self.remote.read(LEASE_FILE)
            return None if content is None else (content, None)
        import obstore

        with _os_errors():
            try:
                found = obstore.get(self._bucket, self._key)
            except FileNotFoundError:
                return None
            unchanged = {name: found.meta[name] for name in ("e_tag", "version") if found.meta.get(name)}
            return bytes(found.bytes()), unchanged

    def _write(self, content: bytes, condition: Any) -> bool:
        """Write the object on a condition. Return False if the condition does not hold."""
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        assert self._bucket is not None
        with _os_errors():
            try:
                obstore.put(self._bucket, self._key, content, mode=condition, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return False
        return True


def _warn(remote: Remote) -> None:
    _log.warning(
        "%s: this storage does not write on a condition, so two drivers that start at the same moment are not kept "
        "apart; start one at a time",
        remote.uri,
    )


@contextmanager
def _os_errors() -> Iterator[None]:
    """Turn the errors of obstore into OSError, with their first line."""
    from obstore.exceptions import BaseError

    try:
        yield
    except BaseError as error:
        raise OSError(first_line(error)) from error
