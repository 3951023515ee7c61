"""The FFN of a block, routed, shared or dense, and what is added to the loss to balance it.

    logits = c_router * router(h) + b_t                    b_t: the router-bias schedule, if there is one
    y      = c_shared * sum_s a_s S_s(h) + c_expert * r sum_{i active} g_i * E_i(h)      dense block: y = c_dense * F(h)

    E, S, F = down(gelu(up(h))), with relu for gelu, or down(silu(gate(h)) * up(h)) if ffn is swiglu
    a_s     = sigmoid(shared_router_s(h)) where shared experts have a gate, else 1;  r is the setting's route_scale

    b_t also has the fixed bias of `ties: fixed_bias`, and the bias of the logits that the optimizer trains.

The gate's row (`hpxfer.model.gates`) gives the scores of all experts and the weights g_i of the active ones. The active
experts are the num_active of largest score + balancing bias: num_active / num_groups in each of num_groups contiguous
groups of experts, or all of them in the best `top_groups` groups. The balancing bias only selects. Of equal experts the
lowest index is chosen, or with `ties: random` the first in an order of the token's own. Logits, scores and weights are
float32 in every precision.

Letters: K trials, T tokens, D width, E experts, A active experts, N = K*T*A expert rows, H hidden features.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.experts import experts
from hpxfer.kernels.grouped import grouped_product
from hpxfer.kernels.narrow import narrow_product
from hpxfer.kernels.router import router
from hpxfer.kernels.routing import Groups, choose_experts, group_rows, of_chosen
from hpxfer.kernels.sums import column_sums, spread
from hpxfer.model.gates import Gate
from hpxfer.model.linear import Local, Maps
from hpxfer.scaling.shape import Shape
from hpxfer.spec import BalanceLoss

# What is added to the loss that the gradients are of, beside the cross entropy. No logged or judged loss has it.
#
#     switch        E sum_i f_i P_i with f_i the share of the choices that chose expert i, without a gradient, and P_i
#                   the mean over the tokens of p_i = score_i / sum of all scores
#     sequence      the same of every sequence by itself, and the mean over the sequences
#     transformers  A E sum_i f_i P_i with f and P of all layers together
#     z             the mean over the tokens of logsumexp(logits)^2
#
# `switch` (arXiv 2101.03961) and `sequence` (DeepSeek-V3) are 1 at perfect balance. The mean over the layers is taken.
# `transformers` is `load_balancing_loss_func` of that library, A at perfect balance. z: ST-MoE, arXiv 2202.08906.
#
# Letters: K trials, T tokens, B sequences, E experts, A active experts, L MoE layers.

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


_EXPERT = tuple(f"expert_{part}{bias}" for part in ("in", "gate", "out") for bias in ("", "_bias"))


@dataclass(frozen=True, kw_only=True)
class FFN:
    """The FFNs of a forward pass. It holds no weights."""

    shape: Shape
    gate: Gate
    maps: Maps
    route_scale: Tensor  # [K] float32, of gates that sum to one
    scale_of_routed: float = 1.0  # a factor on the weights of the routed experts, whatever the gate
    relu: bool = False
    top_groups: int = 0  # the groups of experts that a token may use; 0: it uses as many experts of each

    def dense(self, local: Local, block: int, h_KTD: Tensor) -> Tensor:
        """Return the output of a dense block's branch."""
        up = self.maps.named(local, "dense_in", block, h_KTD)
        gate = self.maps.named(local, "dense_gate", block, h_KTD) if "dense_gate" in local else None
        y = self.maps.named(local, "dense_out", block, self._activated(up, gate))
        self.maps.show("dense", block, h_KTD, y)
        return y

    def moe(
        self,
        local: Local,
        block: int,
        x_KTD: Tensor,
        y_KTD: Tensor,
        balance_KE: Tensor,
        noise_KE: Tensor | None,
        ties_K: Tensor | None,
    ) -> tuple[Tensor, Tensor, Choice]:
        """Return the residual stream x + y, the output of a MoE block's branch, and how it routed.

        `y` is the branch before. `balance` balances the load, `noise` is b_t, and `ties` are the keys of
        `choose_experts`.
        """
        weight_KDE, noise_KE = self._router(local, noise_KE)
        x_KTD, h_KTD, logits_KTE, chosen_KTA = router(
            x_KTD,
            y_KTD,
            weight_KDE,
            gain_KD=local.get("ffn_norm"),
            bias_KD=local.get("ffn_norm_bias"),
            noise_KE=noise_KE,
            balance_KE=balance_KE,
            score=None if self.top_groups else self.gate.score_in_kernel,
            scale_K=self.route_scale,
            ties_K=ties_K,
            num_active=self.shape.num_active,
            num_groups=self.shape.num_groups,
            kind=self.maps.norm_kind,
            eps=self.maps.norm_eps,
            backend=self.maps.backend,
        )
        y_KTD, choice = self._routed(local, block, h_KTD, weight_KDE, logits_KTE, chosen_KTA, balance_KE, ties_K)
        return x_KTD, y_KTD, choice

    def moe_of(
        self,
        local: Local,
        block: int,
        h_KTD: Tensor,
        balance_KE: Tensor,
        noise_KE: Tensor | None,
        ties_K: Tensor | None,
    ) -> tuple[Tensor, Choice]:
        """Return what `moe` does of a normed stream, where that is not the norm of x + y alone."""
        weight_KDE, noise_KE = self._router(local, noise_KE)
        logits_KTE = narrow_product(h_KTD.float(), weight_KDE, self.maps.backend)
        logits_KTE = logits_KTE if noise_KE is None else logits_KTE + noise_KE.unsqueeze(1)
        return self._routed(local, block, h_KTD, weight_KDE, logits_KTE, None, balance_KE, ties_K)

    def _router(self, local: Local, noise_KE: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the router's weight with its multiplier, and the noise with the bias that the optimizer trains."""
        learned_KE = local.get("router_logit_bias")
        if learned_KE is not None:
            learned_KE = learned_KE * self.maps.forward["router"].unsqueeze(-1)
            noise_KE = learned_KE if noise_KE is None else noise_KE + learned_KE
        return self.maps.scaled("router", local["router"]), noise_KE

    def _routed(
        self,
        local: Local,
        block: int,
        h_KTD: Tensor,
        weight_KDE: Tensor,
        logits_KTE: Tensor,
        chosen_KTA: Tensor | None,
        balance_KE: Tensor,
        ties_K: Tensor | None,
    ) -> tuple[Tensor, Choice]:
        """Return the output of the branch, given the logits, and the chosen experts where they are known."""
        num_active, num_groups, backend = self.shape.num_active, self.shape.num_groups, self.maps.backend
        if self.maps.tap is not None:  # without the noise; computed again, because the logits have it
            self.maps.show("router", block, h_KTD.float(), narrow_product(h_KTD.float(), weight_KDE))
        route_scale_K11 = self.route_scale.view(-1, 1, 1)
        scores_KTE = self.gate.scores(logits_KTE, route_scale_K11)
        if chosen_KTA is None:
            chosen_KTA = choose_experts(
                *(scores_KTE, balance_KE, num_active, num_groups, backend, ties_K), top_groups=self.top_groups
            )
        if self.gate.active_weights is None:
            weights_KTA = of_chosen(scores_KTE, chosen_KTA, backend)
        else:
            logits_KTA = of_chosen(logits_KTE, chosen_KTA, backend)
            weights_KTA = self.gate.active_weights(logits_KTA, route_scale_K11)
        if self.maps.tap is not None:
            all_weights_KTE = torch.zeros_like(scores_KTE).scatter(-1, chosen_KTA, weights_KTA.detach())
            self.maps.show("gates", block, logits_KTE, all_weights_KTE)
        y_KTD, load_KE = self._experts(local, block, h_KTD, chosen_KTA, weights_KTA)
        if self.shape.num_shared:
            y_KTD = y_KTD + self._shared(local, block, h_KTD)
        self.maps.show("moe", block, h_KTD, y_KTD)
        return y_KTD, Choice(load_KE=load_KE, scores_KTE=scores_KTE, logits_KTE=logits_KTE, chosen_KTA=chosen_KTA)

    def _experts(
        self, local: Local, block: int, h_KTD: Tensor, chosen_KTA: Tensor, weights_KTA: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return c_expert times the weighted sum of the active experts, and the load of every expert."""
        backend = self.maps.backend
        groups = group_rows(chosen_KTA, self.shape.num_experts, backend)
        own = {name: local[name].flatten(0, 1) for name in _EXPERT if name in local}
        # The branch's multiplier is applied here only: the weights are the smallest tensor on its path.
        factor_K = self.maps.forward["expert_out"]
        if self.scale_of_routed != 1:
            factor_K = factor_K * self.scale_of_routed
        scaled_KTA = weights_KTA * factor_K.view(-1, 1, 1)
        y_MD = experts(
            h_KTD.flatten(0, 1),
            own["expert_in"],
            own.get("expert_gate"),
            own["expert_out"],
            scaled_KTA.flatten(0, 1),
            groups,
            self.shape.num_active,
            b_in=own.get("expert_in_bias"),
            b_gate=own.get("expert_gate_bias"),
            b_out=own.get("expert_out_bias"),
            relu=self.relu,
            backend=backend,
        )
        if self.maps.tap is not None:
            self._tap_experts(own, block, h_KTD, groups)
        return y_MD.view_as(h_KTD), groups.load

    @torch.no_grad()
    def _tap_experts(self, own: Local, block: int, h_KTD: Tensor, groups: Groups) -> None:
        """Show the tap the products of the routed experts: inputs [K, T*A, I] and outputs [K, T*A, O].

        The output of expert_out has its forward multiplier in it. Rows are sorted by expert, then by token. They are
        computed again here, because the branch itself does not keep them.
        """
        x_ND = h_KTD.flatten(0, 1).index_select(0, groups.token)
        group_of_N = torch.repeat_interleave(groups.load.flatten(), output_size=x_ND.shape[0])

        def product(name: str, x_NI: Tensor) -> Tensor:
            y_NO = grouped_product(x_NI, own[name], groups.ends)
            if f"{name}_bias" in own:
                y_NO = y_NO + own[f"{name}_bias"].to(y_NO.dtype).index_select(0, group_of_N)
            x, y = (rows.view(h_KTD.shape[0], -1, rows.shape[-1]) for rows in (x_NI, y_NO))
            y = y * self.maps.forward[name].view(-1, 1, 1).to(y.dtype) if name in self.maps.forward else y
            self.maps.show(name, block, x, y)
            return y_NO

        up_NH = product("expert_in", x_ND)
        gate_NH = product("expert_gate", x_ND) if "expert_gate" in own else None
        product("expert_out", self._activated(up_NH, gate_NH))

    def _shared(self, local: Local, block: int, h_KTD: Tensor) -> Tensor:
        """Return c_shared times the sum of the shared experts, computed as one FFN with all their hidden features."""
        up = self._shared_up(local, "shared_in", block, h_KTD)
        gate = self._shared_up(local, "shared_gate", block, h_KTD) if "shared_gate" in local else None
        hidden_KTF = self._activated(up, gate)
        out_KFD = local["shared_out"].flatten(1, 2)
        biases_KSD = local.get("shared_out_bias")
        if "shared_router" not in local:
            bias_KD = None if biases_KSD is None else functools.reduce(operator.add, biases_KSD.unbind(1))
            return self.maps.linear("shared_out", block, hidden_KTF, out_KFD, bias_KD)
        # The gate of an expert multiplies its hidden features, of which there are fewer than products to come.
        weight_KDS = self.maps.scaled("router", local["shared_router"])
        logits_KTS = narrow_product(h_KTD.float(), weight_KDS, self.maps.backend)
        self.maps.show("shared_router", block, h_KTD, logits_KTS)
        gates_KTS = logits_KTS.sigmoid().to(hidden_KTF.dtype)
        hidden_KTF = (hidden_KTF.view(*gates_KTS.shape, -1) * gates_KTS.unsqueeze(-1)).flatten(-2)
        y_KTD = self.maps.linear("shared_out", block, hidden_KTF, out_KFD)
        if biases_KSD is not None:
            scaled_KSD = biases_KSD * self.maps.forward["shared_out"].view(-1, 1, 1)
            for index in range(self.shape.num_shared):
                bias_KTD = spread(scaled_KSD[:, index], h_KTD.shape[1], y_KTD.dtype, self.maps.backend)
                y_KTD = y_KTD + gates_KTS[..., index : index + 1] * bias_KTD
        return y_KTD

    def _shared_up(self, local: Local, name: str, block: int, h_KTD: Tensor) -> Tensor:
        """Return [K, T, S*H]."""
        weight_KDH = local[name].transpose(1, 2).flatten(2)
        bias = local.get(f"{name}_bias")
        return self.maps.linear(name, block, h_KTD, weight_KDH, None if bias is None else bias.flatten(1))

    def _activated(self, up: Tensor, gate: Tensor | None) -> Tensor:
        if gate is not None:
            return F.silu(gate) * up
        return up.relu() if self.relu else F.gelu(up)
