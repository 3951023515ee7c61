"""Launchers of the Triton grouped products: they make the outputs and choose the grid from shapes alone.

Letters: N rows, G groups, I input features, O output features, C columns, P parts of a group's rows. Every tensor is
contiguous, except that a matrix may be the transpose of a contiguous matrix.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from hpxfer.kernels.backend import launch
from hpxfer.kernels.configs import Config, Gradient, Product, num_parts
from hpxfer.kernels.usable import interpreted

# Tiles that use a block of columns one after the other.
_SWIZZLE = 8
_BLOCK = 1024
_BLOCK_C = 64
_ROW_UNIT = 8
# The groups whose tiles one program writes, and how many tiles it writes at a time.
_GROUPS, _STORED = 64, 2048


class Tiles(NamedTuple):
    """How tiles of `m` rows cover the groups. The host knows only a bound on their number."""

    group: Tensor  # [tiles] int32, -1 after the last tile
    row: Tensor  # [tiles] int32, first row
    ends: Tensor  # [G] int32
    m: int

    @property
    def number(self) -> int:
        return self.group.shape[0]


def tiles_of(ends_G: Tensor, num_rows: int, m: int) -> Tiles:
    """Return the tiles of groups that end at `ends`."""
    from hpxfer.kernels.tiles_triton import map_tiles

    num_groups = ends_G.shape[0]
    number = min(-(-num_rows // m) + num_groups, num_rows)
    group, row = (ends_G.new_empty(number) for _ in range(2))
    block = min(power_of_2(num_groups), _GROUPS)
    launch(
        map_tiles,
        (-(-num_groups // block) + 1 if number else 0,),
        *(ends_G, group, row, num_groups, number),
        BLOCK_M=m,
        BLOCK_G=block,
        BLOCK_T=_STORED // block,
        BLOCK=_BLOCK,
    )
    return Tiles(group, row, ends_G, m)


def product(
    x_NI: Tensor,
    w_GIO: Tensor,
    tiles: Tiles,
    blocks: Product,
    *,
    out_dtype: torch.dtype | None = None,
    second: tuple[Tensor, Tensor] | None = None,
    bias_GO: Tensor | None = None,
    gate_N: Tensor | None = None,
    slot_N: Tensor | None = None,
) -> Tensor:
    """Return [N, O]: x[n] @ w[group of n], plus the second pair's product and the bias, times the gate, at slot n."""
    from hpxfer.kernels.grouped_triton import rows_product

    num_rows, size_i = x_NI.shape
    size_o = w_GIO.shape[2]
    assert w_GIO.is_contiguous() or w_GIO.mT.is_contiguous(), f"matrices must be contiguous, got {w_GIO.stride()}"
    assert size_i * size_o < 2**31, f"a group's matrix must have fewer than 2^31 elements, got {size_i} x {size_o}"
    y_NO = x_NI.new_empty((num_rows, size_o), dtype=out_dtype or x_NI.dtype)
    x2, w2 = second or (x_NI, w_GIO)
    launch(
        rows_product,
        (tiles.number * -(-size_o // blocks.n),),
        *(x_NI, w_GIO, x2, w2, _or(bias_GO, x_NI), _or(gate_N, x_NI), _or(slot_N, tiles.ends), y_NO),
        *(tiles.group, tiles.row, tiles.ends, tiles.number, size_i, size_o),
        TRANSPOSED=not w_GIO.is_contiguous(),
        TWO=second is not None,
        HAS_BIAS=bias_GO is not None,
        HAS_GATE=gate_N is not None,
        TO_SLOT=slot_N is not None,
        **options(tiles, blocks, size_i, size_o),
    )
    return y_NO


def options(tiles: Tiles, blocks: Product, size_k: int, num_cols: int) -> dict[str, int | bool]:
    """Return the compile-time options that all products of rows share."""
    return {
        "BLOCK_M": tiles.m,
        "BLOCK_N": blocks.n,
        "BLOCK_K": blocks.k,
        "EVEN_K": size_k % blocks.k == 0,
        "SWIZZLE": _SWIZZLE,
        **_compiled_with(blocks, size_k, num_cols),
    }


def _compiled_with(blocks: Product | Gradient, *sizes: int) -> dict[str, int | bool]:
    """Return the options that say how a product of matrices of these sizes is compiled."""
    unit = math.gcd(16, *sizes)
    compiled: dict[str, int | bool] = {
        "UNIT": unit,
        "UPCAST": interpreted(),
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
    # Rows that are no whole 16-byte units need more registers than the table's bound.
    if blocks.registers is not None and unit >= _ROW_UNIT and not interpreted():
        compiled["maxnreg"] = blocks.registers
    return compiled


def matrix_gradient(
    l_NI: Tensor,
    r_NO: Tensor,
    ends_G: Tensor,
    config: Config,
    groups_at_once: int,
    num_rows: int,
    dtype: torch.dtype,
    *,
    l_row_N: Tensor | None = None,
    r_row_N: Tensor | None = None,
) -> Tensor:
    """Return [G, I, O]: the float32 sum of l[n]^T r[n] over each group's rows, exact zeros if it has none."""
    from hpxfer.kernels.grouped_triton import matrix_gradient as kernel

    num_groups, size_i, size_o = ends_G.shape[0], l_NI.shape[1], r_NO.shape[1]
    blocks = config.gradient
    parts = num_parts(config, groups_at_once, num_rows // num_groups, size_i, size_o)
    part = _parts(l_NI, parts, (num_groups, size_i, size_o), dtype)
    launch(
        kernel,
        (num_groups * parts * -(-size_i // blocks.i) * -(-size_o // blocks.o),),
        *(l_NI, _or(l_row_N, ends_G), r_NO, _or(r_row_N, ends_G), part, ends_G, num_groups, size_i, size_o),
        GATHER_L=l_row_N is not None,
        GATHER_R=r_row_N is not None,
        NUM_PARTS=parts,
        BLOCK_I=blocks.i,
        BLOCK_O=blocks.o,
        BLOCK_N=blocks.n,
        **_compiled_with(blocks, size_i, size_o),
    )
    return _sum_of_parts(part, dtype)


def bias_gradient(
    x_NC: Tensor,
    ends_G: Tensor,
    config: Config,
    groups_at_once: int,
    num_rows: int,
    dtype: torch.dtype,
    *,
    row_N: Tensor | None = None,
    gate_N: Tensor | None = None,
    slot_N: Tensor | None = None,
) -> Tensor:
    """Return [G, C]: the sum of (gate times) x over each group's rows, summed in float32."""
    from hpxfer.kernels.grouped_triton import bias_gradient as kernel

    num_groups, size = ends_G.shape[0], x_NC.shape[1]
    parts = num_parts(config, groups_at_once, num_rows // num_groups, 1, size)
    part = _parts(x_NC, parts, (num_groups, size), dtype)
    launch(
        kernel,
        (num_groups * parts * -(-size // _BLOCK_C),),
        *(x_NC, _or(row_N, ends_G), _or(gate_N, x_NC), _or(slot_N, ends_G), part, ends_G, num_groups, size),
        GATHER=row_N is not None,
        HAS_GATE=gate_N is not None,
        NUM_PARTS=parts,
        BLOCK_N=config.gradient.n,
        BLOCK_C=_BLOCK_C,
    )
    return _sum_of_parts(part, dtype)


def power_of_2(n: int) -> int:
    """Return the smallest power of 2 that is at least n. n must be at least 1."""
    return 1 << (n - 1).bit_length()


def _parts(like: Tensor, parts: int, size: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return like.new_empty((parts, *size), dtype=dtype if parts == 1 else torch.float32)


def _sum_of_parts(part: Tensor, dtype: torch.dtype) -> Tensor:
    from hpxfer.kernels.grouped_triton import sum_parts

    if part.shape[0] == 1:
        return part[0]
    out = torch.empty_like(part[0], dtype=dtype)
    grid = (-(-out.numel() // _BLOCK),)
    launch(sum_parts, grid, part, out, out.numel(), NUM_PARTS=part.shape[0], BLOCK=_BLOCK)
    return out


def _or(tensor: Tensor | None, instead: Tensor) -> Tensor:
    """Return a tensor for an argument that a kernel does not read."""
    return instead if tensor is None else tensor
