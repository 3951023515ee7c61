"""URIs of storage, e.g. s3://bucket/prefix: parsed, checked, and printed."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from pathlib import Path

from hpxfer.errors import HpxferError, nearest, shown

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://.*", re.DOTALL)
# A URI that went through pathlib has only one slash left.
_ONE_SLASH = re.compile(r"(s3a?|gs|gcs|file|az|abfss?):/", re.IGNORECASE)
# scheme -> options that may follow a question mark. Keys and tokens are not among them, as URIs stand in files.
SCHEMES: dict[str, tuple[str, ...]] = {
    "s3": ("region", "scheme", "endpoint_override"),
    "gs": ("scheme", "endpoint_override"),
    **dict.fromkeys(("az", "abfs", "abfss"), ()),
}
_SAME = {"s3a": "s3", "gcs": "gs"}


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
        """Host and path."""
        return "/".join((self.host, *self.path))

    def __str__(self) -> str:
        query = "&".join(f"{name}={value}" for name, value in self.options)
        return f"{self.scheme}://{self.key}" + (f"?{query}" if query else "")


def is_uri(text: str | Path) -> bool:
    """Return whether a results root is a URI and not a folder."""
    return isinstance(text, str) and _SCHEME.fullmatch(text) is not None


def parse_root(text: str | Path) -> Uri | Path:
    """Return a results root as a URI, or as a folder if it is a path or file:///path.

    Raises HpxferError without the name of the key or option, which the caller puts in front.
    """
    given = str(text)
    if not is_uri(text):
        if not given or "\0" in given or "://" in given or _ONE_SLASH.match(given):
            raise HpxferError(f"must be a folder or a URI, e.g. results or s3://bucket/prefix, got {shown(given)}")
        return Path(text)
    scheme, rest = given.split("://", 1)
    scheme = _SAME.get(scheme.lower(), scheme.lower())
    if "@" in rest.partition("/")[0] and (scheme in ("s3", "gs") or ":" in rest.partition("@")[0]):
        # The message does not quote the text, which may hold a secret.
        raise HpxferError(
            f"must hold no credentials, got some before the @ of {scheme}://; set them in the environment, e.g. "
            f"AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or GOOGLE_APPLICATION_CREDENTIALS"
        )
    if scheme == "file" and rest.startswith("/") and rest.strip("/"):
        return Path(rest)
    location, _, query = rest.partition("?")
    host, *segments = location.rstrip("/").split("/")
    options = tuple((name, value) for name, _, value in (each.partition("=") for each in query.split("&") if query))
    if scheme not in SCHEMES:
        known = ", ".join(f"{name}://" for name in SCHEMES)
        raise HpxferError(f"must be a folder, file:///absolute/path, or a URI with one of {known}, got {shown(given)}")
    if not all(map(_is_name, (host, *segments))):
        rule = f"must be {scheme}://BUCKET/PREFIX without empty parts, '.', '..', quotes and backslashes"
        raise HpxferError(f"{rule}, got {shown(given)}")
    for name, value in options:
        if name not in SCHEMES[scheme] or not value:
            legal = nearest(name, SCHEMES[scheme]) if SCHEMES[scheme] else f"{scheme}:// takes none"
            raise HpxferError(
                f"must have known options after '?', got {shown(name)}; {legal}; keys go in the environment"
            )
    return Uri(scheme=scheme, host=host, path=tuple(segments), options=options)


def _is_name(text: str) -> bool:
    return text not in ("", ".", "..") and text.isprintable() and not set(text) & set('"\\')


def storage_problem(text: str) -> str | None:
    """Return what is wrong with the value of `storage:` in a sweep file, or None."""
    try:
        root = parse_root(text)
    except HpxferError as error:
        return str(error)
    if isinstance(root, Path) and not os.path.isabs(root):
        return f"must be a URI or an absolute path, got {shown(text)}; a relative one is for --results"
    return None
