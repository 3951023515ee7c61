"""The words and the order that figures share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol, TypeVar

from hpxfer.analysis.thresholds import CONTROL


class Placed(Protocol):
    """A result of one parameterization along one axis."""

    @property
    def axis(self) -> str: ...

    @property
    def parameterization(self) -> str: ...


P = TypeVar("P", bound=Placed)


def control_last(name: str) -> tuple[bool, str]:
    """Return the key that puts parameterizations in order, the control last."""
    return (name == CONTROL, name)


def along(placed: Iterable[P], axis: str) -> tuple[P, ...]:
    """Return what belongs to an axis, the control last."""
    found = [one for one in placed if one.axis == axis]
    return tuple(sorted(found, key=lambda one: control_last(one.parameterization)))


def listed(said: Sequence[str], num: int = 4) -> str:
    """Return phrases as one, the first few if they are many."""
    return ", ".join(said[:num]) + (f" and {len(said) - num} more" if len(said) > num else "")


def with_interval(value: float, low: float | None, high: float | None, form: str = "+.2f") -> str:
    """Return a number with its 95% interval, e.g. `+0.20 [-0.01, +0.41]`; an open end is `-`."""
    if low is None and high is None:
        return f"{value:{form}}"
    # No-break spaces keep it in one line of a title.
    ends = ",\u00a0".join("-" if end is None else f"{end:{form}}" for end in (low, high))
    return f"{value:{form}}\u00a0[{ends}]"


def why(reasons: Iterable[str | None], otherwise: str) -> str:
    """Return why there is no figure: the reasons, each once."""
    return "; ".join(dict.fromkeys(one for one in reasons if one)) or otherwise
