"""Conventions that several tables share, and their effect on rows. A table is written in the form of its source."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.scaling.monomial import ONE, WIDTHS, ZERO, Monomial
from hpxfer.scaling.roles import HIDDEN
from hpxfer.scaling.table import Column, Convention, Conventions, Row

WEIGHT_DECAY = Convention(
    default="source",
    legal=("source", "coupled", "independent"),
    doc="weight decay of decayed roles: as the source says; `coupled`: the inverse of the width part of the LR factor, "
    "so that LR times decay stays; `independent`: the same number at every shape. The matrices of Muon decay by as "
    "much in a step as they would under AdamW",
)
EPS = Convention(
    default="per_role",
    legal=("per_role", "global", "hidden"),
    doc="Adam's eps: per role, as gradients scale; `global`: one factor for all roles; `hidden`: per role for hidden "
    "matrices, and the base's number for embedding, position, gains, biases and readout, as Megatron-LM does",
)
EMBEDDINGS = Convention(
    default="untied",
    legal=("untied", "tied"),
    doc="`tied`: embedding and readout are one tensor, and the readout's row speaks of its forward multiplier alone",
)
DEPTH_LR = Convention(
    default="block",
    legal=("block", "matrices"),
    doc="which roles the depth part of the LR touches (depth_alpha < 1): all inside the blocks, or matrices only",
)
ROUTER_BIAS_STD = Convention(
    default=0.0,
    legal=("between", 0.0, 100.0),
    doc="shared router-bias schedule: normal numbers of this std are added to the router's logits, the same ones at "
    "every width (another model at the base shape too)",
)


def readout_convention(default: str) -> Convention:
    """Return the convention that decides where the factor of an output-like layer goes."""
    return Convention(
        default=default,
        legal=("forward", "init_lr"),
        doc="output-like layers scale by a forward multiplier, or by init std and LR; the two train alike",
    )


def init_convention(role: str) -> Convention:
    """Return the convention that lets a role start at zero."""
    return Convention(
        default="random",
        legal=("random", "zero"),
        doc=f"init of the {role}; `zero` is another model at the base shape too",
    )


def rescaled(row: Row, factor: Monomial, optimizer: Column) -> Row:
    """Return the row that trains in the same way with an additional `factor` in front of the weight (abc symmetry).

    With W = M w: (M, std, LR, eps) ~ (M q, std/q, LR/q, eps q) for Adam and (M q, std/q, LR/q^2) for SGD; decoupled
    decay shrinks w by LR times decay, which stays. (2203.03466, Lemma J.1.)
    """
    inverse = factor**-1
    by = inverse if optimizer == "adam" else inverse * inverse
    return replace(
        row,
        forward=row.forward * factor,
        init_std=row.init_std * inverse,
        lr=row.lr * by,
        eps=row.eps * factor if optimizer == "adam" else row.eps,
        weight_decay=row.weight_decay * by**-1,
    )


def with_readout(
    rows: Iterable[Row],
    conventions: Conventions,
    optimizer: Column,
    *,
    forward: Monomial,
    written: str,
    roles: Collection[str] = ("readout",),
) -> tuple[Row, ...]:
    """Return the rows with the output-like rows in the form that the convention `readout` asks for.

    `written` is the form in which the table is written, and `forward` is the multiplier of the form `forward`. A tied
    readout keeps only that multiplier.
    """
    asked = conventions["readout"]
    shift = ONE if asked == written else forward if asked == "forward" else forward**-1
    out = tuple(rescaled(row, shift, optimizer) if row.role in roles else row for row in rows)
    if conventions["embeddings"] != "tied":
        return out
    if asked != "forward":
        raise HpxferError(
            "embeddings: tied goes with readout: forward, got readout: init_lr; a tied tensor has no second init and LR"
        )
    if conventions.get("readout_init") == "zero":
        raise HpxferError(
            "embeddings: tied goes with readout_init: random, got readout_init: zero; a tied tensor starts as the "
            "embedding does"
        )
    embedding = next(row for row in out if row.role == "embedding")
    tied = replace(embedding, role="readout", source="tied: the embedding's numbers, but for the forward multiplier")
    return tuple(replace(tied, forward=row.forward) if row.role == "readout" else row for row in out)


# Role of a conditioned model -> the role of its class. Their sources: arXiv 2505.15270 by class, and its code.
_CLASSES = {
    **dict.fromkeys(("patch_in", "time_in", "label"), "embedding"),
    **dict.fromkeys(("time_out", "final_modulation", "modulation"), "attn_q"),
    "final_bias": "final_norm",
}


def with_conditioning(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return the rows, and those of a conditioned model: of patches, time, label and modulation.

    By the spectral condition each has the row of its class: an input that of the embedding, a hidden matrix that of
    `attn_q`, and the bias before the readout that of the gain there. The outputs of a modulation are a multiple of the
    width, which is no factor. A gradient outside of the blocks collects what L branches of 1/L each give, so that no
    power of the depth is in the rows of `time_out` and `final_modulation`.
    """
    out = tuple(rows)
    by_role = {row.role: row for row in out}
    for role, of_class in _CLASSES.items():
        row = by_role[of_class]
        changed: dict[str, Any] = {"role": role, "source": f"2505.15270 by class, as {of_class}: {row.source}"}
        if role in ("time_out", "final_modulation"):
            changed |= {name: without_depth(getattr(row, name)) for name in ("init_std", "lr", "eps", "weight_decay")}
        if role == "final_bias":
            changed["init_std"] = ZERO
        out += (replace(row, **changed),)
    return out


def without_depth(factor: Monomial) -> Monomial:
    """Return the factor without the power of the depth."""
    return factor.only([name for name, _ in factor.exponents if name != "depth"])


def with_weight_decay(rows: Iterable[Row], conventions: Conventions) -> tuple[Row, ...]:
    """Return the rows with the weight decay that the convention asks for. A role without decay stays without."""
    match conventions["weight_decay"]:
        case "coupled":
            return tuple(
                row if row.weight_decay == ZERO else replace(row, weight_decay=row.lr.only(WIDTHS) ** -1)
                for row in rows
            )
        case "independent":
            return tuple(row if row.weight_decay == ZERO else replace(row, weight_decay=ONE) for row in rows)
        case _:
            return tuple(rows)


def with_eps(rows: Iterable[Row], conventions: Conventions, single: Monomial) -> tuple[Row, ...]:
    """Return the rows with Adam's eps as the convention asks for: per role, `single`, or 1 outside hidden matrices."""
    match conventions["eps"]:
        case "global":
            return tuple(replace(row, eps=single) for row in rows)
        case "hidden":
            return tuple(row if row.role in HIDDEN else replace(row, eps=ONE) for row in rows)
        case _:
            return tuple(rows)
