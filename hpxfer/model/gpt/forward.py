"""The forward pass of the stacked GPT: K trials of one shape at once. A single trial is K = 1 of the same code.

    x = c_embedding * embedding[token] + position            or no position
    x <- x + c_attn * attention(norm(x))                     q.k / d_head, causal; norms and rotations of q and k,
                                                             and a gate of the output, where the model has them
    x <- x + FFN(norm(x))                                    `ffn`: routed and shared experts, or a dense one
    logits = c_out * readout(norm(x))

Source: arXiv 2601.20205, section 3.1, and `transformers` for what Mixtral, Qwen3-MoE, OLMoE and GLM-4.5 do otherwise.
The c are the forward multipliers of `scaling.resolve`. The route scale is the num_active of the base times the table's
factor.

Letters: K trials, B sequences, S context, T = B*S tokens, D width, H heads, E experts, V vocabulary, L MoE layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch.utils.checkpoint import checkpoint

from hpxfer.kernels.attention import causal_attention
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.embedding import embed
from hpxfer.kernels.head import head_losses
from hpxfer.kernels.heads import by_heads, place_heads
from hpxfer.kernels.rope import rotation
from hpxfer.kernels.routing import BY_INDEX
from hpxfer.kernels.sums import spread
from hpxfer.model.draws import tie_keys
from hpxfer.model.ffn import FFN, Choice, Regularizers
from hpxfer.model.flat import Weights
from hpxfer.model.gates import GATES
from hpxfer.model.gpt.layout import FORWARD_ROLES, QKV, gpt_parameters
from hpxfer.model.linear import Local, Maps, document_mask, positions_in_documents
from hpxfer.model.output import Output, Tap
from hpxfer.scaling.shape import Shape
from hpxfer.spec import moe_blocks
from hpxfer.trial import Setting, Trial

COMPUTE_DTYPE = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class GPTForward:
    """The forward pass of a stack. It holds no weights.

    A tap is called as tap(name, block, input, output) with detached tensors. The names are:
    - each linear map: attn_q, attn_k, attn_v, attn_gate, attn_out, router, shared_router, expert_*, shared_*, dense_*,
      readout. Its output includes the forward multiplier. The rows of experts are sorted by expert, then by token.
    - "embedding": token ids, residual stream
    - "q_norm", "k_norm": queries or keys before and after their norm
    - "attention", "moe", "dense": normed stream, the branch as it is added to the stream
    - "gates": logits [K, T, E], weights [K, T, E] with the route scale, zero for experts that are not active
    - "stream": the residual stream before and after the block
    - "final_norm": stream, normed stream
    """

    shape: Shape
    setting: Setting
    num_trials: int
    forward: Mapping[str, torch.Tensor]  # role -> [K] float32, of FORWARD_ROLES; no embedding if it is 1 for all
    route_scale: torch.Tensor  # [K] float32
    ties_LK: torch.Tensor | None = None  # the keys of `choose_experts`; None if no trial breaks ties at random
    aux_weight: torch.Tensor | None = None  # [K] float32; None if no trial has one
    z_weight: torch.Tensor | None = None  # [K] float32; None if no trial has one
    recompute: bool = False
    tap: Tap | None = None
    backend: Backend = TORCH

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
        """Return per-token losses, the loads and scores of the experts, and the regularizers of the trials.

        `router_bias` balances the load, and `load` is that of the step before, or of the whole batch where the inputs
        are pieces of one. `noise` is added to the router's logits: b_t of the router-bias schedule, and the fixed bias.
        `piece` [K] int32 is the place of the inputs in their batch, from which random ties number the tokens.
        """
        outside, *blocks = self._local(weights)
        x_KTD, y_KTD, routed = self._stream(outside, blocks, router_bias_LKE, inputs_KBS, noise_LKE, piece_K)
        x_KTD, h_KTD = self._maps.added_norm(outside, "final_norm", x_KTD, y_KTD)
        self._maps.show("final_norm", 0, x_KTD, h_KTD)
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
        outside, *blocks = self._local(weights)
        *_, routed = self._stream(outside, blocks, router_bias_LKE, inputs_KBS, noise_LKE, piece_K)
        return _loads(routed, router_bias_LKE)

    def _stream(
        self,
        outside: Local,
        blocks: Sequence[Local],
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        noise_LKE: torch.Tensor | None,
        piece_K: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor | None, list[Choice]]:
        """Return the residual stream before the last branch, what that branch adds, and how the routers chose."""
        x_KTD = self._embed(outside, inputs_KBS)
        mask_NSS = self._mask(inputs_KBS)
        y_KTD: torch.Tensor | None = None  # what the branch before adds to the stream, which is part of the next norm
        routed: list[Choice] = []
        ties_LK = _placed_ties(self.ties_LK, piece_K, inputs_KBS[0].numel())
        again = self.recompute and self.tap is None and torch.is_grad_enabled()
        for block, local in enumerate(blocks):
            index = len(routed)
            noise_KE = None if noise_LKE is None or block not in self._moe_blocks else noise_LKE[index]
            ties_K = None if ties_LK is None or block not in self._moe_blocks else ties_LK[index]
            balance_KE = router_bias_LKE[index] if block in self._moe_blocks else None
            given = local, block, x_KTD, y_KTD, mask_NSS, balance_KE, noise_KE, ties_K
            if again:
                x_KTD, y_KTD, routing = checkpoint(self._block, *given, use_reentrant=False, preserve_rng_state=False)
            else:
                x_KTD, y_KTD, routing = self._block(*given)
            if routing is not None:
                routed.append(routing)
        return x_KTD, y_KTD, routed

    def _block(
        self,
        local: Local,
        block: int,
        x_KTD: torch.Tensor,
        y_KTD: torch.Tensor | None,
        mask_NSS: torch.Tensor | None,
        balance_KE: torch.Tensor | None,
        noise_KE: torch.Tensor | None,
        ties_K: torch.Tensor | None,
    ) -> tuple[torch.Tensor, torch.Tensor, Choice | None]:
        """Return the residual stream before the block's last branch, what that adds, and how the router chose."""
        x_KTD, h_KTD = self._maps.added_norm(local, "attn_norm", x_KTD, y_KTD)
        before_KTD, routing = x_KTD, None
        y_KTD = self._attention(local, block, h_KTD, mask_NSS)
        if balance_KE is not None:
            x_KTD, y_KTD, routing = self._ffn.moe(local, block, x_KTD, y_KTD, balance_KE, noise_KE, ties_K)
        else:
            x_KTD, h_KTD = self._maps.added_norm(local, "ffn_norm", x_KTD, y_KTD)
            y_KTD = self._ffn.dense(local, block, h_KTD)
        if self.tap is not None:
            self._maps.show("stream", block, before_KTD, x_KTD + y_KTD)
        return x_KTD, y_KTD, routing

    def with_tap(self, tap: Tap) -> GPTForward:
        """Return this model with a tap."""
        return replace(self, tap=tap)

    def with_recomputation(self) -> GPTForward:
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
            context=self.setting.context,
            aux_weight_K=self.aux_weight,
            z_weight_K=self.z_weight,
            backend=self.backend,
        )

    @cached_property
    def _rotation(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        """(cos, sin) of the angles by which queries and keys are rotated, or None."""
        if self.setting.positions != "rope":
            return None
        theta, share = self.setting.rope_theta, self.setting.rope_share
        device = self.route_scale.device
        return rotation(self.setting.context, self.shape.head_dim, theta=theta, share=share, device=device)

    @cached_property
    def _copies(self) -> list[list[tuple[str, int]]]:
        """(name, copy) of the parameters outside the blocks, then of those of each block."""
        out: list[list[tuple[str, int]]] = [[] for _ in range(1 + self.shape.depth)]
        for spec in gpt_parameters(self.shape, self.setting):
            for copy, block in enumerate(spec.blocks or (-1,)):
                out[1 + block].append((spec.name, copy))
        return out

    def _local(self, weights: Weights) -> list[Local]:
        """Return the parameters outside the blocks, then those of each block."""
        return [{name: weights[name][copy] for name, copy in copies} for copies in self._copies]

    def _embed(self, outside: Local, inputs_KBS: torch.Tensor) -> torch.Tensor:
        rows_KTD = embed(outside["embedding"], inputs_KBS.flatten(1), self.backend)
        if "embedding" in self.forward:
            rows_KTD = rows_KTD * self.forward["embedding"].view(-1, 1, 1)
        position_KSD = outside.get("position")
        if position_KSD is None:
            x_KTD = rows_KTD
        elif self.setting.document_eos is not None:
            places_KT = positions_in_documents(inputs_KBS, self.setting.document_eos).flatten(1)
            x_KTD = rows_KTD + embed(position_KSD, places_KT, self.backend)
        elif self.backend.is_triton and self.backend.strict:
            # The gradient of a position sums over the sequences of its trial, as the gradient of a bias sums over rows.
            positions_KTD = spread(position_KSD.flatten(1), inputs_KBS.shape[1], rows_KTD.dtype, self.backend)
            x_KTD = rows_KTD + positions_KTD.reshape(rows_KTD.shape)
        else:
            x_KTD = (rows_KTD.view(*inputs_KBS.shape, -1) + position_KSD.unsqueeze(1)).flatten(1, 2)
        x_KTD = x_KTD.to(COMPUTE_DTYPE[self.setting.precision])
        self._maps.show("embedding", 0, inputs_KBS, x_KTD)
        return x_KTD

    def _mask(self, inputs_KBS: torch.Tensor) -> torch.Tensor | None:
        """Return what keeps the documents of a window apart, [K*B, S, S], or None if windows are one document."""
        eos_id = self.setting.document_eos
        return None if eos_id is None else document_mask(inputs_KBS, eos_id, COMPUTE_DTYPE[self.setting.precision])

    def _attention(self, local: Local, block: int, h_KTD: torch.Tensor, mask_NSS: torch.Tensor | None) -> torch.Tensor:
        names = (*QKV, "attn_gate") if self.setting.attention_gate else QKV
        q_KTO, k_KTO, v_KTO, *gate_KTO = self._maps.joined(local, names, block, h_KTD)
        q, k = (self._placed(local, name, block, x) for name, x in (("q_norm", q_KTO), ("k_norm", k_KTO)))
        heads_NSHP = causal_attention(
            *(q, k, by_heads(v_KTO, self.shape.head_dim, self.setting.context)),
            scale=self._attention_scale,
            num_trials=self.num_trials,
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
            context=self.setting.context,
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

    def _losses(self, outside: Local, h_KTD: torch.Tensor, targets_KBS: torch.Tensor) -> torch.Tensor:
        tied = self.setting.tied_embeddings
        readout_KDV = outside["embedding"].transpose(1, 2) if tied else outside["readout"]
        readout_KDV = self._maps.scaled("readout", readout_KDV)
        if self.tap is not None:
            self._maps.show("readout", 0, h_KTD, torch.bmm(h_KTD, readout_KDV.to(h_KTD.dtype)))
        return head_losses(h_KTD, readout_KDV, targets_KBS.flatten(1), backend=self.backend)


def build_gpt(trials: Sequence[Trial], device: torch.device, backend: Backend = TORCH) -> GPTForward:
    """Return the forward pass of a stack. Fail if a trial needs a forward multiplier that the GPT does not apply."""
    shape, setting = trials[0].shape, trials[0].setting
    resolved = [trial.resolved() for trial in trials]
    present = {spec.role for spec in gpt_parameters(shape, setting)} | {"readout"}
    for roles in resolved:
        others = {role for role in present.difference(FORWARD_ROLES) if role in roles and roles[role].forward != 1.0}
        assert not others, f"the GPT applies no forward multiplier to {sorted(others)}"

    def column(values: list[float]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=device)

    forward = {role: column([roles[role].forward for roles in resolved]) for role in FORWARD_ROLES if role in present}
    if bool((forward["embedding"] == 1.0).all()):
        del forward["embedding"]  # it has an operation of its own; the others are joined with one that is there anyway
    return GPTForward(
        shape=shape,
        setting=setting,
        num_trials=len(trials),
        forward=forward,
        route_scale=column([trial.globals().route_scale for trial in trials]),
        ties_LK=_ties(trials, moe_blocks(shape, setting), device),
        aux_weight=_given(column([trial.hps.aux_weight for trial in trials])),
        z_weight=_given(column([trial.hps.z_weight for trial in trials])),
        backend=backend,
    )


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
