"""URIs of storage, e.g. s3://bucket/prefix: parsed, checked, and printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from hpxfer.errors import HpxferError, shown

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
# A URI that went through pathlib has only one slash left.
_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|file|abfss?|az):/")
# Options that may follow a question mark. Keys and tokens are not among them, because URIs stand in files that travel.
_OPTIONS = {
    "s3": ("region", "scheme", "endpoint_override"),
    "gs": ("scheme", "endpoint_override", "project_id", "retry_limit_seconds"),
}
# Schemes that can only be read. A sweep must be written.
_READ_ONLY = ("http", "https", "github", "git", "data", "reference", "zip", "tar")


@dataclass(frozen=True, kw_only=True)
class Uri:
    """A location in storage. The path is taken literally: `%20` is three characters, and a space is a space."""

    scheme: str
    host: str  # the bucket or container
    path: tuple[str, ...] = ()  # the segments between slashes
    options: tuple[tuple[str, str], ...] = ()

    def __truediv__(self, name: str) -> Uri:
        """Return the URI of `name` below this one."""
        assert "/" not in name, name
        assert name not in ("", ".", ".."), name
        return replace(self, path=(*self.path, name))

    @property
    def name(self) -> str:
        return self.path[-1] if self.path else self.host

    @property
    def key(self) -> str:
        """Host and path, in the form that file systems take."""
        return "/".join((self.host, *self.path))

    @property
    def query(self) -> str:
        return "&".join(f"{name}={value}" for name, value in self.options)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.key}" + (f"?{self.query}" if self.options else "")


def is_uri(text: str | Path) -> bool:
    """Return whether a results root is a URI and not a folder."""
    return isinstance(text, str) and _SCHEME.fullmatch(text) is not None


def parse_root(text: str | Path) -> Uri | Path:
    """Return a results root as a URI, or as a folder if it is a path or file:///path.

    Raises HpxferError without the name of the key or option, which the caller puts in front.
    """
    if "\0" in str(text):
        raise HpxferError(f"must be a folder or a URI, got {shown(str(text))} with a zero byte; take it out")
    match = _SCHEME.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        if not str(text):
            raise HpxferError("must be a folder or a URI, e.g. results or s3://bucket/prefix, got nothing")
        if "://" in str(text) or _ONE_SLASH.match(str(text)):
            raise HpxferError(f"must be a folder or a URI, e.g. s3://bucket/prefix, got {shown(str(text))}")
        return Path(text)
    scheme, rest = match.group(1).lower(), match.group(2)
    if "@" in rest.partition("/")[0] and (scheme in _OPTIONS or ":" in rest.partition("@")[0]):
        # The message does not quote the text, which may hold a secret.
        raise HpxferError(
            f"must hold no credentials, got some before the @ of {scheme}://; set them in the environment, e.g. "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    scheme = "s3" if scheme == "s3a" else "gs" if scheme == "gcs" else scheme
    if scheme == "file":
        return _folder(str(text), rest)
    return _uri(str(text), scheme, rest)


def _folder(text: str, rest: str) -> Path:
    if not rest.startswith("/") or rest.strip("/") == "":
        raise HpxferError(f"must be file:///absolute/path, got {shown(text)}; three slashes, or give the folder itself")
    return Path(rest)


def _uri(text: str, scheme: str, rest: str) -> Uri:
    if scheme in _READ_ONLY or "::" in text:
        raise HpxferError(
            f"must be storage that can be written, e.g. s3://bucket/prefix or gs://bucket, got {shown(text)}"
        )
    location, _, query = rest.partition("?")
    host, _, path = location.partition("/")
    segments = tuple(path.rstrip("/").split("/")) if path.strip("/") else ()
    if not host or not all(map(_is_name, (host, *segments))):
        raise HpxferError(
            f"must be {scheme}://BUCKET/PREFIX without empty parts, '.', '..', quotes and backslashes, got "
            f"{shown(text)}"
        )
    return Uri(scheme=scheme, host=host, path=segments, options=_options(scheme, query))


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable() and not set(text) & set('"\\')


def _options(scheme: str, query: str) -> tuple[tuple[str, str], ...]:
    legal = _OPTIONS.get(scheme, ())
    out = []
    for option in query.split("&") if query else ():
        name, _, value = option.partition("=")
        if name not in legal or not value:
            known = f"legal: {', '.join(f'{key}=...' for key in legal)}" if legal else f"{scheme}:// takes none"
            raise HpxferError(
                f"must have known options after '?', got {shown(name)}; {known}; keys go in the environment"
            )
        out.append((name, value))
    return tuple(out)


# Folders on this disk that are mirrors of a URI.
_MIRRORS: dict[str, str] = {}


def know_mirror(folder: Path, uri: Uri) -> None:
    """Remember that a folder is the mirror of a URI."""
    _MIRRORS[str(folder)] = str(uri)


def spelled(text: str) -> str:
    """Return a text for people, or JSON, with URIs in the place of the folders that stand for them."""
    for folder, uri in _MIRRORS.items():
        text = text.replace(folder, uri)
    return text


def storage_problem(text: str) -> str | None:
    """Return what is wrong with the value of `storage:` in a sweep file, or None."""
    try:
        root = parse_root(text)
    except HpxferError as error:
        return str(error)
    if isinstance(root, Path) and not os.path.isabs(root):
        return f"must be a URI or an absolute path, got {shown(text)}; a relative one is for --results"
    return None
