"""The frozen table of block sizes: `configs.json`, by architecture and class of shape. Nothing is tuned at run time.

Block sizes fix the order of sums, so the table's hash belongs to a result's provenance. `hpxfer bench tune` measures
candidates and writes a table. An entry is looked up by the shape of one trial, never by the number of stacked trials.
"""

from __future__ import annotations

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from hpxfer.kernels.usable import interpreted

TABLE_PATH = Path(__file__).with_name("configs.json")
# To write a part and to sum it costs about as much as so many iterations. No part is shorter.
_LEAST_ITERATIONS = 4
_MOST_PARTS = 16


@dataclass(frozen=True, kw_only=True)
class Product:
    """Blocks of a product of rows: `n` columns by `k` of the inner dimension."""

    n: int
    k: int
    warps: int
    stages: int
    registers: int | None = None  # the most that a thread may use; None leaves it to the compiler


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """Blocks of a gradient of matrices: `i` by `o` of the matrix, `n` rows per iteration."""

    i: int
    o: int
    n: int
    warps: int
    stages: int
    registers: int | None = None


@dataclass(frozen=True, kw_only=True)
class Config:
    """The block sizes of a class of shapes.

    The class holds dtypes of `dtype_bytes`, up to `max_rows` rows per group, and up to `max_features` features on the
    smaller side of the matrix. None is no bound.
    """

    dtype_bytes: int
    max_rows: int | None
    max_features: int | None
    m: int  # rows of a tile, equal in all products of a layer, which share a map of tiles
    product: Product  # plain products: down, the gradient of the input, dense layers
    up: Product  # one matrix and an activation
    gated: Product  # up with the two matrices of SwiGLU
    hidden: Product  # the gradient of the hidden features
    gradient: Gradient
    programs: int  # of a matrix gradient that run at a time: multiprocessors times the blocks that one of them takes
    # What multiplies in a layer of experts that need not be strict: our kernels, or F.grouped_mm (experts_library.py).
    products: Literal["triton", "library"] = "triton"

    def covers(self, dtype_bytes: int, rows: int, features: int) -> bool:
        return (
            dtype_bytes == self.dtype_bytes
            and (self.max_rows is None or rows <= self.max_rows)
            and (self.max_features is None or features <= self.max_features)
        )


def architecture(device: torch.device) -> str:
    """Return the name of the part of the table that is for this device."""
    if device.type != "cuda":
        return "interpreter" if interpreted() else "default"
    major = torch.cuda.get_device_capability(device)[0]
    return {8: "sm80", 9: "sm90"}.get(major, "default")


def find_config(device: torch.device, dtype: torch.dtype, rows: int, features: int) -> Config:
    """Return the entry for groups of `rows` rows on average and matrices with `features` on their smaller side."""
    return _find(architecture(device), dtype.itemsize, rows, features)


def table(text: str | None = None) -> dict[str, tuple[Config, ...]]:
    """Return architecture -> entries. The first entry that covers a shape is used. `text` is another table's JSON."""
    data = json.loads(TABLE_PATH.read_text(encoding="utf-8") if text is None else text)
    return {name: tuple(_config(entry) for entry in entries) for name, entries in data["architectures"].items()}


def config_hash() -> str:
    """Return 12 hex digits of the table's content."""
    data = json.loads(TABLE_PATH.read_text(encoding="utf-8"))["architectures"]
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:12]


def num_parts(config: Config, groups: int, rows: int, size_i: int, size_o: int) -> int:
    """Return the number of parts that the rows of a group are cut into in a matrix gradient, from the shape alone.

    The parts fill the places of the GPU in whole waves. For example, 4 groups of 16 blocks on 264 places get 4 parts,
    which are 256 programs: 5 parts would be 320 programs, of which 56 start when the others have ended.
    `groups` are those of one trial if bits must not depend on the stack, otherwise all. `rows` is the average per
    group.
    """
    matrices = groups * _ceil(size_i, config.gradient.i) * _ceil(size_o, config.gradient.o)
    iterations = _ceil(rows, config.gradient.n)

    def cost(parts: int) -> int:
        """Return the iterations until the last wave of programs ends."""
        waves = _ceil(matrices * parts, config.programs)
        return waves * (_ceil(iterations, parts) + _LEAST_ITERATIONS)

    # A last wave that is not full costs little when four full ones stand before it, and every part takes memory.
    most = min(rows // (_LEAST_ITERATIONS * config.gradient.n), _ceil(4 * config.programs, matrices), _MOST_PARTS)
    return min(range(1, max(1, most) + 1), key=cost)  # of the best, the least


@functools.cache
def _find(arch: str, dtype_bytes: int, rows: int, features: int) -> Config:
    for config in _cached_table()[arch]:
        if config.covers(dtype_bytes, rows, features):
            return config
    raise AssertionError(f"configs.json: {arch} has no entry for {dtype_bytes} bytes, {rows} rows, {features} features")


@functools.cache
def _cached_table() -> dict[str, tuple[Config, ...]]:
    return table()


def _config(entry: dict[str, Any]) -> Config:
    assert entry.get("products", "triton") in ("triton", "library"), entry["products"]
    blocks = {name: Product(**entry[name]) for name in ("product", "up", "gated", "hidden")}
    return Config(**{**entry, **blocks, "gradient": Gradient(**entry["gradient"])})


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
