"""Monomial: a product of powers of the ratios shape/base. Tables are written in these symbols."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Monomial:
    """`coefficient * product(ratio ** exponent)`. The coefficient is 1, or 0 for an exact zero."""

    exponents: tuple[tuple[str, float], ...] = ()
    coefficient: int = 1

    def __mul__(self, other: Monomial) -> Monomial:
        powers = dict(self.exponents)
        for name, exponent in other.exponents:
            powers[name] = powers.get(name, 0.0) + exponent
        return _monomial(powers, self.coefficient * other.coefficient)

    def __pow__(self, power: float) -> Monomial:
        assert self.coefficient or power > 0, "division by an exact zero"
        return _monomial({name: exponent * power for name, exponent in self.exponents}, self.coefficient)

    def only(self, names: Collection[str]) -> Monomial:
        """Return the part that consists of the named symbols."""
        return _monomial({name: exponent for name, exponent in self.exponents if name in names}, self.coefficient)

    def __call__(self, ratios: Mapping[str, float]) -> float:
        """Return the value at `ratios`, which maps the name of each ratio to shape/base."""
        value = float(self.coefficient)
        for name, exponent in self.exponents:
            value *= ratios[name] ** exponent
        return value

    def __str__(self) -> str:
        if not self.coefficient:
            return "0"
        return " ".join(f"{name}^{exponent:g}" if exponent != 1 else name for name, exponent in self.exponents) or "1"


def _monomial(powers: Mapping[str, float], coefficient: int) -> Monomial:
    if not coefficient:
        return Monomial((), 0)
    return Monomial(tuple((name, power) for name, power in powers.items() if power), coefficient)


def ratio(name: str) -> Monomial:
    """Return the symbol of a ratio."""
    return Monomial(((name, 1.0),))


ONE = Monomial()
ZERO = Monomial((), 0)

# Each symbol is target over base; `scaling.evaluate.ratios` computes the values.
width = ratio("width")
depth = ratio("depth")
experts = ratio("experts")
active = ratio("active")
expert_width = ratio("expert_width")
expert_ratio = ratio("expert_ratio")  # expert_width / width
active_width = ratio("active_width")  # H_act / width: shared and active experts, or the dense FFN
shared_width = ratio("shared_width")
dense_width = ratio("dense_width")
dense_ratio = ratio("dense_ratio")  # dense_width / width
batch = ratio("batch")  # tokens per step
duration = ratio("duration")  # tokens of the run

# Every symbol that a monomial may hold.
SYMBOLS = (
    *("width", "depth", "experts", "active", "expert_width", "expert_ratio", "active_width", "shared_width"),
    *("dense_width", "dense_ratio", "batch", "duration"),
)
# The symbols that count features. They make up the width part of a factor.
WIDTHS = ("width", "expert_width", "expert_ratio", "active_width", "shared_width", "dense_width", "dense_ratio")
