"""Parts: a benchmark as a list of what can be measured alone. Its rows are recorded before the next part begins."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hpxfer.errors import HpxferError, shown
from hpxfer.plan.speeds import Row


@dataclass(frozen=True, kw_only=True)
class Part:
    """Rows that are measured together, e.g. a rate and its ratio to the dense twin's."""

    keys: tuple[str, ...]
    run: Callable[[], Iterable[Row]]  # yields the rows of these keys


def rows_of(parts: Iterable[Part]) -> Iterator[Row]:
    """Yield the rows of all parts, each as soon as it is measured."""
    for part in parts:
        yield from part.run()


def chosen(parts: Sequence[Part], keys: Sequence[str], bench: str, device: str) -> tuple[Part, ...]:
    """Return the parts that measure these rows, or all if no row is named. Raise HpxferError for an unknown row."""
    legal = [key for part in parts for key in part.keys]
    for key in keys:
        if key not in legal:
            raise HpxferError(f"--row: {bench} on {device} has no row {shown(key)}; legal: {', '.join(legal)}")
    return tuple(part for part in parts if not keys or set(keys) & set(part.keys))
