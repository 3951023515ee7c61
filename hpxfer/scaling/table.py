"""What a parameterization is: one row per role, five monomials per row, and the source beside each row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields
from typing import Literal, get_args

from hpxfer.errors import HpxferError, nearest
from hpxfer.scaling.monomial import ONE, SYMBOLS, Monomial
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import DIMENSIONS, Shape

# Of a table, one per kind of optimizer: adam, sgd or muon. Where a column is asked for, muon may carry its options, as
# in `muon[scale=original]`: see `hpxfer.scaling.muon`.
Column = str
COLUMNS = ("adam", "sgd", "muon")
Regime = Literal["I", "II", "III"]
# What may differ from the base along an axis of a table. `scaling.coverage.MOVES` has what each covers.
AXES = (
    *("width", "depth", "experts", "active", "expert_ratio", "expert_width", "granularity", "shared", "groups"),
    *("dense_ratio", "batch", "duration"),
)
Conventions = Mapping[str, float | str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """The factors of one role, relative to the base shape.

    The `lr` of the role `router_bias` is that of the balancing rule. A model may train this bias instead: `trained_lr`
    is for a table in which its LR scales otherwise than the rule's rate.
    """

    role: str
    init_std: Monomial = ONE
    lr: Monomial = ONE
    eps: Monomial = ONE
    weight_decay: Monomial = ONE
    forward: Monomial = ONE
    source: str
    trained_lr: Monomial | None = None  # of a router_bias that the optimizer trains; None: `lr`

    def monomials(self) -> dict[str, Monomial]:
        """Return the five factors by name."""
        return {name: getattr(self, name) for name in FACTORS}


FACTORS = tuple(each.name for each in fields(Row) if each.name not in ("role", "source", "trained_lr"))


class MuonRow(Row):
    """The row of a matrix that Muon moves: `lr` is that under its scale sqrt(out/in), and follows under another one."""


@dataclass(frozen=True)
class Convention:
    """A point on which sources or public codes disagree: the default, and the other legal values."""

    default: float | str
    legal: tuple[float | str, ...] | tuple[Literal["between"], float, float]
    doc: str

    def allows(self, value: object) -> bool:
        """Return whether a value is legal."""
        if self.legal and self.legal[0] == "between":
            _, low, high = self.legal
            return isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high  # type: ignore[operator]
        return any(value == legal and isinstance(value, bool) == isinstance(legal, bool) for legal in self.legal)

    def values(self) -> tuple[float | str, ...]:
        """Return legal values: every value of a list, or the ends and the middle of a range."""
        if not self.legal or self.legal[0] != "between":
            return self.legal
        low, high = float(self.legal[1]), float(self.legal[2])
        return low, (low + high) / 2, high

    def spell(self) -> str:
        """Return the legal values as a reader would write them."""
        if self.legal and self.legal[0] == "between":
            return f"a number from {self.legal[1]:g} to {self.legal[2]:g}"
        return " | ".join(str(value) for value in self.legal)


@dataclass(frozen=True, kw_only=True)
class ByDesign:
    """What is larger by `size` than where all features learn maximally, by the account of a source."""

    size: Monomial
    learned: tuple[str, ...] = ()  # roles: what training adds to them
    changed: tuple[str, ...] = ()  # lookups, features and branches, e.g. `stream`, `attn_q` or `moe`: their change
    source: str


@dataclass(frozen=True, kw_only=True)
class Table:
    """A named parameterization. `rows[optimizer](conventions)` is a pure function that returns its rows."""

    name: str
    source: str
    axes: tuple[str, ...]  # what may differ from the base, of AXES
    adam_axes: tuple[str, ...] = ()  # further axes, which the source covers for Adam alone
    fixed: Mapping[str, str] = field(default_factory=dict)  # property of Shape that must not change -> the reason
    regime: Regime | None = None  # the way in which width, expert width and experts must grow together
    rows: Mapping[Column, Callable[[Conventions], tuple[Row, ...]]]
    conventions: Mapping[str, Convention] = field(default_factory=dict)
    route_scale: Monomial = ONE  # on gates that are normalized to sum to one
    one_minus_beta: Monomial = ONE  # on 1 - beta1 and 1 - beta2
    normalized_gate: bool = False  # the source's gates sum to one over the active experts
    constant_decay: bool = False  # the source keeps weight decay at one number; otherwise LR times decay stays
    eps_by_layout: bool = True  # eps follows the gradients of FFNs as the number and the size of experts change
    tied_experts: bool = False  # all experts of a layer start from the same draw
    doc: str
    # Everything else that is learned should keep its size.
    by_design: Callable[[Conventions], tuple[ByDesign, ...]] = lambda conventions: ()
    # The table of MSSP, Table B.1, whose limit training approaches under SGD. `hpxfer check` compares losses with it,
    # so that a table whose rows or draws were changed is found.
    limit: str | None = None

    def covers(self, axis: str, optimizer: Column) -> bool:
        """Return whether the source says how to scale along an axis."""
        return axis in self.axes or (optimizer == "adam" and axis in self.adam_axes)

    def require_legal(self) -> None:
        """Raise HpxferError unless axes, fixed properties and regime exist, and every column has legal rows.

        The rows are those under the default conventions, and under every other legal value of a single convention.
        """
        for axis in (*self.axes, *self.adam_axes):
            if axis not in AXES:
                raise HpxferError(f"parameterization {self.name}: unknown axis {axis!r}; {nearest(axis, AXES)}")
        if unknown := [name for name in self.fixed if not hasattr(Shape, name) and name not in DIMENSIONS]:
            raise HpxferError(
                f"parameterization {self.name}: fixed must name properties of a shape, got {unknown[0]!r}; "
                f"{nearest(unknown[0], [*DIMENSIONS, 'kappa', 'expert_ratio', 'dense_ratio'])}"
            )
        if self.regime not in (None, *get_args(Regime)):
            raise HpxferError(f"parameterization {self.name}: regime must be I, II or III, got {self.regime!r}")
        if not self.rows:
            raise HpxferError(f"parameterization {self.name}: rows must have a column for adam or sgd, got none")
        if "muon" in self.rows and "adam" not in self.rows:
            raise HpxferError(
                f"parameterization {self.name}: rows must have adam beside muon, which moves matrices only"
            )
        defaults = {key: convention.default for key, convention in self.conventions.items()}
        others = [(key, value) for key, convention in self.conventions.items() for value in convention.values()]
        for optimizer, column in self.rows.items():
            where = f"parameterization {self.name}, {optimizer}"
            if optimizer not in COLUMNS:
                raise HpxferError(f"{where}: a column must be {', '.join(COLUMNS)}; rename it in rows")
            _require_rows(where, column(defaults))
            for key, value in others:
                try:
                    rows = column({**defaults, key: value})
                except HpxferError:
                    continue  # the value excludes the default of another convention
                _require_rows(f"{where}, {key}={value}", rows)


def _require_rows(where: str, rows: Iterable[Row]) -> None:
    seen = set()
    for row in rows:
        if row.role not in ROLES:
            raise HpxferError(f"{where}: unknown role {row.role!r}; {nearest(row.role, ROLES)}")
        if row.role in seen:
            raise HpxferError(f"{where}: a role must have one row, got two for {row.role}; leave one out")
        seen.add(row.role)
        trained = {} if row.trained_lr is None else {"trained_lr": row.trained_lr}
        for name, factor in {**row.monomials(), **trained}.items():
            if not isinstance(factor, Monomial):
                raise HpxferError(
                    f"{where}: {row.role}: {name} must be a monomial such as width**-1, got {factor!r}; build it from "
                    "the symbols of hpxfer.scaling.monomial"
                )
            for symbol, _ in factor.exponents:
                if symbol not in SYMBOLS:
                    raise HpxferError(
                        f"{where}: {row.role}: {name}: unknown ratio {symbol!r}; {nearest(symbol, SYMBOLS)}"
                    )
