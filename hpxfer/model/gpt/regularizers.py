"""What is added to the loss that the gradients are of, beside the cross entropy. No logged or judged loss has it.

    switch        E sum_i f_i P_i                 f_i: the share of the choices that chose expert i, without a gradient
                                                  P_i: the mean over the tokens of p_i = score_i / sum of all scores
    sequence      the same of every sequence by itself, and the mean over the sequences
    transformers  A E sum_i f_i P_i with f and P of all layers together
    z             the mean over the tokens of logsumexp(logits)^2

`switch` (arXiv 2101.03961) and `sequence` (DeepSeek-V3) are 1 at perfect balance. The mean over the layers is taken.
`transformers` is `load_balancing_loss_func` of that library, A at perfect balance. z: ST-MoE, arXiv 2202.08906.

Letters: K trials, T tokens, B sequences, E experts, A active experts, L MoE layers.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.sums import column_sums
from hpxfer.spec.balance import BalanceLoss

# What a token's scores sum to at least, as in DeepSeek-V3.
LEAST = 1e-20


@dataclass(frozen=True, kw_only=True)
class Choice:
    """How the routers of one layer chose."""

    logits_KTE: Tensor
    scores_KTE: Tensor  # not negative
    chosen_KTA: Tensor
    load_KE: Tensor  # int64


@dataclass(frozen=True, kw_only=True)
class Regularizers:
    """The losses of a stack beside the cross entropy. A weight of None: no trial of the stack has one."""

    aux: BalanceLoss
    context: int
    aux_weight_K: Tensor | None
    z_weight_K: Tensor | None
    backend: Backend = TORCH

    def __call__(
        self, layers: Sequence[Choice], load_LKE: Tensor | None
    ) -> tuple[Tensor | None, Mapping[str, tuple[Tensor, ...]]]:
        """Return their weighted sum [K], and by the name of their metric their values [K] in every layer.

        `load` stands in for the loads of this batch. The metric of `transformers` has one value for all layers.
        """
        values: dict[str, tuple[Tensor, ...]] = {}
        total_K = None
        if self.aux_weight_K is not None and layers:
            values["balance_loss"] = self._balance(layers, load_LKE)
            total_K = self.aux_weight_K * _mean(values["balance_loss"])
        if self.z_weight_K is not None and layers:
            values["router_z_loss"] = tuple(self._mean_of_tokens(_squared_z(layer.logits_KTE)) for layer in layers)
            z_K = self.z_weight_K * _mean(values["router_z_loss"])
            total_K = z_K if total_K is None else total_K + z_K
        return total_K, values

    def _balance(self, layers: Sequence[Choice], load_LKE: Tensor | None) -> tuple[Tensor, ...]:
        if self.aux == "sequence":
            return tuple(map(self._of_sequences, layers))
        loads = [layer.load_KE for layer in layers] if load_LKE is None else list(load_LKE.unbind(0))
        shares = [_share(load_KE) for load_KE in loads]
        means = [column_sums(_p(layer), self.backend) / layer.scores_KTE.shape[1] for layer in layers]
        if self.aux == "switch":
            return tuple(self._switch(f_KE, p_KE) for f_KE, p_KE in zip(shares, means, strict=True))
        num_active = layers[0].chosen_KTA.shape[2]
        return (num_active * self._switch(_mean(shares), _mean(means)),)

    def _of_sequences(self, layer: Choice) -> Tensor:
        num_trials, _, num_experts = layer.scores_KTE.shape
        p = _p(layer).reshape(-1, self.context, num_experts)
        chosen = layer.chosen_KTA.reshape(p.shape[0], -1, 1)
        counts = (chosen == torch.arange(num_experts, device=chosen.device)).sum(1)
        of_each = self._switch(_share(counts), column_sums(p, self.backend) / self.context)
        return self._mean_of_tokens(of_each.view(num_trials, -1, 1))

    def _switch(self, f_KE: Tensor, p_KE: Tensor) -> Tensor:
        """Return E sum f p, in an order of additions that does not depend on the number of rows."""
        products_KE1 = (f_KE * p_KE).unsqueeze(-1)
        return f_KE.shape[-1] * column_sums(products_KE1, self.backend).squeeze(-1)

    def _mean_of_tokens(self, x_KT1: Tensor) -> Tensor:
        return column_sums(x_KT1, self.backend).squeeze(-1) / x_KT1.shape[1]


def _p(layer: Choice) -> Tensor:
    """Return the probabilities. Sigmoids of very small logits are zeros, which must not make 0/0."""
    return layer.scores_KTE / layer.scores_KTE.sum(-1, keepdim=True).clamp(min=LEAST)


def _share(load_KE: Tensor) -> Tensor:
    """Return what part of the choices each expert has. Where nothing was chosen yet, all have the same."""
    total = load_KE.sum(-1, keepdim=True)
    return torch.where(total > 0, load_KE / total.clamp(min=1), 1.0 / load_KE.shape[-1])


def _squared_z(logits_KTE: Tensor) -> Tensor:
    return logits_KTE.logsumexp(-1, keepdim=True).square()


def _mean(values: Sequence[Tensor]) -> Tensor:
    return functools.reduce(operator.add, values) / len(values)
