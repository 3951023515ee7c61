"""Grouped product: y[n] = x[n] @ w[g] for every row n of group g.

Letters: N rows, G groups, I in, O out.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor


def grouped_product(x_NI: Tensor, w_GIO: Tensor, ends_G: Tensor) -> Tensor:
    """Return [N, O]. `ends_G` (int32) is where every group's rows end; an empty group has zero gradient.

    I and O must be whole 16-byte units of the dtype (float32: multiples of 4), which `Shape` guarantees.
    """
    return F.grouped_mm(x_NI, w_GIO, offs=ends_G)
