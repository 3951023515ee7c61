"""Muon in a table: which roles it moves, the scales of its update, and its rows from those of AdamW.

Muon replaces the gradient of a matrix by the nearest semi-orthogonal matrix X and steps by lr s X. Public codes
disagree on the scale s, a function of the matrix's sizes `in` and `out`:

    spectral           sqrt(out/in)            Dion, ArchScale, and Megatron's unit_rms_norm
    original           sqrt(max(1, out/in))    Keller Jordan, and torch.optim.Muon by default
    match_rms_adamw    0.2 sqrt(max(in, out))  Moonlight and Kimi K2, and torch.optim.Muon by this name

The spectral condition asks that a matrix changes what it puts out by as much as under AdamW (arXiv 2310.17813). Adam's
update is low-rank, so that its spectral norm is lr_adam sqrt(in out), and that of Muon is lr s. Hence, for any table,

    lr_muon * s = lr_adam * sqrt(in * out)

or lr_muon = lr_adam * fan-in under `spectral`. Under another scale the LR is divided by what s has beyond sqrt(out/in),
at the target over at the base. Weight decay multiplies by the LR without s, as in all public codes, and keeps the share
that a step under AdamW takes.

All other roles are AdamW's, with the LR `adamw_lr`: embedding, position, readout, gains, biases and, by default, the
router. An optimizer is named `muon`, or with options as a table is: `muon[scale=original,router=muon]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import lru_cache

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.scaling.monomial import ONE, dense_ratio, dense_width, expert_ratio, expert_width, shared_width, width
from hpxfer.scaling.roles import HIDDEN, fan_in_dim, fan_out_dim
from hpxfer.scaling.shape import Shape
from hpxfer.scaling.table import Column, Conventions, MuonRow, Row

NAME = "muon"
MOMENTUM = 0.95  # of every public code
# Scale -> its formula, and its value for a matrix of (in, out) features.
SCALES: dict[str, tuple[str, Callable[[float, float], float]]] = {
    "spectral": ("sqrt(out/in)", lambda fan_in, fan_out: math.sqrt(fan_out / fan_in)),
    "original": ("sqrt(max(1, out/in))", lambda fan_in, fan_out: math.sqrt(max(1.0, fan_out / fan_in))),
    "match_rms_adamw": ("0.2 sqrt(max(in, out))", lambda fan_in, fan_out: 0.2 * math.sqrt(max(fan_in, fan_out))),
}
LEGAL = {"scale": tuple(SCALES), "heads": ("joint", "split"), "router": ("adamw", "muon")}
MEASURED = "Muon: 2512.05620 Table 1, Figs. 2-6"
DERIVED = "Muon derived here: spectral condition"
OPEN = f"{DERIVED}; open, as nobody measured a router under Muon"
# What 2512.05620 measures: a dense transformer whose branches are divided by the depth.
DENSE = ("attn_q", "attn_k", "attn_v", "attn_out", "dense_in", "dense_gate", "dense_out")
# Dimension that is a fan-in -> its ratios, in the symbols that a table may use.
_FAN_INS = {
    "expert_width": (expert_width, width * expert_ratio),
    "dense_width": (dense_width, width * dense_ratio),
    "shared_width": (shared_width,),
}


@dataclass(frozen=True, kw_only=True)
class Muon:
    """The options of Muon. With `heads` split, each head of queries, keys, values and output is a matrix of its own."""

    scale: str = "spectral"
    heads: str = "joint"
    router: str = "adamw"

    @property
    def label(self) -> str:
        """The name of the optimizer, with the options that differ from the default."""
        values = vars(self)
        changed = [f"{one.name}={values[one.name]}" for one in fields(self) if values[one.name] != one.default]
        return NAME + (f"[{','.join(changed)}]" if changed else "")

    @property
    def formula(self) -> str:
        """The scale in words of a matrix's sizes."""
        return SCALES[self.scale][0]

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles whose matrices it moves."""
        return tuple(role for role in HIDDEN if role != "router" or self.router == "muon")

    def size(self, role: str, shape: Shape) -> tuple[float, float]:
        """Return (in, out) of the matrix of a role that is orthogonalized by itself."""
        fan_in, fan_out = (float(getattr(shape, name)) for name in (fan_in_dim(role), fan_out_dim(role)))
        if self.heads == "split" and shape.head_dim and role.startswith("attn"):
            return (shape.head_dim, fan_out) if role == "attn_out" else (fan_in, shape.head_dim)
        return fan_in, fan_out

    def factor(self, fan_in: float, fan_out: float) -> float:
        """Return s of a matrix."""
        return SCALES[self.scale][1](fan_in, fan_out)

    def beyond(self, role: str, base: Shape, target: Shape) -> float:
        """Return what divides the LR of a role: s over sqrt(out/in), at the target over at the base.

        It is 1 under `spectral`, but for an output matrix with split heads: their updates add up, and the fan-in of the
        spectral condition is that of a head. So the LR is also divided by the number of heads.
        """
        old, new = self.size(role, base), self.size(role, target)
        heads = [
            getattr(shape, fan_in_dim(role)) / size[0] if size[0] else 1.0
            for shape, size in ((base, old), (target, new))
        ]
        return self.beyond_of(old, new) * heads[1] / heads[0]

    def beyond_text(self, role: str) -> tuple[str, str]:
        """Return in words what multiplies the LR of a role beside its monomial, and its decay; empty where none."""
        parts = [] if self.scale == "spectral" else [("sqrt(out/in)/s", "s/sqrt(out/in)")]
        if self.heads == "split" and role == "attn_out":
            parts.append(("1/heads", "heads"))
        return " ".join(of_lr for of_lr, _ in parts), " ".join(of_decay for _, of_decay in parts)

    def beyond_of(self, base: tuple[float, float], target: tuple[float, float]) -> float:
        """Return the ratio of s over sqrt(out/in) of two matrices with these (in, out); 1 where a model lacks them."""
        if self.scale == "spectral" or not all((*base, *target)):
            return 1.0
        of_target, of_base = (self.factor(*size) / math.sqrt(size[1] / size[0]) for size in (target, base))
        return of_target / of_base


@lru_cache(maxsize=256)
def muon_of(optimizer: str) -> Muon | None:
    """Return the options in the name of an optimizer, or None if it is another one.

    Raise HpxferError for an option that Muon does not have.
    """
    name, bracket, rest = optimizer.partition("[")
    if name != NAME:
        return None
    if not bracket:
        return Muon()
    where, given = f"optimizer {shown(optimizer)}", {}
    if not rest.endswith("]"):
        raise HpxferError(f"{where}: must be written as {NAME}[KEY=VALUE,...]")
    for part in rest[:-1].split(","):
        key, _, value = (text.strip() for text in part.partition("="))
        if key not in LEGAL:
            raise HpxferError(f"{where}: unknown option {shown(key)}; {nearest(key, LEGAL)}")
        if value not in LEGAL[key]:
            raise HpxferError(f"{where}: {key} must be {' | '.join(LEGAL[key])}, got {shown(value)}")
        if key in given:
            raise HpxferError(f"{where}: {key} must be given once, got it twice")
        given[key] = value
    return Muon(**given)


def spelled(optimizer: str) -> str:
    """Return the name of an optimizer in one spelling: without options that are the default, and in order."""
    muon = muon_of(optimizer)
    return optimizer if muon is None else muon.label


def kind_of(optimizer: Column) -> str:
    """Return the column without its options: adam, sgd or muon."""
    return optimizer.partition("[")[0]


def moves(optimizer: Column, role: str) -> bool:
    """Return whether the optimizer moves the matrices of a role by Muon."""
    muon = muon_of(optimizer)
    return muon is not None and role in muon.roles


def by(optimizer: Column, role: str) -> str:
    """Return which part of Muon moves a role, `muon` or `adamw`; nothing under another optimizer."""
    return "" if muon_of(optimizer) is None else NAME if moves(optimizer, role) else "adamw"


def with_muon(adam: Callable[[Conventions], tuple[Row, ...]]) -> dict[Column, Callable[[Conventions], tuple[Row, ...]]]:
    """Return the columns adam and muon of a table: Muon's rows follow from those of Adam by the spectral condition."""
    return {"adam": adam, NAME: lambda conventions: tuple(map(_derived, adam(conventions)))}


def _derived(row: Row) -> Row:
    if row.role not in HIDDEN:
        return row
    fan_ins = _FAN_INS.get(fan_in_dim(row.role), (width,))
    fan_in = min(fan_ins, key=lambda ratio: len((row.lr * ratio).exponents))  # as the table spells it
    lr = row.lr * fan_in
    is_measured = row.role in DENSE and lr.only(("width", "depth")) == ONE
    source = OPEN if row.role == "router" else MEASURED if is_measured else DERIVED
    changed = {"lr": lr, "eps": ONE, "weight_decay": row.weight_decay * fan_in**-1, "source": f"{row.source}; {source}"}
    return MuonRow(**{**vars(row), **changed})
