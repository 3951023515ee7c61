"""Tokens per step that fill a GPU: measured by `hpxfer bench accept` on such a GPU, else assumed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError
from hpxfer.host.json_lines import json_lines

# The file of a folder of benchmarks that keeps the lines of acceptances.
ACCEPT_FILE = "accept.jsonl"
# A stack fills the GPU at the fewest tokens per step whose speed is this part of the best.
ENOUGH = 0.95


def measured_step_tokens(is_it: Callable[[str], bool], folder: Path) -> int | None:
    """Return the tokens per step that fill a GPU, or None if fewer than two stacks were measured on such a GPU.

    `is_it` tells the names of such GPUs. The last measurement of a number of tokens counts. `hpxfer bench accept`
    reports a damaged file. A plan can do without it.
    """
    path = folder / ACCEPT_FILE
    if not path.exists():
        return None
    try:
        lines = [line for _, line in json_lines(path)]
    except HpxferError:
        return None
    rates = dict(_rates(is_it, lines))
    if len(rates) < 2:
        return None
    best = max(rates.values())
    return min(tokens for tokens, rate in rates.items() if rate >= ENOUGH * best)


def _rates(is_it: Callable[[str], bool], lines: list[Any]) -> Iterator[tuple[int, float]]:
    """Yield (tokens per step of the stack, tokens/s) of each measured stack of small trials."""
    for line in lines:
        if not isinstance(line, dict) or not str(line.get("key", "")).startswith(("r-stack", "r-alone")):
            continue
        machine, tokens, rate = (line.get(name) for name in ("machine", "step_tokens", "tokens_per_s"))
        same = isinstance(machine, dict) and is_it(str(machine.get("gpu")))
        if same and isinstance(tokens, int) and isinstance(rate, int | float) and tokens > 0 and 0 < rate < math.inf:
            yield tokens, float(rate)
