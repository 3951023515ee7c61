"""Own factors: how the numbers of one tensor differ from those of its role. Pure.

The numbers of a role follow from the shape. Two things in a model differ from what a shape says: a fan-in that is not
the width (attention whose heads x head_dim is not the width, low-rank projections), and an embedding whose rows the
model multiplies.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING

from hpxfer.errors import HpxferError
from hpxfer.scaling.evaluate import Multipliers, reference
from hpxfer.scaling.muon import muon_of
from hpxfer.scaling.roles import fan_in_dim
from hpxfer.scaling.table import MuonRow

if TYPE_CHECKING:
    from hpxfer.recipe.resolved import Resolved

NONE = Multipliers(init_std=1.0, lr=1.0, eps=1.0, weight_decay=1.0, forward=1.0)
# These read the residual stream, whose size is the width.
INPUTS = ("attn_q", "attn_k", "attn_v")


@dataclass(frozen=True, kw_only=True)
class OwnFactors:
    """The factors of one tensor, and in words why it has them."""

    numbers: Multipliers = NONE
    note: str | None = None


def of_fan_in(at: Resolved, role: str, fan_in: int | None, base_fan_in: int | None) -> OwnFactors:
    """Return the factors of a matrix with this fan-in. `base_fan_in` is that of the base, if the role carries it.

    The init of the base is by the base's own fan-in. Where a table scales init, LR and weight decay with the width,
    it means the fan-in. Its eps follows the size of the gradient, which has no fan-in in it. Raises HpxferError if
    the fan-in of the base is not known.
    """
    if base_fan_in is not None and (fan_in is None or fan_in_dim(role) != "width"):
        raise HpxferError(
            f"{role}@{base_fan_in}: only the weight of a linear layer that is no output of an FFN can carry the "
            "fan-in of the base; leave it out"
        )
    base = at.recipe.base_shape
    nominal, base_nominal = at.target.width, reference(base).width
    if fan_in is not None and role in ("patch_in", "time_in"):
        return _of_input(at, role, fan_in)
    if fan_in is None or (base_fan_in is None and role not in (*INPUTS, "attn_out")):
        return OwnFactors()
    if base_fan_in is None and role in INPUTS:
        if fan_in == nominal:
            return OwnFactors()
        raise HpxferError(
            f"{role} must have the width {nominal} as its fan-in, got {fan_in}; a matrix with a fan-in of its own "
            f"carries that of the base, e.g. '{role}@{fan_in}' if it is {fan_in} there too"
        )
    at_target = fan_in / nominal
    # A base with a number of heads of its own starts attn_out by the fan-in that follows from it.
    known = reference(base).attention_width / base_nominal if role == "attn_out" else 1.0
    if base_fan_in:
        at_base = base_fan_in / base_nominal
    else:
        at_base = known if base.num_heads else at.recipe.file.model.attention_ratio or at_target
    if at_target == at_base == known == 1.0:
        return OwnFactors()
    row, grown = at.recipe.rows[role], at_target / at_base
    exponent = {name: dict(factor.exponents).get("width", 0.0) for name, factor in row.monomials().items()}
    numbers = Multipliers(
        init_std=((at_base / known) ** -0.5 if at.recipe.init.matrices == "fan_in" else 1.0)
        * grown ** exponent["init_std"],
        lr=grown ** exponent["lr"],
        eps=1.0,
        weight_decay=grown ** exponent["weight_decay"],
        forward=1.0,
    )
    muon = muon_of(at.recipe.column)
    if muon is not None and isinstance(row, MuonRow) and (muon.heads, role) != ("split", "attn_out"):
        # Until here s is that of the role's sizes. Of a head, the fan-in of an output is the size of the head.
        (_, base_out), (_, out) = (muon.size(role, reference(shape)) for shape in (base, at.target))
        own = muon.beyond_of((at_base * base_nominal, base_out), (fan_in, out))
        by = muon.beyond(role, reference(base), reference(at.target)) / own
        numbers = replace(numbers, lr=numbers.lr * by, weight_decay=numbers.weight_decay / by)
    if numbers == NONE:
        return OwnFactors()
    return OwnFactors(numbers=numbers, note=_spell(f"its fan-in is {fan_in}, and the width is {nominal}", numbers))


def _of_input(at: Resolved, role: str, fan_in: int) -> OwnFactors:
    """Return the factor on the init std of patches or times, where the base starts them by a fan-in of another size.

    The std says that fan-in: N^-1/2 of N numbers, which are cosines and sines of half the mean square for a time.
    """
    init = at.recipe.init
    std = dict(init.stds).get(role)
    if init.matrices != "fan_in" or not std:
        return OwnFactors()
    base = round((2 if role == "time_in" else 1) * std**-2)
    if fan_in == base:
        return OwnFactors()
    numbers = replace(NONE, init_std=math.sqrt(base / fan_in))
    return OwnFactors(numbers=numbers, note=_spell(f"its fan-in is {fan_in}, that of the base {base}", numbers))


def of_embedding(at: Resolved, scale: float, *, tied: bool) -> OwnFactors:
    """Return the factors of an embedding whose rows the model multiplies by `scale`.

    They undo it: the model sees the embedding, and each change of it, as the recipe says. Raises HpxferError if the
    readout is tied, which is not multiplied, and if it is not known what the base does.
    """
    base, rule = at.recipe.file.model.embedding_scale, f"multiplies the rows of its embedding by {scale:.6g}"
    if math.isclose(scale, 1.0 if base is None else base, rel_tol=1e-6):
        return OwnFactors()
    remove = "set the factor to 1, e.g. model.get_input_embeddings().embed_scale.fill_(1.0)"
    if base is None:
        raise HpxferError(
            f"the model {rule}, which changes its init and LR, and the recipe does not say by what its base does; "
            f"say it in Recipe.from_hps(..., embedding_scale=...), or {remove}"
        )
    if tied:
        raise HpxferError(
            f"the model {rule}, the recipe's base by {base:.6g}, and the readout is the same tensor, which no init "
            f"and LR suit at once; {remove}, or untie them"
        )
    by = scale / base
    twice = by**2 if at.recipe.column == "sgd" else by
    numbers = Multipliers(init_std=1 / by, lr=1 / twice, eps=by, weight_decay=twice, forward=1.0)
    return OwnFactors(numbers=numbers, note=_spell(f"the model {rule}, the base by {base:.6g}", numbers))


def _spell(why: str, numbers: Multipliers) -> str:
    names = ("init std", "LR", "eps", "weight decay")
    changed = [f"{name} x {by:.6g}" for name, by in zip(names, astuple(numbers), strict=False) if by != 1.0]
    return f"{why}: {', '.join(changed)}" if changed else why
