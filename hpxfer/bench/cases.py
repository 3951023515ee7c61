"""Cases: the trials that benchmarks train, on random tokens."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpxfer.data import data_ref
from hpxfer.data.readers.llmc import UINT16
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape
from hpxfer.spec import parse_sweep, write_yaml
from hpxfer.trial import Trial, setting_of

_SEED = 0
AUX_WEIGHT = 0.01  # of a preset's balancing loss


@dataclass(frozen=True, kw_only=True)
class Case:
    """A model and its run. `dense` makes it the dense twin of equal active FLOPs: one FFN as wide as the active
    experts. `like` is a preset; without one it is the nanoGPT.
    """

    width: int
    depth: int
    expert_ratio: float = 1
    num_experts: int = 4
    num_active: int = 1
    head_dim: int
    vocab_size: int
    context: int
    batch_tokens: int
    steps: int
    precision: str = "float32"
    dense: bool = False
    like: str | None = None
    kv_heads: int = 0
    optimizer: str = "adamw"


def trials(case: Case, count: int, folder: Path) -> tuple[Trial, ...]:
    """Return `count` trials of the case that differ in LR and seed. Their data is written to `folder`.

    Each trial is at its own base shape. The LRs are small, because random tokens teach nothing and a diverging trial
    would leave the stack.
    """
    needed = (case.steps + 1) * case.batch_tokens + 2  # the run, the held-out batch, and a last target of each
    path = folder / f"random-{case.vocab_size}-{needed}.bin"
    if not path.exists():
        write_tokens(path, needed, case.vocab_size)
    spec = parse_sweep(write_yaml(_sweep(case, path)), "bench")
    setting = setting_of(spec, data_ref(spec.data))
    return tuple(
        Trial(
            id=f"bench-{k}",
            setting=setting,
            shape=spec.base_shape,
            base=spec.base_shape,
            parameterization=None,
            hps=HPs(
                lr=2.0**-10 * (1 + k / count),
                adamw_lr=spec.hps.adamw_lr or 0.0,
                eps=1e-8,
                weight_decay=0.1,
                aux_weight=spec.hps.aux_weight,
            ),
            seed=k,
        )
        for k in range(count)
    )


def shape_of(case: Case) -> Shape:
    """Return the case's shape, without batch and steps."""
    hidden = round(case.width * case.expert_ratio)
    dims: dict[str, Any] = {"width": case.width, "depth": case.depth, "head_dim": case.head_dim}
    if case.dense:
        return Shape(**dims, dense_width=case.num_active * hidden)
    dims["kv_heads"] = case.kv_heads
    return Shape(**dims, num_experts=case.num_experts, num_active=case.num_active, expert_width=hidden)


def write_tokens(path: Path, count: int, vocab_size: int) -> None:
    """Write a token shard of uniformly random ids."""
    ids = np.random.default_rng(_SEED).integers(vocab_size, size=count, dtype=np.uint16)
    path.write_bytes(UINT16.header(count) + ids.astype("<u2").tobytes())


def _sweep(case: Case, path: Path) -> dict[str, object]:
    """Return the case in the form of a sweep file."""
    shape = shape_of(case)
    names = ("width", "depth", "num_experts", "num_active", "expert_width", "head_dim", "dense_width", "kv_heads")
    base = {name: value for name in names if (value := getattr(shape, name))}
    nanogpt = {"tied_embeddings": False, "norm_gains": False, "embedding_std": 0.5, "position_std": 0.5}
    adamw = {} if case.optimizer in ("adamw", "sgd") else {"adamw_lr": 0.001}
    options = {"like": case.like} if case.like else nanogpt
    return {
        "name": "hpxfer-bench",
        "model": {"family": "gpt", "base": base, "context": case.context, **options},
        "data": {"source": f"tokens:{path}", "vocab_size": case.vocab_size},
        "training": {
            "batch_tokens": case.batch_tokens,
            "steps": case.steps,
            "validation_tokens": case.batch_tokens,
            "optimizer": case.optimizer,
        },
        "precision": case.precision,
        "parameterizations": ["sp"],
        "axes": {"width": [case.width]},
        "hps": {"aux_weight": AUX_WEIGHT if case.like else 0.0, **adamw},
        "grid": {"lr": [0.001]},
    }
