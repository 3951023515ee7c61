"""The evaluator: from a table and two shapes to the factors of every role, and with base HPs to absolute numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.monomial import ZERO
from hpxfer.scaling.muon import kind_of, moves, muon_of
from hpxfer.scaling.roles import ROLES, fan_in_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column, Conventions, MuonRow, Row, Table
from hpxfer.scaling.tables import OWN, is_known, table_of


@dataclass(frozen=True, kw_only=True)
class BaseInit:
    """How the base model starts: matrices by fan-in or by a constant std, embedding and position by constants.

    `stds` are (role, std) of single roles in place of that, such as those of the kind `input`, which have no other.
    `init_scale` multiplies the std of the matrices, or of `all`: that of inputs, embedding and position too.
    """

    matrices: Literal["fan_in", "constant"] = "fan_in"
    matrix_std: float = 0.02  # read if matrices == "constant"
    embedding_std: float = 0.02
    position_std: float = 0.02
    scale_of: Literal["matrices", "all"] = "matrices"
    stds: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True, kw_only=True)
class GlobalValues:
    """The numbers of a shape that belong to no single role."""

    route_scale: float  # multiplies gates that sum to one, and no plain sigmoid gate
    beta1: float
    beta2: float


def base_init_std(role: str, base: Shape, init: BaseInit, hps: HPs) -> float:
    """Return the init std of a role at the base shape. It is 0 for roles that start at exact ones or zeros."""
    mult = hps.get(f"{role}.init_mult")
    of_embeddings = hps.init_scale if init.scale_of == "all" else 1.0
    own = dict(init.stds).get(role)
    match ROLES[role]:
        case "matrix":
            fan_in = getattr(reference(base), fan_in_dim(role))
            std = init.matrix_std if init.matrices == "constant" else (fan_in**-0.5 if fan_in else 0.0)
            return float(hps.init_scale * (std if own is None else own) * mult)
        case "input":
            return (own or 0.0) * of_embeddings * mult
        case "embedding":
            return init.embedding_std * of_embeddings * mult
        case "position":
            return init.position_std * of_embeddings * mult
        case "ones" | "zeros":
            return 0.0


def base_forward(role: str, base: Shape, hps: HPs) -> float:
    """Return the factor by which the base block multiplies the output of this role.

    A block adds each branch to the residual stream, times `residual_scale`. A MoE layer also averages: it multiplies
    the sum of its shared and active experts by 1/num_active of the base. At other shapes the parameterization decides
    how to average. If the base has no dense FFN, a dense FFN takes over the factor of the base's experts. All of it is
    multiplied by the `forward_mult` of the role.
    """
    mult = hps.get(f"{role}.forward_mult")
    match role:
        case "attn_out":
            return hps.residual_scale * mult
        case "dense_out" if base.dense_width:
            return hps.residual_scale * mult
        case "expert_out" | "shared_out" | "dense_out":
            return hps.residual_scale / reference(base).num_active * mult
        case _:
            return mult


def resolve(
    choice: Parameterization,
    base: Shape,
    target: Shape,
    optimizer: Column,
    hps: HPs,
    init: BaseInit,
    *,
    learned_bias_std: float | None = None,
) -> dict[str, Multipliers]:
    """Return role -> absolute init std, peak LR, eps, weight decay and forward multiplier at `target`.

    Under Muon, the roles that AdamW moves have the base LR `adamw_lr`, and the eps of the others is of no use. The `lr`
    of `router_bias` is the rate of the balancing rule. With `learned_bias_std` the optimizer trains the bias,
    which starts at this std at every shape, and has an LR as other roles do. The forward multiplier of a branch is the
    whole factor of its output: residual_scale times 1/num_active of the base times `forward_mult` times the factor of
    the table.
    """
    factors = evaluate(choice, base, target, optimizer, trained_bias=learned_bias_std is not None)
    out = {}
    for role, factor in factors.items():
        learned = role == "router_bias" and learned_bias_std is not None
        by_adamw = muon_of(optimizer) is not None and not moves(optimizer, role)
        lr = hps.adamw_lr if by_adamw else hps.lr
        if role == "router_bias" and not learned:
            lr = hps.router_bias_lr
        out[role] = Multipliers(
            init_std=learned_bias_std or 0.0 if learned else base_init_std(role, base, init, hps) * factor.init_std,
            lr=lr * hps.get(f"{role}.lr_mult") * factor.lr,
            eps=hps.eps * factor.eps,
            weight_decay=hps.weight_decay * factor.weight_decay,
            forward=base_forward(role, base, hps) * factor.forward,
        )
    return out


def resolve_globals(choice: Parameterization, base: Shape, target: Shape, hps: HPs) -> GlobalValues:
    """Return the route scale and the betas at `target`. Raise HpxferError if a beta leaves [0, 1).

    The route scale of the base is its num_active. Gates that sum to one then have the size of sigmoid gates, about 1.
    """
    factors = evaluate_globals(choice, base, target)

    def beta(name: str) -> float:
        value = 1 - (1 - hps.get(name)) * factors.one_minus_beta
        if not 0 <= value < 1:
            raise HpxferError(
                f"{choice.name}: {name} must be in [0, 1), got {value:g}: 1 - {name} is {1 - hps.get(name):g} at the "
                f"base and grows by {factors.one_minus_beta:g} at {target.label(schedule=True)}; take a larger {name}, "
                "or stay nearer to the base's batch and duration"
            )
        return float(value)

    # Where nothing changes, 1 - (1 - beta) is not computed: it could differ from beta in the last bit.
    still = factors.one_minus_beta == 1.0
    return GlobalValues(
        route_scale=reference(base).num_active * factors.route_scale,
        beta1=hps.beta1 if still else beta("beta1"),
        beta2=hps.beta2 if still else beta("beta2"),
    )


# The source of a row of `router_bias` in a model that trains it. The tables speak of the balancing rule.
TRAINED_BIAS = "trained, from the same draw at every width"


@dataclass(frozen=True, kw_only=True)
class Multipliers:
    """The five numbers of a role: factors relative to the base, or absolute values after `resolve`."""

    init_std: float
    lr: float
    eps: float
    weight_decay: float
    forward: float

    def __mul__(self, other: Multipliers) -> Multipliers:
        """Return the product, number by number."""
        return Multipliers(**{name: value * getattr(other, name) for name, value in vars(self).items()})


@dataclass(frozen=True, kw_only=True)
class Globals:
    """The factors relative to the base that belong to no single role."""

    route_scale: float  # on gates that are normalized to sum to one
    one_minus_beta: float  # on 1 - beta1 and 1 - beta2


@dataclass(frozen=True, kw_only=True)
class Structure:
    """What a parameterization changes apart from numbers. Such a model differs at the base shape too."""

    tied_experts: bool = False  # all experts of a layer start from the same draw, and are independent afterwards
    router_bias_std: float = 0.0  # of the shared router-bias schedule; 0 is none


@dataclass(frozen=True, kw_only=True)
class Parameterization:
    """A table and the value of each of its conventions. `parameterization` makes it."""

    name: str
    conventions: tuple[tuple[str, float | str], ...] = ()

    @property
    def table(self) -> Table:
        return table_of(self.name)

    @property
    def is_own(self) -> bool:
        """Whether it is an arm of a user's own trainer, which decides by itself how to scale."""
        return self.name.startswith(OWN)

    def label(self) -> str:
        """Return the name and the conventions that differ from the default, e.g. `completep[depth_alpha=0.5]`."""
        changed = [f"{key}={value}" for key, value in self.changed_conventions().items()]
        return self.name + (f"[{','.join(changed)}]" if changed else "")

    def changed_conventions(self) -> dict[str, float | str]:
        """Return the conventions that are not the default. Of a table that is not registered here, return all given."""
        known = self.table.conventions if is_known(self.name) else {}
        return {key: value for key, value in self.conventions if key not in known or value != known[key].default}

    def structure(self) -> Structure:
        """Return what differs from the plain model apart from numbers."""
        std = float(dict(self.conventions).get("router_bias_std", 0.0))
        return Structure(tied_experts=self.table.tied_experts, router_bias_std=std)

    def zero_router(self, optimizer: Column) -> bool:
        """Return whether routers start at exact zero, with nothing added, so that all experts are equal at first."""
        rows = self.rows(optimizer) if is_known(self.name) and kind_of(optimizer) in self.table.rows else ()
        is_zero = any(row.role == "router" and row.init_std == ZERO for row in rows)
        return is_zero and not self.structure().router_bias_std

    def rows(self, optimizer: Column, *, trained_bias: bool = False) -> tuple[Row, ...]:
        """Return the rows for an optimizer. Raise HpxferError if the source has none.

        The row of `router_bias` is that of the balancing rule or, with `trained_bias`, of a bias that is trained.
        """
        kind, conventions = kind_of(optimizer), dict(self.conventions)
        column = self.table.rows.get(kind)
        if column is None:
            legal = ", ".join(self.table.rows)
            raise HpxferError(f"parameterization {self.name}: the source has no {kind} column; it has: {legal}")
        try:
            rows = column(conventions)
            if kind == "muon" and not moves(optimizer, "router"):
                by_adam = {row.role: row for row in self.table.rows["adam"](conventions)}
                rows = tuple(by_adam[row.role] if row.role == "router" else row for row in rows)
        except HpxferError as error:
            raise HpxferError(f"parameterization {self.name}: {error}") from None
        return tuple(map(_trained, rows)) if trained_bias else rows


def parameterization(name: str, conventions: Conventions | None = None) -> Parameterization:
    """Return the named parameterization with a value for every convention. Raise HpxferError for an unknown name."""
    table = table_of(name)
    known = table.conventions
    chosen = {key: convention.default for key, convention in known.items()}
    for key, given in (conventions or {}).items():
        if key not in known:
            fix = nearest(key, known) if known else "it has none"
            raise HpxferError(f"parameterization {name}: unknown convention {shown(key)}; {fix}")
        value = "inf" if given == float("inf") else given
        if not known[key].allows(value):
            raise HpxferError(f"parameterization {name}: {key} must be {known[key].spell()}, got {shown(given)}")
        chosen[key] = float(value) if isinstance(value, int) else value
    choice = Parameterization(name=name, conventions=tuple(sorted(chosen.items())))
    for optimizer in table.rows:
        choice.rows(optimizer)  # raises now if two conventions exclude each other
    return choice


def reference(shape: Shape) -> Shape:
    """Return the shape with a counterpart for every dimension that it lacks, so that any two layouts have ratios.

    A dense FFN counts as a single expert that is always active, and as a FFN as wide as all active experts together. A
    missing shared expert counts as wide as a routed expert.
    """
    if not shape.num_experts:
        shape = replace(shape, num_experts=1, num_active=1, expert_width=shape.dense_width)
    return replace(
        shape,
        shared_width=shape.shared_width or shape.expert_width,
        dense_width=shape.dense_width or shape.active_width,
    )


def ratios(base: Shape, target: Shape) -> dict[str, float]:
    """Return target/base of every symbol of a monomial. A shape without batch and duration gives 1 for them."""
    new, old = reference(target), reference(base)

    def over(name: str) -> float:
        above, below = getattr(new, name), getattr(old, name)
        return above / below if above and below else 1.0

    width = over("width")
    return {
        "width": width,
        "depth": over("depth"),
        "experts": over("num_experts"),
        "active": over("num_active"),
        "expert_width": over("expert_width"),
        "expert_ratio": over("expert_width") / width,
        "active_width": over("active_width") / width,
        "shared_width": over("shared_width"),
        "dense_width": over("dense_width"),
        "dense_ratio": over("dense_width") / width,
        "batch": over("batch_tokens"),
        "duration": over("tokens"),
    }


def _trained(row: Row) -> Row:
    """Return the row for a model whose router bias is trained."""
    if row.role != "router_bias":
        return row
    return replace(row, lr=row.lr if row.trained_lr is None else row.trained_lr, source=TRAINED_BIAS)


def evaluate(
    choice: Parameterization, base: Shape, target: Shape, optimizer: Column = "adam", *, trained_bias: bool = False
) -> dict[str, Multipliers]:
    """Return role -> factors of `target` relative to `base`. `trained_bias` is as in `Parameterization.rows`."""
    at, muon, out = ratios(base, target), muon_of(optimizer), {}
    for row in choice.rows(optimizer, trained_bias=trained_bias):
        beyond = 1.0
        if muon is not None and isinstance(row, MuonRow):
            beyond = muon.beyond(row.role, reference(base), reference(target))
        out[row.role] = Multipliers(
            init_std=row.init_std(at),
            lr=row.lr(at) / beyond,
            eps=row.eps(at),
            weight_decay=row.weight_decay(at) * beyond,
            forward=row.forward(at),
        )
    return out


def evaluate_globals(choice: Parameterization, base: Shape, target: Shape) -> Globals:
    """Return the factors of `target` relative to `base` that belong to no role."""
    at = ratios(base, target)
    return Globals(route_scale=choice.table.route_scale(at), one_minus_beta=choice.table.one_minus_beta(at))
