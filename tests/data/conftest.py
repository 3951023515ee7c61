"""Small data sets on disk, and the sweeps that name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpxfer.data.readers.llmc import UINT16
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.data_section import DataSpec

SWEEP = """
name: small
model:
  family: gpt
  base: {{width: 32, depth: 1, num_experts: 2, num_active: 1, expert_ratio: 1, head_dim: 32}}
  context: {context}
data: {{source: "text:unused"}}
training: {{batch_tokens: {batch_tokens}, steps: {steps}, validation_tokens: {validation_tokens}}}
parameterizations: [sp]
axes: {axes}
grid: {{lr: [0.01]}}
seeds: 1
"""


@pytest.fixture
def make_sweep() -> Callable[..., SweepSpec]:
    """Return source, sizes and other keys of `data` -> a checked sweep."""

    def make(
        source: str,
        *,
        context: int = 8,
        batch_tokens: int = 32,
        steps: int = 3,
        validation_tokens: int = 64,
        axes: str = "{width: [32]}",
        **data: Any,
    ) -> SweepSpec:
        text = SWEEP.format(
            context=context, batch_tokens=batch_tokens, steps=steps, validation_tokens=validation_tokens, axes=axes
        )
        return parse_sweep(text).model_copy(update={"data": DataSpec(source=source, **data)})

    return make


@pytest.fixture
def write_shard() -> Callable[[Path, Sequence[int] | np.ndarray], Path]:
    """Return a function (path, ids) -> path that writes a shard of uint16."""

    def write(path: Path, ids: Sequence[int] | np.ndarray) -> Path:
        path.write_bytes(UINT16.header(len(ids)) + np.asarray(ids, "<u2").tobytes())
        return path

    return write
