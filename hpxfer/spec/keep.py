"""Keep: after which steps a run stores the weights of a trial."""

from __future__ import annotations

from typing import Literal

Keep = Literal["none", "last", "all"]


def kept_steps(keep: Keep, steps: int) -> tuple[int, ...]:
    """Return the steps after which the weights of a trial of `steps` steps are kept, in order.

    `last` is the last step alone. `all` are the powers of two before it too.
    """
    early = [2**power for power in range((steps - 1).bit_length())] if keep == "all" else []
    return () if keep == "none" else (*early, steps)
