"""What a parameterization is: a row a role, five monomials a row, the source beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from hpxfer.scaling.monomial import ONE, Monomial

Optimizer = Literal["adam", "sgd"]
Conventions = Mapping[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The factors of one role, relative to the base shape."""

    role: str
    init_std: Monomial = ONE
    lr: Monomial = ONE
    eps: Monomial = ONE
    weight_decay: Monomial = ONE
    forward: Monomial = ONE
    source: str


@dataclass(frozen=True)
class Convention:
    """A point on which sources or public codes disagree: the default and what else may be asked for."""

    default: float | str
    legal: tuple[float | str, ...] | tuple[Literal["between"], float, float]
    doc: str

    def allows(self, value: object) -> bool:
        if self.legal and self.legal[0] == "between":
            _, low, high = self.legal
            return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high  # type: ignore[operator]
        return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in self.legal)

    def spell(self) -> str:
        """Return the legal values as a reader would write them."""
        if self.legal and self.legal[0] == "between":
            return f"a number from {self.legal[1]:g} to {self.legal[2]:g}"
        return " | ".join(str(one) for one in self.legal)


@dataclass(frozen=True, kw_only=True)
class Table:
    """A named parameterization. `rows[optimizer](conventions)` is a pure function that returns its rows."""

    name: str
    source: str
    axes: tuple[str, ...]  # what may move from the base; the names are those of `scaling.coverage.MOVES`
    adam_axes: tuple[str, ...] = ()  # further ones, which the source covers for Adam alone
    fixed: Mapping[str, str] = field(default_factory=dict)  # property of Shape that must stay -> why
    regime: str | None = None  # the way in which width, expert width and experts must grow together
    rows: Mapping[Optimizer, Callable[[Conventions], tuple[Row, ...]]]
    conventions: Mapping[str, Convention]
    route_scale: Monomial = ONE  # on gates that are normalized to sum to one
    one_minus_beta: Monomial = ONE  # on 1 - beta1 and 1 - beta2
    normalized_gate: bool = False  # the source's gates sum to one over the active experts
    tied_experts: bool = False  # all experts of a layer start from the same draw
    doc: str

    def covers(self, axis: str, optimizer: Optimizer) -> bool:
        """Return whether the source says how to scale along an axis."""
        return axis in self.axes or (optimizer == "adam" and axis in self.adam_axes)
