"""A value that must be there, or be of a kind, for tests of what may be None or the reason for none."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


def there(value: T | None) -> T:
    """Return the value, which must not be None."""
    assert value is not None
    return value


def of(kind: type[T], value: object) -> T:
    """Return the value, which must be of this kind."""
    assert isinstance(value, kind)
    return value
