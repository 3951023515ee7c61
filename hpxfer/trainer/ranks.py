"""Ranks: which rank a process is, and how ranks wait for each other. torch is used if the user has imported it."""

from __future__ import annotations

import os
import sys

from hpxfer.errors import HpxferError


def rank_and_world() -> tuple[int, int]:
    """Return the rank of this process and the number of ranks, as torchrun and accelerate say them."""
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def barrier(world: int) -> None:
    """Wait until all ranks are here. Raise HpxferError if they cannot: torch.distributed is not initialized."""
    if world == 1:
        return
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_initialized():
        raise HpxferError(
            f"trial.checkpoint: {world} ranks must be able to wait for each other, got no process group; call "
            f"torch.distributed.init_process_group() first"
        )
    distributed.barrier()
