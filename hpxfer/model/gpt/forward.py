"""The forward pass of the stacked GPT: K trials of one shape at once. A single trial is K = 1 of the same code.

    x = c_embedding * embedding[token] + position            or no position
    x <- x + c_attn * attention(norm(x))                     causal
    x <- x + FFN(norm(x))
    logits = c_out * readout(norm(x))

Source: arXiv 2601.20205, section 3.1, and `transformers` for what Mixtral, Qwen3-MoE, OLMoE and GLM-4.5 do otherwise.

Letters: K trials, B sequences, S context, T = B*S tokens, D width, E experts, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.embedding import embed
from hpxfer.kernels.head import head_losses
from hpxfer.kernels.rope import rotation
from hpxfer.model.ffn import Choice
from hpxfer.model.gpt.layout import FORWARD_ROLES, gpt_parameters
from hpxfer.model.linear import Local, document_mask, positions_in_documents
from hpxfer.model.parameters import ParameterSpec
from hpxfer.model.transformer.stack import COMPUTE_DTYPE, Transformer, numbers_of
from hpxfer.trial import Trial


@dataclass(frozen=True, kw_only=True)
class GPTForward(Transformer):
    """The forward pass of a stack. It holds no weights. Beside the names of every transformer, a tap is called with
    "embedding": token ids, residual stream.

    `forward` has no embedding if it is 1 for all trials.
    """

    def _layout(self) -> tuple[ParameterSpec, ...]:
        return gpt_parameters(self.shape, self.setting)

    def _start(self, outside: Local, inputs_KBS: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor | None]:
        return self._embed(outside, inputs_KBS), self._mask(inputs_KBS)

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

    def _last(
        self, outside: Local, x_KTD: torch.Tensor, y_KTD: torch.Tensor | None, beside: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self._maps.added_norm(outside, "final_norm", x_KTD, y_KTD)

    @cached_property
    def _rotation(self) -> tuple[torch.Tensor, torch.Tensor] | None:
        if self.setting.positions != "rope":
            return None
        theta, share = self.setting.rope_theta, self.setting.rope_share
        device = self.route_scale.device
        return rotation(self.setting.context, self.shape.head_dim, theta=theta, share=share, device=device)

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
        else:
            x_KTD = self._placed_rows(rows_KTD, position_KSD, inputs_KBS.shape[1])
        x_KTD = x_KTD.to(COMPUTE_DTYPE[self.setting.precision])
        self._maps.show("embedding", 0, inputs_KBS, x_KTD)
        return x_KTD

    def _mask(self, inputs_KBS: torch.Tensor) -> torch.Tensor | None:
        """Return what keeps the documents of a window apart, [K*B, S, S], or None if windows are one document."""
        eos_id = self.setting.document_eos
        return None if eos_id is None else document_mask(inputs_KBS, eos_id, COMPUTE_DTYPE[self.setting.precision])

    def _losses(self, outside: Local, h_KTD: torch.Tensor, targets_KBS: torch.Tensor) -> torch.Tensor:
        tied = self.setting.tied_embeddings
        readout_KDV = outside["embedding"].transpose(1, 2) if tied else outside["readout"]
        readout_KDV = self._maps.scaled("readout", readout_KDV)
        if self.tap is not None:
            self._maps.show("readout", 0, h_KTD, torch.bmm(h_KTD, readout_KDV.to(h_KTD.dtype)))
        return head_losses(h_KTD, readout_KDV, targets_KBS.flatten(1), backend=self.backend)


def build_gpt(trials: Sequence[Trial], device: torch.device, backend: Backend = TORCH) -> GPTForward:
    """Return the forward pass of a stack. Fail if a trial needs a forward multiplier that the GPT does not apply."""
    given = numbers_of(trials, FORWARD_ROLES, device, backend)
    if bool((given["forward"]["embedding"] == 1.0).all()):
        # It has an operation of its own; the others are joined with one that is there anyway.
        del given["forward"]["embedding"]
    return GPTForward(**given)
