"""Find the block sizes of `kernels/configs.json` on this GPU: the items tune-* of accept.py.

An entry is measured on random data at the largest shape of its class. One field varies at a time while the others stay.
A candidate is timed as a CUDA graph, because launches from Python take longer than a small layer. The entry that was
found is printed; a person writes it into the table, with the GPU and the versions.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hpxfer.bench.clock import Job, interleaved, median
from hpxfer.kernels import experts, experts_library, grouped_launch
from hpxfer.kernels.configs import Config, Gradient, Product, architecture, table
from hpxfer.kernels.experts_launch import Layer, Rows, Weights

ENTRY_S = 190.0
FIELDS = ("m", "hidden", "up", "product", "gradient", "programs", "gated", "products")
_GROUPS, _WIDEST, _MOST_ROWS, _ROUNDS = 4, 2048, 16384, 7
# Places of matrix gradients: 132 multiprocessors, with one to eight blocks on each.
_PROGRAMS = (132, 264, 528, 792, 1056)


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
    size, num_rows = config.max_features or _WIDEST, (config.max_rows or _MOST_ROWS) * _GROUPS
    given: Any = {"device": device, "dtype": torch.bfloat16 if config.dtype_bytes == 2 else torch.float32}
    w_in, w_gate, w_out = (torch.randn(_GROUPS, size, size, **given) for _ in range(3))
    order = torch.randperm(num_rows, device=device).to(torch.int32)
    ends = torch.arange(1, _GROUPS + 1, device=device, dtype=torch.int32) * (num_rows // _GROUPS)
    x, dy = (torch.randn(num_rows, size, **given) for _ in range(2))
    weights = Weights(w_in, w_gate if gated else None, w_out, None, None, None)
    rows, gate = Rows(order, order, ends), torch.rand(num_rows, 1, device=device)
    return Sample(x=x, dy=dy, weights=weights, gate=gate, rows=rows)


def step(config: Config, drawn: Sample) -> Callable[[], object]:
    """Return a function that runs the layer forward and backward, with the products that the config names."""
    activation = "gelu" if drawn.weights.w_gate is None else "swiglu"
    tiles = grouped_launch.tiles_of(drawn.rows.ends, drawn.x.shape[0], config.m)
    given: Any = {"num_active": 1, "groups_at_once": _GROUPS, "activation": activation, "config": config}
    layer = Layer(rows=drawn.rows, tiles=tiles, **given)

    def run() -> object:
        _, u, v = experts.forward(layer, drawn.x, drawn.weights, drawn.gate)
        return experts.backward(layer, drawn.x, drawn.weights, drawn.gate, u, v, drawn.dy)

    return run


def candidates(config: Config, field: str) -> Iterator[Config]:
    """Yield `config` with other values of one of its fields, of the sizes that fit its class."""
    is_bf16 = config.dtype_bytes == 2
    wide = is_bf16 and (config.max_features or _WIDEST) > 128
    simple = {"m": (32, 64, 128), "programs": _PROGRAMS}
    simple["products"] = ("triton", "library") if is_bf16 else ()  # F.grouped_mm takes bf16 alone
    values: Sequence[Any]
    if field in simple:
        values = simple[field]
    elif field == "gradient":
        sides = ((128, 128), (128, 256)) if wide else ((64, 64), (64, 128))
        choices = itertools.product(sides, (32, 64), (4, 8), (3, 4))
        values = [Gradient(i=i, o=o, n=n, warps=warps, stages=stages) for (i, o), n, warps, stages in choices]
    else:
        columns = [n // 2 if field == "gated" else n for n in ((128, 256) if wide else (64, 128))]
        choices = itertools.product(columns, ((4, None), (8, None), (8, 128)), (3, 4))
        k = 64 if is_bf16 else 32
        values = [Product(n=n, k=k, warps=w, stages=stages, registers=r) for n, (w, r), stages in choices]
    for value in values:
        if value != getattr(config, field):
            yield replace(config, **{field: value})


def best(
    config: Config,
    device: torch.device,
    *,
    clock: Callable[[Config, Sample], float],
    tell: Callable[..., None],
    seconds: float = ENTRY_S,
) -> Config:
    """Return the fastest config found from `config` in so many seconds, of which each field has an equal share.

    `tell` gets the milliseconds of each candidate, or why it cannot run. A line says how many the time did not reach.
    """
    ends, drawn = time.monotonic() + seconds, sample(config, gated=False, device=device)
    for number, field in enumerate(FIELDS):
        until = time.monotonic() + (ends - time.monotonic()) / (len(FIELDS) - number)
        if field in ("gated", "products"):
            drawn = sample(config, gated=field == "gated", device=device)
        fits = field != "products" or experts_library.can_run(drawn.x, drawn.weights)
        tried = [config, *candidates(config, field)] if fits else []
        timed: list[tuple[float, int]] = []
        for index, one in enumerate(tried):
            if index and time.monotonic() > until:
                tell(field=field, left_out=f"{len(tried) - index} candidates, for lack of time")
                break
            try:
                timed.append((clock(one, drawn), index))
                tell(field=field, config=asdict(one), ms=timed[-1][0])
            except Exception as error:  # of the compiler or the launch, which have no class in common
                tell(field=field, config=asdict(one), skipped=f"{type(error).__name__}: {str(error)[:200]}")
        if timed:  # the entry that stands stays unless another is faster, or it cannot run at all
            config = tried[min(timed)[1]]
    return config


def replayed_ms(config: Config, drawn: Sample) -> float:
    """Return the milliseconds of the layer, forward and backward, as the replay of a CUDA graph."""
    from gpu_items import graphed

    job = Job(run=graphed(step(config, drawn)))
    return 1000 * median(interleaved({"layer": job}, rounds=_ROUNDS, device=drawn.x.device), "layer")


def tune(features: int) -> None:
    """Search the bf16 entry for up to so many features, and print each candidate and what was found."""
    from gpu_items import say

    device = torch.device("cuda")
    entries = [one for one in table()[architecture(device)] if one.dtype_bytes == 2 and one.max_rows is None]
    entry = next(one for one in entries if (one.max_features or _WIDEST) == features)
    found = best(entry, device, clock=replayed_ms, tell=lambda **line: say(key=f"tune-{features}", **line))
    say(key=f"tuned-{features}", config=asdict(found))
