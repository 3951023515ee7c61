"""Linear maps of a stack, where alone a forward multiplier meets a weight, and the documents in a window.

Letters: K trials, T tokens, I input features, O output features.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.norm import EPS, Kind, added_norm
from hpxfer.kernels.product import batched_product
from hpxfer.kernels.sums import spread
from hpxfer.model.output import Tap

# Documents in a window: attention and positions that start again after each end-of-document token.
#
# A token belongs to the document of the token before it, unless that one is the end of a document. The start of a
# window starts a document. Rotated positions need nothing here: a rotation turns queries and keys of a document alike,
# and only their distance counts.
#
# Letters: K trials, B sequences, S context, N = K*B.


def starts_of_documents(inputs_KBS: Tensor, eos_id: int) -> Tensor:
    """Return whether each token is the first one of a document, [K, B, S] bool."""
    first = torch.ones_like(inputs_KBS[..., :1], dtype=torch.bool)
    return torch.cat([first, inputs_KBS[..., :-1] == eos_id], dim=-1)


def positions_in_documents(inputs_KBS: Tensor, eos_id: int) -> Tensor:
    """Return the position of each token in its document, [K, B, S] int64."""
    starts_KBS = starts_of_documents(inputs_KBS, eos_id)
    places_S = torch.arange(inputs_KBS.shape[-1], device=inputs_KBS.device)
    began_KBS = torch.where(starts_KBS, places_S, 0).cummax(-1).values
    return places_S - began_KBS


def document_mask(inputs_KBS: Tensor, eos_id: int, dtype: torch.dtype) -> Tensor:
    """Return what is added to the attention logits, [N, S, S]: 0 for a key of the same document that is not in the
    future, else minus infinity.
    """
    document_NS = starts_of_documents(inputs_KBS, eos_id).cumsum(-1).flatten(0, 1)
    same_NSS = document_NS.unsqueeze(2) == document_NS.unsqueeze(1)
    seen_NSS = same_NSS.tril()
    return torch.zeros_like(seen_NSS, dtype=dtype).masked_fill(~seen_NSS, float("-inf"))


# The parameters of one block, or those outside the blocks: name -> [K, *size].
Local = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Maps:
    """The linear maps of a forward pass, with the forward multipliers of their roles."""

    forward: Mapping[str, Tensor]  # role -> [K] float32, for those that the model multiplies
    norm_kind: Kind = "layernorm"
    norm_eps: float = EPS
    tap: Tap | None = None
    backend: Backend = TORCH

    def show(self, name: str, block: int, x: Tensor, y: Tensor) -> None:
        """Show the input and the output of a part of the model to the tap, if there is one."""
        if self.tap is not None:
            self.tap(name, block, x.detach(), y.detach())

    def linear(self, name: str, block: int, x_KTI: Tensor, weight_KIO: Tensor, bias_KO: Tensor | None = None) -> Tensor:
        """Return [K, T, O]: x @ w (+ bias), times the forward multiplier of the role if it has one."""
        y = batched_product(x_KTI, self.scaled(name, weight_KIO), self.backend)
        if bias_KO is not None:
            scale = self.forward[name].unsqueeze(-1) if name in self.forward else None
            y = y + spread(bias_KO if scale is None else bias_KO * scale, y.shape[1], y.dtype, self.backend)
        self.show(name, block, x_KTI, y)
        return y

    def scaled(self, name: str, weight_KIO: Tensor) -> Tensor:
        """Return the weight times the forward multiplier of its role. The weight is smaller than the activation."""
        return weight_KIO * self.forward[name].view(-1, 1, 1) if name in self.forward else weight_KIO

    def named(self, local: Local, name: str, block: int, x_KTI: Tensor) -> Tensor:
        """Return `linear` of the weight and the bias of this name."""
        return self.linear(name, block, x_KTI, local[name], local.get(f"{name}_bias"))

    def added_norm(self, local: Local, name: str, x_KTD: Tensor, y_KTD: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return x + y, or x, and its norm, with the gain and the bias of this name if the model has them."""
        gain, bias = local.get(name), local.get(f"{name}_bias")
        return added_norm(x_KTD, y_KTD, gain, bias, self.backend, kind=self.norm_kind, eps=self.norm_eps)

    def joined(self, local: Local, names: tuple[str, ...], block: int, x_KTI: Tensor) -> tuple[Tensor, ...]:
        """Return [K, T, O] of each name: several maps of the same input, computed as one product."""
        weight = torch.cat([local[name] for name in names], dim=-1)
        y_KTO = batched_product(x_KTI, weight, self.backend)
        if any(f"{name}_bias" in local for name in names):
            biases = [self._bias(local, name) for name in names]
            y_KTO = y_KTO + spread(torch.cat(biases, dim=-1), y_KTO.shape[1], y_KTO.dtype, self.backend)
        parts = torch.split(y_KTO, [local[name].shape[-1] for name in names], -1)
        for name, part in zip(names, parts, strict=True):
            self.show(name, block, x_KTI, part)
        return parts

    def _bias(self, local: Local, name: str) -> Tensor:
        """Return the bias of a map, or zeros."""
        bias = local.get(f"{name}_bias")
        return torch.zeros_like(local[name][:, 0]) if bias is None else bias
