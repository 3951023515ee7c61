"""Compaction: when diverged trials leave their stack. In strict mode the other trials keep their bits."""

from __future__ import annotations

import torch

from hpxfer.train.device import Setup


def saves_time(dead_fraction: float, left_s: float, build_s: float, setup: Setup) -> bool:
    """Return whether a smaller stack saves time.

    `dead_fraction` is the fraction of the stack that has diverged. `left_s` is the time that the run would still take
    with it. `build_s` is the time that building the current step took. A smaller stack builds its step again, and where
    steps are captured, the next stack of the old size does so too.
    """
    return dead_fraction * left_s > build_s * (2 if setup.captured else 1)


def fits_memory(fraction: float, setup: Setup) -> bool:
    """Return whether a stack of this fraction of the size has room beside the one that it replaces."""
    if not setup.cuda:
        return True
    free, _ = torch.cuda.mem_get_info(setup.device)
    cached = torch.cuda.memory_reserved(setup.device) - torch.cuda.memory_allocated(setup.device)
    return fraction * torch.cuda.max_memory_allocated(setup.device) < free + cached
