"""Compaction: when the diverged trials of a stack leave it. What the others compute does not depend on it (strict)."""

from __future__ import annotations

import torch

from hpxfer.train.device import Setup


def pays(share: float, left_s: float, made_s: float, setup: Setup) -> bool:
    """Return whether a smaller stack saves time.

    `share` is that of the dead slots, `left_s` what the run would still take with them, `made_s` what making this
    step took: a new size repeats it, and where steps are captured the next stack of the old size does, too.
    """
    return share * left_s > made_s * (2 if setup.captured else 1)


def fits(share: float, setup: Setup) -> bool:
    """Return whether a stack of this share of the size has room beside the one that it takes over from."""
    if not setup.cuda:
        return True
    free, _ = torch.cuda.mem_get_info(setup.device)
    cached = torch.cuda.memory_reserved(setup.device) - torch.cuda.memory_allocated(setup.device)
    return share * torch.cuda.max_memory_allocated(setup.device) < free + cached
