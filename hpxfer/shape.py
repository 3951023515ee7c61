"""Shape: the dimensions of a model, and the rules that they obey."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, nearest

# The grouped matrix product wants rows of whole 16-byte units in every precision; bfloat16 has 8 to a unit.
ROW_MULTIPLE = 8
MAX_DIM = 10**9


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """The dimensions of a model. Counts are `num_*`; everything else is a number of features.

    The fields with a default are read by parameterizations that scale them; 0 means "not there".
    """

    width: int  # features of the residual stream (n_embd)
    depth: int  # blocks
    num_experts: int  # experts a MoE layer
    num_active: int  # experts a token
    expert_width: int  # hidden features of one expert
    head_dim: int  # features of one attention head
    num_shared: int = 0
    shared_width: int = 0
    num_groups: int = 1
    dense_width: int = 0
    batch_tokens: int = 0
    steps: int = 0

    @property
    def num_heads(self) -> int:
        return self.width // self.head_dim

    @property
    def kappa(self) -> float:
        """Share of the experts that a token uses."""
        return self.num_active / self.num_experts

    @property
    def expert_ratio(self) -> float:
        """Expert hidden size in units of the width (alpha_ffn)."""
        return self.expert_width / self.width

    def label(self) -> str:
        """Return a short name, e.g. `w128 d2 E4A1 h128`."""
        return f"w{self.width} d{self.depth} E{self.num_experts}A{self.num_active} h{self.expert_width}"

    def dims(self) -> dict[str, int]:
        """Return the dimensions that are present, in field order."""
        return {name: value for name, value in asdict(self).items() if value != _DEFAULTS.get(name)}


REQUIRED = ("width", "depth", "num_experts", "num_active", "expert_width", "head_dim")
_DEFAULTS = {f.name: f.default for f in fields(Shape) if f.name not in REQUIRED}


def check_shape(shape: Shape) -> str | None:
    """Return why no model can have this shape, or None."""
    for name, value in asdict(shape).items():
        floor = 1 if name in REQUIRED or name == "num_groups" else 0
        if value < floor:
            return f"{name} must be at least {floor}, got {value}"
        if value > MAX_DIM:
            return f"{name} must be at most {MAX_DIM}, got {str(value)[:20]}..."
    if shape.width % shape.head_dim:
        return f"width must be a multiple of head_dim, got width {shape.width} and head_dim {shape.head_dim}"
    if shape.num_active > shape.num_experts:
        return f"num_active must be at most num_experts, got {shape.num_active} of {shape.num_experts}"
    return None


def check_trainable(shape: Shape) -> str | None:
    """Return why the built-in trainer cannot run this shape, or None."""
    if problem := check_shape(shape):
        return problem
    for name in ("width", "expert_width"):
        value = getattr(shape, name)
        if value % ROW_MULTIPLE:
            return f"{name} must be a multiple of {ROW_MULTIPLE} (rows of whole 16-byte units), got {value}"
    return None


def shape_from_mapping(data: Mapping[str, Any], where: str) -> Shape:
    """Return the Shape that `data` spells out; raise HpxferError naming `where` if it is none."""
    legal = {f.name for f in fields(Shape)}
    for key, value in data.items():
        if key not in legal:
            raise HpxferError(f"{where}: {key}: unknown key; {nearest(key, legal)}")
        if not isinstance(value, int) or isinstance(value, bool):
            raise HpxferError(f"{where}: {key}: must be a whole number, got {value!r}")
    missing = [name for name in REQUIRED if name not in data]
    if missing:
        raise HpxferError(f"{where}: must give {', '.join(missing)}")
    shape = Shape(**data)
    if problem := check_shape(shape):
        raise HpxferError(f"{where}: {problem}")
    return shape


def load_shape(path: str | Path) -> Shape:
    """Return the Shape in a JSON file `{"width": ..., "depth": ..., ...}`."""
    try:
        data = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HpxferError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise HpxferError(f"{path}: must hold one JSON object of dimensions, got {type(data).__name__}")
    return shape_from_mapping(data, str(path))
