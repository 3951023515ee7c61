"""The passes of a stacked transformer: K trials of one shape at once. A single trial is K = 1 of the same code.

    x <- x + c_attn * attention(h)                           q.k / d_head; norms and rotations of q and k, and a gate of
                                                             the output, where the model has them
    x <- x + FFN(h)                                          `ffn`: routed and shared experts, or a dense one

A family says where the stream starts, what its blocks read of it (h), and what the last stream is for.

The c are the forward multipliers of `scaling.resolve`. The route scale is the num_active of the base times the table's
factor.

Letters: K trials, B sequences, S context, T = B*S tokens, D width, H heads, E experts, L MoE layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Self

import torch
from torch.utils.checkpoint import checkpoint

from hpxfer.kernels.attention import attention
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.heads import by_heads, place_heads
from hpxfer.kernels.routing import BY_INDEX
from hpxfer.kernels.sums import spread
from hpxfer.model.draws import tie_keys
from hpxfer.model.ffn import FFN, Choice, Regularizers
from hpxfer.model.flat import Weights
from hpxfer.model.gates import GATES
from hpxfer.model.linear import Local, Maps
from hpxfer.model.output import Output, Tap
from hpxfer.model.parameters import ParameterSpec
from hpxfer.model.transformer.layout import QKV
from hpxfer.registry import rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec import moe_blocks
from hpxfer.trial import Setting, Trial

COMPUTE_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Transformer:
    """The forward pass of a stack. It holds no weights.

    A tap is called as tap(name, block, input, output) with detached tensors. The names are:
    - each linear map: attn_q, attn_k, attn_v, attn_gate, attn_out, router, shared_router, expert_*, shared_*, dense_*,
      readout. Its output includes the forward multiplier. The rows of experts are sorted by expert, then by token.
    - "q_norm", "k_norm": queries or keys before and after their norm
    - "attention", "moe", "dense": what a branch reads, and what it gives
    - "gates": logits [K, T, E], weights [K, T, E] with the route scale, zero for experts that are not active
    - "stream": the residual stream before and after the block
    - "final_norm": stream, normed stream
    """

    causal: ClassVar[bool] = True
    """Whether a token sees only those before it."""

    shape: Shape
    setting: Setting
    num_trials: int
    forward: Mapping[str, torch.Tensor]  # role -> [K] float32
    route_scale: torch.Tensor  # [K] float32
    ties_LK: torch.Tensor | None = None  # the keys of `choose_experts`; None if no trial breaks ties at random
    aux_weight: torch.Tensor | None = None  # [K] float32; None if no trial has one
    z_weight: torch.Tensor | None = None  # [K] float32; None if no trial has one
    recompute: bool = False
    tap: Tap | None = None
    backend: Backend = TORCH

    # What a family says.

    def _layout(self) -> tuple[ParameterSpec, ...]:
        """Return the parameters."""
        raise NotImplementedError

    @property
    def context(self) -> int:
        """The tokens of a sequence."""
        return self.setting.context

    def _start(self, outside: Local, inputs: torch.Tensor) -> tuple[torch.Tensor, Any]:
        """Return the stream [K, T, D] that the first block reads, and what every block and the end read beside it."""
        raise NotImplementedError

    def _block(
        self,
        local: Local,
        block: int,
        x_KTD: torch.Tensor,
        y_KTD: torch.Tensor | None,
        beside: Any,
        balance_KE: torch.Tensor | None,
        noise_KE: torch.Tensor | None,
        ties_K: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, Choice | None]:
        """Return the residual stream before the block's last branch, what that adds, and how the router chose."""
        raise NotImplementedError

    def _last(
        self, outside: Local, x_KTD: torch.Tensor, y_KTD: torch.Tensor | None, beside: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the last stream, and what the readout reads of it."""
        raise NotImplementedError

    def _losses(self, outside: Local, h_KTD: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the losses, float32 [K, T], or [K, B] of a model with one loss for a sample."""
        raise NotImplementedError

    @property
    def _rotation(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(cos, sin) of the angles by which queries and keys are rotated, or None."""
        return None

    # The passes.

    def __call__(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        targets_KBS: torch.Tensor,
        *,
        noise_LKE: torch.Tensor | None = None,
        load_LKE: torch.Tensor | None = None,
        piece_K: torch.Tensor | None = None,
    ) -> Output:
        """Return the losses, the loads and scores of the experts, and the regularizers of the trials.

        `router_bias` balances the load, and `load` is that of the step before, or of the whole batch where the inputs
        are pieces of one. `noise` is added to the router's logits: b_t of the router-bias schedule, and the fixed bias.
        `piece` [K] int32 is the place of the inputs in their batch, from which random ties number the tokens.
        """
        outside, h_KTD, routed = self._through(weights, router_bias_LKE, inputs_KBS, noise_LKE, piece_K)
        regularizer_K, values = self._regularizers(routed, load_LKE)
        return Output(
            regularizer_K=regularizer_K,
            regularizers={name: tuple(value.detach() for value in found) for name, found in values.items()},
            losses_KT=self._losses(outside, h_KTD, targets_KBS),
            load_LKE=_loads(routed, router_bias_LKE),
            scores=tuple(layer.scores_KTE.detach() for layer in routed),
        )

    @torch.no_grad()
    def loads(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        *,
        noise_LKE: torch.Tensor | None = None,
        piece_K: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the tokens of every expert, [L, K, E] int64, without the head and without a gradient."""
        *_, routed = self._through(weights, router_bias_LKE, inputs_KBS, noise_LKE, piece_K)
        return _loads(routed, router_bias_LKE)

    def _through(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        noise_LKE: torch.Tensor | None,
        piece_K: torch.Tensor | None,
    ) -> tuple[Local, torch.Tensor, list[Choice]]:
        """Return the parameters outside the blocks, what the readout reads, and how the routers chose."""
        outside, *blocks = self._local(weights)
        x_KTD, beside = self._start(outside, inputs_KBS)
        y_KTD: torch.Tensor | None = None  # what the branch before adds to the stream, which is part of the next norm
        routed: list[Choice] = []
        ties_LK = _placed_ties(self.ties_LK, piece_K, inputs_KBS.shape[1] * self.context)
        again = self.recompute and self.tap is None and torch.is_grad_enabled()
        for block, local in enumerate(blocks):
            index = len(routed)
            noise_KE = None if noise_LKE is None or block not in self._moe_blocks else noise_LKE[index]
            ties_K = None if ties_LK is None or block not in self._moe_blocks else ties_LK[index]
            balance_KE = router_bias_LKE[index] if block in self._moe_blocks else None
            given = local, block, x_KTD, y_KTD, beside, balance_KE, noise_KE, ties_K
            if again:
                x_KTD, y_KTD, routing = checkpoint(self._block, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                x_KTD, y_KTD, routing = self._block(*given)
            if routing is not None:
                routed.append(routing)
        x_KTD, h_KTD = self._last(outside, x_KTD, y_KTD, beside)
        self._maps.show("final_norm", 0, x_KTD, h_KTD)
        return outside, h_KTD, routed

    def with_tap(self, tap: Tap) -> Self:
        """Return this model with a tap."""
        return replace(self, tap=tap)

    def with_recomputation(self) -> Self:
        """Return this model, of which the backward pass computes each block again. The bits are the same.

        No kernel of the forward pass depends on the order of threads, so the routers choose the same experts again.
        """
        return replace(self, recompute=True)

    def numbers(self) -> dict[str, torch.Tensor]:
        """Return the numbers of the trials by name, [K] or [L, K]. A captured step reads them in place."""
        ties = {} if self.ties_LK is None else {"ties": self.ties_LK}
        weights = {"aux_weight": self.aux_weight, "z_weight": self.z_weight}
        given = {name: weight for name, weight in weights.items() if weight is not None}
        return {**self.forward, "route_scale": self.route_scale, **ties, **given}

    def __post_init__(self) -> None:
        # They are computed now, because torch.compile does not enter the lock of a cached property.
        for name in ("_moe_blocks", "_maps", "_ffn", "_copies", "_rotation", "_regularizers"):
            getattr(self, name)

    @cached_property
    def _moe_blocks(self) -> frozenset[int]:
        return frozenset(moe_blocks(self.shape, self.setting))

    @cached_property
    def _maps(self) -> Maps:
        return Maps(
            forward=self.forward,
            norm_kind=self.setting.norm,
            norm_eps=self.setting.norm_eps,
            tap=self.tap,
            backend=self.backend,
        )

    @cached_property
    def _ffn(self) -> FFN:
        gate = GATES.get(self.setting.gate)
        return FFN(
            shape=self.shape,
            gate=gate,
            maps=self._maps,
            route_scale=self.route_scale,
            scale_of_routed=self.setting.route_scale,
            relu=self.setting.ffn == "relu",
            top_groups=self.setting.top_groups,
        )

    @cached_property
    def _regularizers(self) -> Regularizers:
        return Regularizers(
            aux=self.setting.balance.aux,
            context=self.context,
            aux_weight_K=self.aux_weight,
            z_weight_K=self.z_weight,
            backend=self.backend,
        )

    @cached_property
    def _copies(self) -> list[list[tuple[str, int]]]:
        """(name, copy) of the parameters outside the blocks, then of those of each block."""
        out: list[list[tuple[str, int]]] = [[] for _ in range(1 + self.shape.depth)]
        for spec in self._layout():
            for copy, block in enumerate(spec.blocks or (-1,)):
                out[1 + block].append((spec.name, copy))
        return out

    def _local(self, weights: Weights) -> list[Local]:
        """Return the parameters outside the blocks, then those of each block."""
        return [{name: weights[name][copy] for name, copy in copies} for copies in self._copies]

    def _placed_rows(self, rows_KTD: torch.Tensor, position_KSD: torch.Tensor, num_sequences: int) -> torch.Tensor:
        """Return the rows of tokens with the learned positions of their sequences added."""
        if self.backend.is_triton and self.backend.strict:
            # The gradient of a position sums over the sequences of its trial, as the gradient of a bias sums over rows.
            positions_KTD = spread(position_KSD.flatten(1), num_sequences, rows_KTD.dtype, self.backend)
            return rows_KTD + positions_KTD.reshape(rows_KTD.shape)
        size = len(rows_KTD), num_sequences, *position_KSD.shape[1:]
        return (rows_KTD.view(size) + position_KSD.unsqueeze(1)).flatten(1, 2)

    def _attention(
        self, local: Local, block: int, h_KTD: torch.Tensor, mask_NSS: torch.Tensor | None = None
    ) -> torch.Tensor:
        names = (*QKV, "attn_gate") if self.setting.attention_gate else QKV
        q_KTO, k_KTO, v_KTO, *gate_KTO = self._maps.joined(local, names, block, h_KTD)
        q, k = (self._placed(local, name, block, x) for name, x in (("q_norm", q_KTO), ("k_norm", k_KTO)))
        heads_NSHP = attention(
            *(q, k, by_heads(v_KTO, self.shape.head_dim, self.context)),
            scale=self._attention_scale,
            num_trials=self.num_trials,
            causal=self.causal,
            mask_NSS=mask_NSS,
            backend=self.backend,
        )
        out_KTO = heads_NSHP.reshape(q_KTO.shape)
        if gate_KTO:
            out_KTO = out_KTO * gate_KTO[0].sigmoid()
        y_KTD = self._maps.named(local, "attn_out", block, out_KTO)
        self._maps.show("attention", block, h_KTD, y_KTD)
        return y_KTD

    def _placed(self, local: Local, name: str, block: int, x_KTO: torch.Tensor) -> torch.Tensor:
        """Return queries or keys by heads, [N, S, H, P], normed and rotated as the model does."""
        given = x_KTO, local.get(name), local.get(f"{name}_bias")
        how = partial(
            place_heads,
            head_dim=self.shape.head_dim,
            context=self.context,
            scope=self.setting.qk_norm,
            kind=self.setting.qk_norm_kind,
            eps=self.setting.norm_eps,
            backend=self.backend,
        )
        if self.tap is not None and self.setting.qk_norm != "none":
            normed_NSHP = how(*given, None)
            self._maps.show(name, block, x_KTO, normed_NSHP.reshape(x_KTO.shape))
        return how(*given, self._rotation)

    @property
    def _attention_scale(self) -> float:
        head_dim = self.shape.head_dim
        return 1.0 / head_dim if self.setting.attention_scale == "1/d_head" else head_dim**-0.5


def numbers_of(trials: Sequence[Trial], roles: Sequence[str], device: torch.device, backend: Backend) -> dict[str, Any]:
    """Return the fields of the model of a stack of one shape and setting.

    Fail if a trial needs a forward multiplier that the model does not apply: that of another role than `roles`.
    """
    shape, setting = trials[0].shape, trials[0].setting
    resolved = [trial.resolved() for trial in trials]
    layout = rows_of("family").get(setting.family).parameters
    present = {spec.role for spec in layout(shape, setting)} | {"readout"}
    for numbers in resolved:
        others = {role for role in present.difference(roles) if role in numbers and numbers[role].forward != 1.0}
        assert not others, f"the model applies no forward multiplier to {sorted(others)}"

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    return {
        "shape": shape,
        "setting": setting,
        "num_trials": len(trials),
        "forward": {role: column([each[role].forward for each in resolved]) for role in roles if role in present},
        "route_scale": column([trial.globals().route_scale for trial in trials]),
        "ties_LK": _ties(trials, moe_blocks(shape, setting), device),
        "aux_weight": _given(column([trial.hps.aux_weight for trial in trials])),
        "z_weight": _given(column([trial.hps.z_weight for trial in trials])),
        "backend": backend,
    }


def _loads(routed: Sequence[Choice], router_bias_LKE: torch.Tensor) -> torch.Tensor:
    return torch.stack([layer.load_KE for layer in routed]) if routed else router_bias_LKE.long()


def _placed_ties(ties_LK: torch.Tensor | None, piece_K: torch.Tensor | None, num_tokens: int) -> torch.Tensor | None:
    """Return the keys of `choose_experts`, with which a piece's tokens are numbered after those of the pieces before.

    A token's order is a hash of key ^ token. The bits above those of the tokens hold the number of the piece.
    """
    if ties_LK is None or piece_K is None:
        return ties_LK
    above = piece_K << (num_tokens - 1).bit_length()
    return torch.where(ties_LK == BY_INDEX, ties_LK, ties_LK ^ above)


def _given(weight_K: torch.Tensor) -> torch.Tensor | None:
    """Return the weights of the trials, or None if none has one."""
    return weight_K if bool(weight_K.any()) else None


def _ties(trials: Sequence[Trial], blocks: Sequence[int], device: torch.device) -> torch.Tensor | None:
    """Return the keys [L, K] of `choose_experts`, or None if no trial breaks ties at random."""
    is_random_K = torch.tensor([trial.setting.ties == "random" for trial in trials])
    if not is_random_K.any():
        return None
    return torch.where(is_random_K, tie_keys([trial.seed for trial in trials], blocks), BY_INDEX).to(device)
