"""Linear maps of a stack: the one place where a forward multiplier meets a weight, and where a tap listens.

Letters: K trials, T tokens, I in, O out, N expert rows, G = K*E groups of rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.grouped import grouped_product
from hpxfer.kernels.routing import Groups

# Called as tap(name, block, input, output) with detached tensors; the block is 0 for what stands outside the blocks.
Tap = Callable[[str, int, Tensor, Tensor], None]
# The tensors of one block, or those outside: name -> [K, *size].
Local = Mapping[str, Tensor]

# The roles whose output the model multiplies, each in one place.
FORWARD_ROLES = ("attn_out", "router", "expert_out", "shared_out", "dense_out", "readout")


@dataclass(frozen=True, kw_only=True)
class Maps:
    """The linear maps of a forward pass, with the forward multipliers of their roles."""

    forward: Mapping[str, Tensor]  # role -> [K] float32, for those of FORWARD_ROLES that the model has
    tap: Tap | None = None

    def seen(self, name: str, block: int, x: Tensor, y: Tensor) -> None:
        """Show input and output of a part of the model to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, block, x.detach(), y.detach())

    def linear(self, name: str, block: int, x_KTI: Tensor, weight_KIO: Tensor, bias_KO: Tensor | None = None) -> Tensor:
        """Return x @ w (+ bias), times the forward multiplier of the role where it has one."""
        scale = self.forward[name].view(-1, 1, 1) if name in FORWARD_ROLES else None
        # The multiplier goes on the weight: it is smaller than the activation.
        y = torch.bmm(x_KTI, (weight_KIO if scale is None else weight_KIO * scale).to(x_KTI.dtype))
        if bias_KO is not None:
            bias = bias_KO.unsqueeze(1)
            y = y + (bias if scale is None else bias * scale).to(y.dtype)
        self.seen(name, block, x_KTI, y)
        return y

    def named(self, local: Local, name: str, block: int, x_KTI: Tensor) -> Tensor:
        """Return the same for the weight and the bias of this name."""
        return self.linear(name, block, x_KTI, local[name], local.get(f"{name}_bias"))

    def expert(
        self, local: Local, name: str, block: int, x_NI: Tensor, groups: Groups, group_of_N: Tensor | None
    ) -> Tensor:
        """Return x[n] @ w[group of n] (+ bias), without the forward multiplier, which the gates hold.

        The tap sees [K, T*A, I] and, with the multiplier, [K, T*A, O]; rows by expert, then in token order.
        """
        y_NO = grouped_product(x_NI, local[name].flatten(0, 1).to(x_NI.dtype), groups.ends)
        if group_of_N is not None:
            y_NO = y_NO + local[f"{name}_bias"].flatten(0, 1).to(y_NO.dtype).index_select(0, group_of_N)
        if self.tap is not None:
            num_trials = groups.load.shape[0]
            y = y_NO.view(num_trials, -1, y_NO.shape[-1])
            y = y * self.forward[name].view(-1, 1, 1).to(y.dtype) if name in FORWARD_ROLES else y
            self.seen(name, block, x_NI.view(num_trials, -1, x_NI.shape[-1]), y)
        return y_NO
