"""Rows by name: the fixed ones of hpxfer, and the registries of extension points, to which users add theirs.

Each kind of row has one table, in the room that it belongs to. Rooms below that one, the sweep's schema above all, find
the table here by name and import nothing of the room before they need it.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast

from hpxfer.errors import HpxferError, nearest, shown

# Kind -> module:attribute of its registry. The module must be light: it imports neither torch nor ray.
KINDS = {
    "parameterization": "hpxfer.scaling.tables:PARAMETERIZATIONS",
    "family": "hpxfer.model.families:FAMILIES",
    "gate": "hpxfer.model.gates:GATES",
    "data source": "hpxfer.data.sources:SOURCES",
    "sample source": "hpxfer.data.sources:SAMPLE_SOURCES",
    "search": "hpxfer.search.kinds:SEARCHES",
    "logger": "hpxfer.loggers.kinds:LOGGERS",
    "statistic": "hpxfer.analysis.statistics:STATISTICS",
    "export target": "hpxfer.export.targets:EXPORT_TARGETS",
}
# Rows that only hpxfer has.
_FIXED = {
    "optimizer": "hpxfer.train.optimizers:OPTIMIZERS",
    "schedule": "hpxfer.train.schedules:SCHEDULES",
    "executor": "hpxfer.executors.kinds:EXECUTORS",
}
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")


def _imported(place: str) -> Any:
    """Return what `module:attribute` names."""
    module, _, attribute = place.partition(":")
    return getattr(importlib.import_module(module), attribute)


def rows_of(kind: str) -> Rows[Any]:
    """Return the rows of a kind that a sweep names, e.g. `gate` or `family`."""
    return cast(Rows[Any], _imported((KINDS | _FIXED)[kind]))


def registry(kind: str) -> Registry[Any]:
    """Return the registry of a kind of extension, e.g. `gate`."""
    return cast(Registry[Any], _imported(KINDS[kind]))


class Named(Protocol):
    """A row: a frozen dataclass with a name."""

    @property
    def name(self) -> str: ...


Row = TypeVar("Row", bound=Named)


class Rows(Generic[Row]):
    """The rows of one kind by name.

    `builtin` maps the name of each row of hpxfer to `module:attribute`. A row is imported when it is first asked for,
    so that the sweep's schema can know every legal name without importing the code behind it. `also` maps other
    spellings to the name, which is what files and messages say.
    """

    options: ClassVar[str | None] = None
    """A pattern of the names that carry options, where a kind has such."""

    def __init__(self, kind: str, builtin: Mapping[str, str], also: Mapping[str, str] | None = None) -> None:
        self.kind = kind
        self._builtin = dict(builtin)
        self._also = dict(also or {})
        self._rows: dict[str, Row] = {}

    def get(self, name: str, where: str = "") -> Row:
        """Return the row of this name. Raise HpxferError, which names the nearest legal one, if there is none.

        `where` is the file and key that gave the name, e.g. `sweep.yaml: model.gate`.
        """
        name = self.spelled(name)
        if name not in self:
            at = f"{where}: " if where else ""
            raise HpxferError(f"{at}unknown {self.kind} {shown(name)}; {nearest(name, self.names())}")
        if name not in self._rows:
            self._rows[name] = _imported(self._builtin[name])
        return self._rows[name]

    def spelled(self, name: str) -> str:
        """Return the name that another spelling stands for, and any other text as it is."""
        return name if name in self._rows else self._also.get(name, name)

    def names(self) -> tuple[str, ...]:
        """Return every name: first those of hpxfer, then those that users registered, each in order."""
        return (*self._builtin, *(name for name in self._rows if name not in self._builtin))

    def rows(self) -> tuple[Row, ...]:
        """Return every row, in the order of `names`. Imports them all."""
        return tuple(self.get(name) for name in self.names())

    def __contains__(self, name: object) -> bool:
        return name in self._builtin or name in self._rows or name in self._also

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __len__(self) -> int:
        return len(self.names())


class Registry(Rows[Row]):
    """Rows to which users add their own."""

    _every: ClassVar[list[Registry[Any]]] = []

    def __init__(self, kind: str, builtin: Mapping[str, str], also: Mapping[str, str] | None = None) -> None:
        super().__init__(kind, builtin, also)
        self._every.append(self)
        self._modules: dict[str, str] = {}

    def register(self, row: Row) -> Row:
        """Add a row of the user's under its name. Raise HpxferError if the name is no name, or is taken."""
        name: object = getattr(row, "name", None)
        if not isinstance(name, str) or _NAME.fullmatch(name) is None:
            raise HpxferError(
                f"{self.kind}: a row must have a name of letters, digits, '_', '-' and '.', got {shown(name)} of a "
                f"{type(row).__name__}"
            )
        if name in self.names():
            by = self._modules.get(name, "hpxfer")
            raise HpxferError(f"{self.kind} {shown(name)} is registered already, by {by}; choose another name")
        self._rows[name], self._modules[name] = row, _calling_module()
        return row

    def module(self, name: str) -> str | None:
        """Return the module that registered the row. Return None for a row of hpxfer."""
        return self._modules.get(name)

    def remove(self, name: str) -> None:
        """Take a row of the user's out again. A module that is loaded anew can then register it anew."""
        del self._rows[name], self._modules[name]

    @classmethod
    def registered_by(cls, owns: Callable[[str | None], bool]) -> dict[str, tuple[str, ...]]:
        """Return kind -> the names of its rows that were registered by a module for which `owns` is true."""
        found = {each.kind: tuple(name for name in each._modules if owns(each._modules[name])) for each in cls._every}
        return {kind: names for kind, names in found.items() if names}

    @classmethod
    def remove_module(cls, module: str) -> None:
        """Take out every row that a module registered, in every registry."""
        for each in cls._every:
            for name in [name for name, owner in each._modules.items() if owner == module]:
                each.remove(name)

    @contextmanager
    def registered(self, row: Row) -> Iterator[Row]:
        """Register a row for the length of a `with` block, e.g. in a test."""
        self.register(row)
        try:
            yield row
        finally:
            self.remove(row.name)


def _calling_module() -> str:
    """Return the name of the first module up the stack that is not hpxfer's: the one that registers a row."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals["__name__"].partition(".")[0] in ("hpxfer", "contextlib"):
        frame = frame.f_back
    return str(frame.f_globals["__name__"])
