"""Measure candidates for `configs.json` on this GPU and rewrite its part of the table: `python -m hpxfer.kernels.tune`.

Tuning is offline: nothing is tuned at run time. Each entry is measured on random data at a shape of its class. One
field varies at a time while the others stay: first the rows of a tile, then the blocks of every product.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels import experts_launch, grouped_launch
from hpxfer.kernels.configs import TABLE_PATH, Config, Gradient, Product, architecture, table
from hpxfer.kernels.experts_launch import Layer, Rows, Weights

_GROUPS = 4
_WIDEST = 2048
_MOST_ROWS = 16384
_M = (32, 64, 128)
_N = (64, 128, 256)
_K = (32, 64)
_WARPS = (4, 8)
_STAGES = (2, 3, 4)


@dataclass(frozen=True, kw_only=True)
class Sample:
    """A layer of random data in the class of an entry."""

    x: Tensor
    dy: Tensor
    weights: Weights
    gate: Tensor
    rows: Rows


def sample(config: Config, *, gated: bool, device: torch.device) -> Sample:
    """Return a layer of the largest shape that `config` covers."""
    size = config.max_features or _WIDEST
    num_rows = (config.max_rows or _MOST_ROWS) * _GROUPS
    dtype = torch.bfloat16 if config.dtype_bytes == 2 else torch.float32

    def normal(*sizes: int) -> Tensor:
        return torch.randn(sizes, device=device, dtype=dtype)

    w_gate = normal(_GROUPS, size, size) if gated else None
    order = torch.randperm(num_rows, device=device).to(torch.int32)
    ends = torch.arange(1, _GROUPS + 1, device=device, dtype=torch.int32) * (num_rows // _GROUPS)
    return Sample(
        x=normal(num_rows, size),
        dy=normal(num_rows, size),
        weights=Weights(normal(_GROUPS, size, size), w_gate, normal(_GROUPS, size, size), None, None, None),
        gate=torch.rand(num_rows, 1, device=device),
        rows=Rows(order, order, ends),
    )


def layer_of(config: Config, drawn: Sample) -> Layer:
    """Return the sample's layer under this config."""
    return Layer(
        rows=drawn.rows,
        num_active=1,
        groups_at_once=_GROUPS,
        activation="gelu" if drawn.weights.w_gate is None else "swiglu",
        config=config,
        tiles=grouped_launch.tiles_of(drawn.rows.ends, drawn.x.shape[0], config.m),
    )


def step(config: Config, drawn: Sample) -> Callable[[], object]:
    """Return a function that runs the layer forward and backward."""
    layer = layer_of(config, drawn)

    def run() -> object:
        _, u, v = experts_launch.forward(layer, drawn.x, drawn.weights, drawn.gate)
        return experts_launch.backward(layer, drawn.x, drawn.weights, drawn.gate, u, v, drawn.dy)

    return run


def candidates(config: Config, field: str) -> Iterator[Config]:
    """Yield `config` with other values of one of its fields."""
    if field == "m":
        yield from (replace(config, m=m) for m in _M)
    elif field == "gradient":
        for i, o, n, warps, stages in itertools.product(_N[:2], _N, _K, _WARPS, _STAGES):
            yield replace(config, gradient=Gradient(i=i, o=o, n=n, warps=warps, stages=stages))
    else:
        for n, k, warps, stages in itertools.product(_N, _K, _WARPS, _STAGES):
            blocks: dict[str, Any] = {field: Product(n=n, k=k, warps=warps, stages=stages)}
            yield replace(config, **blocks)


def best(config: Config, device: torch.device, time_ms: Callable[[Callable[[], object]], float]) -> Config:
    """Return the fastest config found from `config`. Candidates that do not fit the device are left out."""
    for field in ("m", "product", "up", "hidden", "gradient", "gated"):
        drawn = sample(config, gated=field == "gated", device=device)
        timed = [
            (time, index, c)
            for index, c in enumerate([config, *candidates(config, field)])
            if (time := _time(c, drawn, time_ms)) is not None
        ]
        # The first is the table's own entry. It stays unless another is faster.
        time, _, config = min(timed, key=lambda entry: entry[:2])
        print(f"  {field}: {time:.3f} ms  {getattr(config, field)}", flush=True)  # noqa: T201
    return config


def _time(config: Config, drawn: Sample, time_ms: Callable[[Callable[[], object]], float]) -> float | None:
    from triton.runtime.errors import OutOfResources

    try:
        return time_ms(step(config, drawn))
    except OutOfResources:
        return None


def text_of(tables: dict[str, tuple[Config, ...]], note: str) -> str:
    """Return the JSON of a measured table, with one line per part of an entry."""
    lines = []
    for arch, configs in tables.items():
        entries = []
        for config in configs:
            fields = asdict(config)
            plain = {name: value for name, value in fields.items() if not isinstance(value, dict)}
            parts = [f'    "{name}": {json.dumps(value)}' for name, value in fields.items() if isinstance(value, dict)]
            entries.append("   {" + ",\n".join([json.dumps(plain)[1:-1], *parts]) + "}")
        lines.append(f'  "{arch}": [\n' + ",\n".join(entries) + "\n  ]")
    head = f'{{\n "measured": true,\n "note": {json.dumps(note)},\n "architectures": {{\n'
    return head + ",\n".join(lines) + "\n }\n}\n"


def main(arguments: list[str] | None = None) -> int:
    """Return 0 once the table is written, 2 if there is no CUDA device."""
    parser = argparse.ArgumentParser(prog="python -m hpxfer.kernels.tune", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--out", type=Path, default=TABLE_PATH, help="where the table is written")
    out: Path = parser.parse_args(arguments).out
    if not torch.cuda.is_available():
        print("tune: needs a CUDA device, got none; run it on the machine that will train", file=sys.stderr)  # noqa: T201
        return 2
    import triton
    from triton.testing import do_bench

    device = torch.device("cuda")
    arch, tables = architecture(device), table()
    tables[arch] = tuple(
        best(config, device, lambda run: float(do_bench(run, warmup=10, rep=40, return_mode="median")))
        for config in tables[arch]
    )
    name = torch.cuda.get_device_name(device)
    out.write_text(
        text_of(tables, f"{arch} measured on {name}, torch {torch.__version__}, triton {triton.__version__}.")
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
