"""Shape: the dimensions of a model, and the rules for them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, cut, nearest, shown
from hpxfer.host import read_text

# The grouped matrix product needs rows of whole 16-byte units in every precision. A unit holds 8 bfloat16 numbers.
ROW_MULTIPLE = 8
MAX_DIM = 10**9
MAX_DEPTH = 10_000  # blocks. Deeper models take long to plan, and nobody trains one
MAX_TOKENS = 2**53  # of a run. Up to here a float holds every whole number
_MAX_DIGITS = 250

# A dimension of a user's own trainer: a number, or a name such as the kind of a norm.
OwnDim = int | float | bool | str
_OWN_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
MAX_OWN_TEXT = 200  # characters
MAX_OWN = 2**53  # up to here each language that reads JSON holds every whole number


@dataclass(frozen=True, kw_only=True, order=True)
class Shape:
    """The dimensions of a model and of its run. Counts are `num_*`; all others are numbers of features or tokens.

    0 means that the model has no such part. A dense model has no experts, most models have no shared experts, and a
    shape without a known schedule has no batch and no steps.

    >>> hpxfer.Shape(width=64, depth=2, num_experts=4, num_active=1, expert_width=64, head_dim=32).label()
    'w64 d2 E4A1 h64'
    """

    width: int  # features of the residual stream (n_embd)
    depth: int  # blocks
    num_experts: int = 0  # experts per MoE layer
    num_active: int = 0  # routed experts per token
    expert_width: int = 0  # hidden features per expert
    head_dim: int = 0  # features per attention head
    num_heads: int = 0  # attention heads; 0 means width / head_dim
    kv_heads: int = 0  # heads of keys and values; 0 means one for each attention head
    num_shared: int = 0  # shared experts, which every token uses
    shared_width: int = 0  # hidden features per shared expert
    num_groups: int = 1  # groups of experts
    dense_width: int = 0  # hidden features of a dense FFN
    batch_tokens: int = 0  # tokens per step
    steps: int = 0
    own: str = ""  # of a user's own trainer: its shape as canonical JSON, see `own_dims`

    @property
    def own_dims(self) -> dict[str, OwnDim]:
        """The shape of a user's own trainer, in that trainer's words. Empty for the built-in families."""
        found: dict[str, OwnDim] = json.loads(self.own) if self.own else {}
        return found

    @property
    def query_heads(self) -> int:
        """The number of attention heads."""
        return self.num_heads or (self.width // self.head_dim if self.head_dim else 0)

    @property
    def key_heads(self) -> int:
        """The number of heads of keys and values."""
        return self.kv_heads or self.query_heads

    @property
    def attention_width(self) -> int:
        """Features of the queries, and of what attention returns."""
        return self.query_heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of the keys, and as many of the values."""
        return self.key_heads * self.head_dim

    @property
    def kappa(self) -> float:
        """Share of the experts that a token uses. It is 1 for a dense model."""
        return self.num_active / self.num_experts if self.num_experts else 1.0

    @property
    def expert_ratio(self) -> float:
        """Expert hidden size in units of the width (alpha_ffn)."""
        return self.expert_width / (self.width or 1)  # a user's own shape may have no width

    @property
    def dense_ratio(self) -> float:
        """Hidden size of a dense FFN in units of the width."""
        return self.dense_width / (self.width or 1)

    @property
    def active_width(self) -> int:
        """Hidden features per FFN layer that a token uses (H_act): the dense FFN, or shared and active experts."""
        if not self.num_experts:
            return self.dense_width
        return self.num_shared * self.shared_width + self.num_active * self.expert_width

    @property
    def tokens(self) -> int:
        """Tokens of the run."""
        return self.batch_tokens * self.steps

    def label(self, *, schedule: bool = False) -> str:
        """Return a short name, e.g. `w128 d2 E4A1 h128`. With `schedule` it holds batch and steps: `... b512 t200`.

        A shape in the words of a user's own trainer is named by these: `d_model=128 n_layer=2`.
        """
        if self.own:
            out = " ".join(f"{name}={value}" for name, value in self.own_dims.items())
            return out + (f" b{self.batch_tokens} t{self.steps}" if schedule else "")
        out = f"w{self.width} d{self.depth}"
        if self.num_heads or self.kv_heads:
            out += f" H{self.query_heads}" + (f"/{self.kv_heads}" if self.kv_heads else "")
        if self.num_experts:
            out += f" E{self.num_experts}A{self.num_active} h{self.expert_width}"
        if self.num_shared:
            out += f" S{self.num_shared}x{self.shared_width}"
        if self.num_groups > 1:
            out += f" G{self.num_groups}"
        if self.dense_width:
            out += f" D{self.dense_width}"
        return out + (f" b{self.batch_tokens} t{self.steps}" if schedule else "")

    def dims(self) -> dict[str, int | str]:
        """Return the dimensions that the model has, in field order."""
        return {dim.name: value for dim in fields(self) if (value := getattr(self, dim.name)) != dim.default}


# The base from which a table's factors are the absolute powers of the dimensions that the papers write.
UNIT = Shape(width=1, depth=1, num_experts=1, num_active=1, expert_width=1)


def heads_of(width: int, head_dim: int, num_heads: int | None, kv_heads: int | None) -> dict[str, Any]:
    """Return num_heads and kv_heads as a shape holds them: 0 where they are what they would be without being given."""
    heads = 0 if num_heads is None or num_heads * head_dim == width else num_heads
    of_width = width // head_dim if head_dim else 0
    return {"num_heads": heads, "kv_heads": 0 if kv_heads in (None, heads or of_width) else kv_heads or 0}


def spell_own(dims: Mapping[str, OwnDim]) -> str:
    """Return the shape of a user's own trainer as `Shape.own` holds it."""
    return json.dumps(dict(dims), sort_keys=True, separators=(",", ":"), allow_nan=False) if dims else ""


DIMENSIONS = tuple(field.name for field in fields(Shape) if field.name != "own")
REQUIRED = ("width", "depth")
EXPERT_DIMS = ("num_experts", "num_active", "expert_width")


def check_shape(shape: Shape) -> str | None:
    """Return why no model can have this shape, or None. A shape of a user's own trainer may lack any dimension."""
    if shape.own:
        return tokens_problem(shape.steps, shape.batch_tokens)
    for name in DIMENSIONS:
        value = getattr(shape, name)
        floor = 1 if name in REQUIRED or name == "num_groups" else 0
        if value < floor:
            return f"{name} must be at least {floor}, got {shown(value)}"
        most = MAX_DEPTH if name == "depth" else MAX_DIM
        if value > most:
            return f"{name} must be at most {most}, got {shown(value)}"
    if problem := tokens_problem(shape.steps, shape.batch_tokens):
        return problem
    if not shape.head_dim:
        if shape.num_heads or shape.kv_heads:
            return "head_dim must be given with num_heads and kv_heads, got none; give it, or take these out"
        return _check_experts(shape)
    if not shape.num_heads and shape.width % shape.head_dim:
        return (
            f"width must be a multiple of head_dim, got width {shape.width} and head_dim {shape.head_dim}; "
            "take another head_dim, or give num_heads"
        )
    if shape.query_heads % shape.key_heads:
        return (
            f"kv_heads must divide num_heads, by default width / head_dim, got {shape.key_heads} and "
            f"{shape.query_heads} heads"
        )
    return _check_experts(shape)


def tokens_problem(steps: int, batch_tokens: int) -> str | None:
    """Return why no run has so many tokens, or None."""
    if steps > MAX_DIM:
        return (
            f"must make at most {MAX_DIM} steps, got {shown(steps)} steps of {batch_tokens} tokens; take larger batches"
        )
    if steps * batch_tokens > MAX_TOKENS:
        return f"must make at most {MAX_TOKENS} tokens, got {shown(steps)} steps of {batch_tokens}; take fewer"
    return None


def check_attention(base: Shape, target: Shape) -> str | None:
    """Return why nothing leads from `base` to `target`, or None: a shape with attention and one without it."""
    if bool(base.head_dim) == bool(target.head_dim):
        return None
    if base.head_dim:
        return f"must give head_dim, as the base does ({base.head_dim}), got none: a shape without attention"
    return f"must give no head_dim, as the base does not, got {target.head_dim}; take it out"


def _check_experts(shape: Shape) -> str | None:
    given = [name for name in EXPERT_DIMS if getattr(shape, name)]
    if given and len(given) < len(EXPERT_DIMS):
        missing = ", ".join(name for name in EXPERT_DIMS if name not in given)
        return f"num_experts, num_active and expert_width belong together, got no {missing}; give all, or none if dense"
    if not given and not shape.dense_width:
        return "must have experts (num_experts, num_active, expert_width) or a dense FFN (dense_width), got neither"
    if bool(shape.num_shared) != bool(shape.shared_width):
        return (
            f"num_shared and shared_width belong together, got num_shared {shape.num_shared} and shared_width "
            f"{shape.shared_width}; give both or none"
        )
    if not given and (shape.num_shared or shape.num_groups > 1):
        return "shared experts and groups belong to a MoE layer, got no num_experts; give experts, or leave them out"
    if shape.num_active > shape.num_experts:
        return f"num_active must be at most num_experts, got {shape.num_active} of {shape.num_experts}"
    if given and shape.num_experts % shape.num_groups:
        return f"num_experts must be a multiple of num_groups {shape.num_groups}, got {shape.num_experts}"
    return None


# Sizes of the rows of a model's matrices -> the keys that make them.
_ROWS = {
    **{name: name for name in ("width", "expert_width", "shared_width", "dense_width")},
    "attention_width": "num_heads x head_dim",
    "kv_width": "kv_heads x head_dim",
}


def check_trainable(shape: Shape, row_multiple: int = ROW_MULTIPLE) -> str | None:
    """Return why the built-in trainer cannot run this shape, or None. `row_multiple` is that of the model's family."""
    if (problem := check_shape(shape)) or shape.own:
        return problem
    for name, keys in _ROWS.items():
        value = getattr(shape, name)
        if value % row_multiple:
            return f"{keys} must be a multiple of {row_multiple} (rows of whole 16-byte units), got {value}"
    return None


def _check_schedule(shape: Shape) -> str | None:
    # With only one of the two, the number of tokens is unknown, and so are the factors of batch and duration.
    if bool(shape.batch_tokens) == bool(shape.steps):
        return None
    return (
        f"batch_tokens and steps belong together, got batch_tokens {shape.batch_tokens} and steps {shape.steps}; give "
        "both or none"
    )


def shape_from_mapping(data: Mapping[str, Any], where: str) -> Shape:
    """Return the Shape that `data` describes. Raise HpxferError, which names `where`, if it describes none."""
    legal = {f.name for f in fields(Shape)}
    for key, value in data.items():
        if key not in legal:
            raise HpxferError(f"{where}: {cut(str(key))}: unknown key; {nearest(str(key), legal)}")
        if key == "own":
            continue  # `own_problem` looks at it
        if not isinstance(value, int) or isinstance(value, bool):
            raise HpxferError(f"{where}: {key}: must be a whole number, got {shown(value)}")
    if "own" in data:
        data = {"width": 0, "depth": 0, **data, "own": _own_of(data["own"], f"{where}: own")}
    missing = [name for name in REQUIRED if name not in data]
    if missing:
        raise HpxferError(f"{where}: must give {', '.join(missing)}")
    shape = Shape(**data)
    if problem := check_shape(shape) or _check_schedule(shape):
        raise HpxferError(f"{where}: {problem}")
    return shape


def _own_of(given: Any, where: str) -> str:
    """Return the shape of a user's own trainer, given as a mapping or as canonical JSON, as `Shape.own` holds it."""
    with suppress(ValueError, RecursionError):
        given = json.loads(given) if isinstance(given, str) else given
    if (problem := own_problem(given)) is not None:
        raise HpxferError(f"{where}: {problem}")
    return spell_own(given)


def own_problem(given: Any) -> str | None:
    """Return why this is no shape of a user's own trainer, or None."""
    if not isinstance(given, Mapping) or not given:
        return f"must be a mapping of at least one dimension, such as {{d_model: 128}}, got {shown(given)}"
    for name, value in given.items():
        if not isinstance(name, str) or not _OWN_NAME.fullmatch(name):
            return f"a dimension's name must be letters, digits and '_', starting with a letter, got {shown(name)}"
        if not isinstance(value, int | float | str) or (isinstance(value, float) and not math.isfinite(value)):
            return f"{name} must be a finite number, true, false or a text, got {shown(value)}"
        if isinstance(value, int) and abs(value) > MAX_OWN:
            return f"{name} must be from -2^53 to 2^53, got {shown(value)}"
        if isinstance(value, str) and not (0 < len(value) <= MAX_OWN_TEXT and value.isprintable()):
            return f"{name} must be 1 to {MAX_OWN_TEXT} printable characters, got {shown(value)}"
    return None


def _whole_number(text: str) -> int:
    return int(text[:_MAX_DIGITS])  # a longer number is far too large all the same, and Python refuses to read it


def _each_key_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {shown(key)} stands twice; keep one")
        found[key] = value
    return found


def load_shape(path: str | Path) -> Shape:
    """Return the Shape in a JSON file such as `{"width": 128, "depth": 2, ...}`."""
    try:
        data = json.loads(read_text(path), parse_int=_whole_number, object_pairs_hook=_each_key_once)
    except OSError as error:
        raise HpxferError(f"{cut(str(path), 240)}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise HpxferError(f"{path}: not a JSON file: {error}") from None
    if not isinstance(data, dict):
        raise HpxferError(f"{path}: must hold one JSON object of dimensions, got {type(data).__name__}")
    return shape_from_mapping(data, str(path))
