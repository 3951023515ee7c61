"""network_of: from the trials of one arm along a path of shapes to the infinite network that they approach, or why not.

A table is known by its numbers and never by its name, so that of a plug-in works as those of the papers do. The papers
write absolute powers of the dimensions. Those are the factors of a table relative to a base of ones, with every HP at
1. What a trial's numbers have beyond them is a constant per role, if the trials approach a limit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, get_args

from hpxfer.data import data_ref, open_data
from hpxfer.errors import HpxferError, joined, nearest, shown
from hpxfer.limit.network import Gate, Given, Network, Regime, Role, RouterBias, Style
from hpxfer.limit.seen import given_of
from hpxfer.scaling.evaluate import BaseInit, parameterization, resolve
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import UNIT, Shape
from hpxfer.spec import FIXED_BIAS_STD, LEARNED, SweepSpec
from hpxfer.trial import Expansion, Trial

# Constants of all shapes must agree to this relative error.
SAME = 1e-6
GATES: tuple[Gate, ...] = get_args(Gate)
# (do the experts grow, does the expert width grow) -> the regime
GROWING: dict[tuple[bool, bool], Regime] = {(False, True): "I", (True, False): "II", (True, True): "III"}
_OTHER = "take another axis, or a sweep along one regime"


class Constant(NamedTuple):
    """What a role has beyond the table: factors on its initial std and on its LR."""

    std: float
    rate: float


def network_of(trials: Sequence[Trial], where: str = "sweep") -> Network:
    """Return the network that trials approach: one trial per shape of a path, of one table and the same HPs.

    Raise HpxferError, which names `where`, if their numbers approach no limit that is solved.
    """
    path = sorted(trials, key=lambda trial: trial.shape.width)
    _require_alike(path, where)
    first, shape, options = path[0], path[0].shape, path[0].setting.mlp
    regime = _regime(path, where)
    style, constants = _matched(path, regime, where)
    sizes: dict[str, Any] = {"num_experts": shape.num_experts, "num_active": shape.num_active}
    if regime != "I":
        share, kappa = shape.num_active / shape.num_experts, shape.num_experts / shape.width
        sizes = {"active_share": share, "experts_per_width": kappa}
    if regime == "II":
        sizes["expert_width"] = shape.expert_width
    else:
        sizes["expert_ratio"] = shape.expert_width / shape.width
    return Network(
        regime=regime,
        parameterization=style,
        gate=next(gate for gate in GATES if gate == first.setting.gate),
        activation=options.activation,
        input_activation=options.input_activation,
        aggregation=options.aggregation,
        inverse_temperature=options.inverse_temperature,
        expert_matrices=1 if options.expert_matrices == 1 else 2,
        depth=shape.depth,
        router_bias=_router_bias(first),
        router_bias_std=_bias_std(first),
        init_mult={role: each.std for role, each in constants.items() if each.std != 1.0},
        lr_mult={role: each.rate for role, each in constants.items() if each.rate != 1.0},
        **sizes,
    )


def largest_instead(path: Sequence[Trial], where: str = "sweep") -> str | None:
    """Return why the largest shape of a path stands for the limit: a size stays that the limit has infinite.

    None if the limit itself is compared. Raise HpxferError, which names `where`, if shapes differ in more than width,
    experts and expert width.
    """
    if len(path) < 2:
        return None  # which is refused, as no limit is known by one shape
    first, residual = path[0].shape, path[0].setting.mlp.residual
    values = {name: {getattr(trial.shape, name) for trial in path} for name in ("num_experts", "expert_width")}
    stays = [f"{name} stays {getattr(first, name)}" for name, found in values.items() if len(found) == 1]
    if len({trial.shape.width for trial in path}) > 1:
        if not residual or not stays:
            return None
        why = f"{' and '.join(stays)}, and a residual network has its limit where width, experts and expert width grow"
    else:
        why = f"the width stays {first.width}, and the limits that are solved are those of an infinite width"
    _require_alike(path, where)
    for name in ("depth", "batch_tokens", "steps", "kappa"):
        if len(found := {getattr(trial.shape, name) for trial in path}) > 1:
            got = ", ".join(f"{each:g}" for each in sorted(found))
            raise HpxferError(f"{where}: {name} must be the same at every shape of the axis, got {got}; {_OTHER}")
    return why


def _require_alike(path: Sequence[Trial], where: str) -> None:
    """Raise HpxferError unless trials are of the networks whose limits are solved, and differ in shape alone."""
    for trial in path:
        if found := list(reasons(trial)):
            raise HpxferError(joined(f"{where}: {reason}" for reason in found))
    for trial in path[1:]:
        if difference := _difference(path[0], trial):
            raise HpxferError(f"{where}: {difference}")


@dataclass(frozen=True, kw_only=True)
class Claimed:
    """The network, and where the numbers or draws of the trials are not those of a path to it, in words."""

    network: Network
    differences: tuple[str, ...]


def claimed_network(trials: Sequence[Trial], claimed: Sequence[Trial], table: str, where: str = "limit") -> Claimed:
    """Return the network that `trials` should approach. `claimed` are the same trials under the table `table`.

    Both are one trial per shape of a path, ascending. What the numbers of the trials have beyond the table at every
    shape alike is a constant of the network. What changes along the path has no place in a limit: there the network has
    the table's own numbers, and networks that follow the trials miss it. Raise HpxferError, which names `where`, if the
    limit of `table` is not solved.
    """
    network = network_of(claimed, where)
    rows = [constants_of(trial, table) for trial in trials]
    init_mult, lr_mult = dict(network.init_mult), dict(network.lr_mult)
    for role in rows[0]:
        for known, values in zip((init_mult, lr_mult), zip(*(row[role] for row in rows), strict=True), strict=True):
            if _stays(values):
                known[role] = values[0]
    differences = [f"{change}, over {table}" for change in changes(trials, rows)]
    own, theirs = trials[0].structure().tied_experts, claimed[0].structure().tied_experts
    if own != theirs:
        drawn = {True: "one draw", False: "draws of their own"}
        differences.append(f"experts start from {drawn[own]}, and under {table} from {drawn[theirs]}")
    return Claimed(network=replace(network, init_mult=init_mult, lr_mult=lr_mult), differences=tuple(differences))


def limit_of_sweep(
    spec: SweepSpec, *, axis: str | None = None, arm: str | None = None, value: float | None = None
) -> tuple[Network, Given]:
    """Return the network that an arm approaches along an axis at a value of the HP, and what its first seed sees.

    By default these are the first arm, axis and value of the sweep. Raise HpxferError if no such limit is solved.
    """
    cells = [cell for cell in Expansion(spec, data_ref(spec.data)).cells() if cell.trial.seed == spec.seeds[0]]
    cells = [cell for cell in cells if cell.line == cells[0].line]
    for name, of, asked in (("axis", "axis", axis), ("arm", "parameterization", arm)):
        legal = dict.fromkeys(getattr(cell, of) for cell in cells)
        chosen = next(iter(legal)) if asked is None else asked
        if chosen not in legal:
            raise HpxferError(f"--{name}: must be one of the sweep's, got {shown(chosen)}; {nearest(chosen, legal)}")
        cells = [cell for cell in cells if getattr(cell, of) == chosen]
    values = dict.fromkeys(cell.trial.hps.get(cell.line) for cell in cells)
    lowest = next(iter(values)) if value is None else value
    if lowest not in values:
        raise HpxferError(f"--value: must be one of {', '.join(f'{one:g}' for one in values)}, got {lowest:g}")
    trials = [cell.trial for cell in cells if cell.trial.hps.get(cell.line) == lowest]
    network, first = network_of(trials, f"{spec.name}: {cells[0].parameterization} along {cells[0].axis}"), trials[0]
    return network, given_of(first, open_data(first.setting), first.setting.steps, has_bias=network.regime == "I")


def reasons(trial: Trial) -> Iterator[str]:
    """Yield why the limit of a trial's training is not solved."""
    setting, hps, shape = trial.setting, trial.hps, trial.shape
    if setting.family != "mlp":
        yield f"model.family: limits are solved of the family mlp, got {setting.family}; `hpxfer check` checks features"
        return
    if setting.optimizer != "sgd":
        yield (
            f"training.optimizer: must be sgd, got {setting.optimizer}: an update of Adam divides entry by entry, so "
            "it is not of low rank and its limit is not solved; train with sgd"
        )
    if setting.gate not in GATES:
        yield f"model.gate: must be one of {', '.join(GATES)}, got {setting.gate}: no limit of it is derived"
    for key, legal, got in (
        ("hps.momentum", 0, hps.momentum or None),
        ("training.weight_decay", 0, hps.weight_decay or None),
        ("training.gradient_clip", "none", setting.gradient_clip),
    ):
        if got is not None:
            yield f"{key}: must be {legal}, got {got:g}: the limit is that of plain SGD; take it out"
    if setting.precision != "float32":
        yield f"training.precision: must be float32, got {setting.precision}: rounding would pass for a deviation"
    if setting.mlp.router_bias in LEARNED and setting.mlp.router_bias_std and trial.structure().router_bias_std:
        yield "a learned router bias beside the table's own is not solved; keep one of the two"
    if shape.num_active == shape.num_experts:
        return
    if setting.balance.bias != "none" and hps.router_bias_lr:
        yield (
            f"model.balance.bias: must be none, got {setting.balance.bias}: its limit depends on the loads of finitely "
            "many samples and is not solved; take it out"
        )
    if not _has_bias(trial) and not trial.resolved()["router"].init_std:
        yield (
            f"model.ties: the router starts at zero and nothing tells its experts apart, so ties ({setting.ties}) "
            "decide which are active; a limit is solved once they have a bias: write model.mlp.router_bias: fixed"
        )


def _difference(first: Trial, other: Trial) -> str | None:
    """Return in what trials differ besides their shape and how ties are broken; None if in nothing."""
    for name, one in vars(first.setting).items():
        two = getattr(other.setting, name)
        if one != two and name not in ("ties", "batch_tokens", "steps", "final_window_steps"):
            return f"{name} must be the same at every shape of the axis, got {one} and {two}"
    if first.hps != other.hps:
        return f"the HPs must be the same at every shape, got {first.hps} and {other.hps}"
    own, others = ((each.tied_experts, each.router_bias_std) for each in (first.structure(), other.structure()))
    if own != others:
        return (
            "experts must start from one draw at every shape of the axis or at none, got both; name the table of the "
            "larger shapes with `model.mlp.tied_experts: true`, or take another base"
        )
    return None


def _regime(path: Sequence[Trial], where: str) -> Regime:
    """Return the regime of a path. Raise HpxferError if its limit is not solved for a model with these options."""
    first, shape = path[0], path[0].shape
    setting, options = first.setting, first.setting.mlp
    grown = _grown([trial.shape for trial in path], where)
    regime: Regime = "residual" if options.residual else grown
    if options.residual and grown != "III":
        raise HpxferError(
            f"{where}: model.mlp.residual: a residual network has a limit in regime III, where experts and expert width"
            f" grow with the width, got regime {grown}; take another axis, or residual: false"
        )
    if not options.residual and shape.depth != 1:
        raise HpxferError(f"{where}: depth must be 1 without a residual, got {shape.depth}: stacks are not solved")
    if regime in ("II", "III") and _router_bias(first) != "none":
        raise HpxferError(
            f"{where}: model.mlp.router_bias: a bias of the router is solved in regime I and in residual networks, got "
            f"regime {regime} and router_bias: {options.router_bias}, ties: {setting.ties}; write router_bias: none"
        )
    if regime == "I" and not _has_bias(first) and shape.num_active < shape.num_experts:
        raise HpxferError(
            f"{where}: model.mlp.router_bias: without a bias the router's first choice is a draw of each finite network"
            f", so {shape.num_active} of {shape.num_experts} experts have no single limit; write router_bias: fixed"
        )
    return regime


def _grown(path: Sequence[Shape], where: str) -> Regime:
    """Return the regime that ascending shapes follow: I, II or III. Raise HpxferError if they follow none.

    In a regime every dimension stays or grows by the factor of the width (MSSP, Table 1). The active experts grow with
    the experts.
    """
    first, widths = path[0], [shape.width for shape in path]
    if len(set(widths)) < 2:
        raise HpxferError(
            f"{where}: a limit needs shapes of at least two widths, got {first.width}; add larger ones to the axis"
        )
    grows = {}
    for name in ("depth", "batch_tokens", "steps", "num_experts", "num_active", "expert_width"):
        values, may_grow = [getattr(shape, name) for shape in path], name.startswith(("num_", "expert_"))
        stays = all(value == values[0] for value in values)
        grows[name] = not stays and all(v * first.width == values[0] * n for v, n in zip(values, widths, strict=True))
        if not stays and not (may_grow and grows[name]):
            legal = "stay or grow by the factor of the width" if may_grow else "be the same at every shape of the axis"
            got = ", ".join(f"{value} at width {width}" for value, width in zip(values, widths, strict=True))
            raise HpxferError(f"{where}: {name} must {legal}, got {got}; {_OTHER}")
    if grows["num_experts"] != grows["num_active"]:
        got = ", ".join(f"{shape.num_active} of {shape.num_experts}" for shape in path)
        raise HpxferError(f"{where}: the share of active experts must stay along the axis, got {got}; {_OTHER}")
    if (found := GROWING.get((grows["num_experts"], grows["expert_width"]))) is None:
        raise HpxferError(
            f"{where}: the axis must follow regime I, II or III, got one along which neither experts nor expert width "
            f"grow with the width; {_OTHER}"
        )
    return found


def _matched(path: Sequence[Trial], regime: Regime, where: str) -> tuple[Style, dict[Role, Constant]]:
    """Return the paper's table whose powers the trials follow, and their constants over it."""
    is_tied = path[0].structure().tied_experts
    if is_tied and regime != "III":
        raise HpxferError(
            f"{where}: model.mlp.tied_experts: experts that start from one draw are solved in regime III, got regime "
            f"{regime}; write tied_experts: false"
        )
    # In regime III only the draw differs. Elsewhere the tables differ in one std, and the trials' numbers decide.
    styles: tuple[Style, ...] = ("mssp", "mup")
    if regime in ("III", "residual"):
        styles = ("mssp",) if is_tied else ("mup",)
    tables = {f"{style}-{'iii' if regime == 'residual' else regime.lower()}": style for style in styles}
    found = {table: [constants_of(trial, table) for trial in path] for table in tables}
    wrong = {table: changes(path, rows) for table, rows in found.items()}
    nearest = min(tables, key=lambda table: len(wrong[table]))
    if not wrong[nearest]:
        return tables[nearest], found[nearest][0]
    raise HpxferError(
        f"{where}: the numbers of a table must approach a limit: those of {' or '.join(tables)}, times constants that "
        f"all shapes share, got over those of {nearest}: {'; '.join(wrong[nearest])}; take an arm that follows the "
        "regime of the axis"
    )


def constants_of(trial: Trial, table: str) -> dict[Role, Constant]:
    """Return the constants of a trial of the family `mlp` over the SGD column of `table`, by trained role.

    The LR of a trial is its base LR times its factor, and only the factor is compared. Forward multipliers fold into
    the matrices: y = m W x with std s and LR r is y = W x with std m s and LR m^2 r. A constant is infinite where the
    trial has a number and the table has zero.
    """
    options, numbers = trial.setting.mlp, trial.resolved()
    # A bias of the router counts as trained: a limit knows no balancing rule, which has a rate of its own.
    init = BaseInit(embedding_std=trial.setting.num_inputs**-0.5)
    paper = resolve(parameterization(table), UNIT, trial.shape, "sgd", HPs(lr=1.0), init, learned_bias_std=1.0)
    forward: dict[str, float] = {
        role: numbers[role].forward / paper[role].forward for role in ("embedding", "router", "readout", "expert_out")
    }
    # The table averages over the active experts. A gate that sums to one undoes that by its route scale.
    if options.aggregation == "none":
        forward["expert_out"] *= trial.globals().route_scale / trial.shape.num_active
    # An activation behind the single matrix of an expert keeps the factor of its output from folding into it. The
    # readout follows, which no activation separates from it.
    if options.expert_matrices == 1 and options.activation != "linear":
        forward["readout"] *= forward.pop("expert_out")
    roles: list[Role] = ["embedding", "router", "expert_out", "readout"]
    roles[2:2] = [] if options.expert_matrices == 1 else ["expert_in"]
    roles[2:2] = ["router_bias"] if options.router_bias in LEARNED else []
    out = {}
    for role in roles:
        own, ref, factor = numbers[role], paper[role], forward.get(role, 1.0)
        # A learned bias starts at the same draw everywhere, which the limit is given.
        std = 1.0 if role == "router_bias" else _over(factor * own.init_std, ref.init_std)
        out[role] = Constant(std, _over(factor**2 * own.lr / trial.hps.lr, ref.lr))
    return out


def _over(own: float, table: float) -> float:
    """Return own / table, which is 1 where both are zero."""
    if table:
        return own / table
    return math.inf if own else 1.0


def changes(path: Sequence[Trial], rows: Sequence[dict[Role, Constant]]) -> list[str]:
    """Return how the constants of the roles change along the path, in words; nothing if they stay."""
    out = []
    for role in rows[0]:
        for what, values in zip(("init std", "LR"), zip(*(row[role] for row in rows), strict=True), strict=True):
            if not _stays(values):
                ends = ((path[i].shape.width, values[i]) for i in (0, -1))
                out.append(f"{role} {what} " + " and ".join(f"{value:.4g} at width {width}" for width, value in ends))
    return out


def _stays(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) and math.isclose(value, values[0], rel_tol=SAME) for value in values)


def _has_bias(trial: Trial) -> bool:
    """Return whether something is added to the router's logits: drawn alike at every width, or trained."""
    options = trial.setting.mlp
    own = options.router_bias != "none" and options.router_bias_std > 0
    return own or trial.structure().router_bias_std > 0 or trial.setting.ties == "fixed_bias"


def _router_bias(trial: Trial) -> RouterBias:
    """Return the kind of bias that is added to the logits. What several sources add is the kind that changes most."""
    kind = trial.setting.mlp.router_bias
    if kind in LEARNED:
        return "learned"
    if not _has_bias(trial):
        return "none"
    return "schedule" if kind == "schedule" or trial.structure().router_bias_std > 0 else "fixed"


def _bias_std(trial: Trial) -> float:
    """Return the std of the bias over experts, from all that adds to it."""
    options = trial.setting.mlp
    own = options.router_bias_std if options.router_bias != "none" else 0.0
    tie = FIXED_BIAS_STD if trial.setting.ties == "fixed_bias" else 0.0
    return math.hypot(own, tie, trial.structure().router_bias_std) if _has_bias(trial) else Network.router_bias_std
