"""The forward pass of the stacked diffusion transformer: K trials of one shape at once.

    h   = patch(z) + position                                each patch of the noisy sample is a token
    phi = [cos, sin](time_scale t 10000^(-i/(F/2)))          i from 0 to F/2 - 1
    c   = silu(time_out(silu(time_in(phi))) + label[y])
    s1, g1, a1, s2, g2, a2 = modulation(c) + bias            of every block: shift, scale and gate of both branches
    h  <- h + a1 * c_attn * attention(norm(h) (1 + g1) + s1)     over all tokens of the sample
    h  <- h + a2 * FFN(norm(h) (1 + g2) + s2)
    s, g = final_modulation(c) + bias
    v   = c_out * readout(norm(h) (1 + g) + s)               the loss of a sample is the mean of (v - u)^2

Letters: K trials, B samples, S tokens of a sample, T = B*S, N = K*B samples of all trials, D width, P numbers of a
patch, F frequencies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.kernels.embedding import embed
from hpxfer.kernels.norm import added_norm
from hpxfer.kernels.sums import column_sums, spread
from hpxfer.model.dit.layout import FORWARD_ROLES, LAST_PARTS, PARTS, parameters
from hpxfer.model.dit.section import DiTSpec, num_tokens, options_of, patch_features
from hpxfer.model.ffn import Choice
from hpxfer.model.flat import Weights
from hpxfer.model.linear import Local
from hpxfer.model.parameters import ParameterSpec
from hpxfer.model.transformer.stack import COMPUTE_DTYPE, Transformer, numbers_of
from hpxfer.trial import Trial

LONGEST = 10_000.0  # the longest wavelength of times and places, in units of the shortest


class Inputs(NamedTuple):
    """What the model reads of a batch [K, B, S*P + 2]: the noisy samples patch by patch, their times and classes."""

    z_KTP: Tensor
    t_KB: Tensor
    class_KB: Tensor


@dataclass(frozen=True, kw_only=True)
class DiTForward(Transformer):
    """The forward pass of a stack. It holds no weights. Beside the names of every transformer, a tap is called with

    - the maps patch_in, time_in, time_out, modulation and final_modulation
    - "label": classes, rows of the table
    - "condition": what time_out and label sum to, before and after silu
    """

    causal = False

    def _layout(self) -> tuple[ParameterSpec, ...]:
        return parameters(self.shape, self.setting)

    @cached_property
    def own(self) -> DiTSpec:
        """The options of the family."""
        return options_of(self.setting)

    @cached_property
    def context(self) -> int:
        return num_tokens(self.setting)

    @torch.no_grad()
    def velocity(self, weights: Weights, router_bias_LKE: Tensor, inputs: Tensor, noise_LKE: Tensor | None) -> Tensor:
        """Return v of a batch, float32 [K, B, S*P], patch by patch."""
        outside, h_KTD, _ = self._through(weights, router_bias_LKE, inputs, noise_LKE, None)
        return self._readout(outside, h_KTD).view(len(inputs), inputs.shape[1], -1)

    def _start(self, outside: Local, inputs: Tensor) -> tuple[Tensor, Tensor]:
        z_KTP, t_KB, class_KB = self._read(inputs)
        rows_KTD = self._maps.named(outside, "patch_in", 0, z_KTP.to(self._dtype))
        position_KSD = outside.get("position")
        if position_KSD is None:
            x_KTD = (rows_KTD.view(-1, self.context, self.shape.width) + self._places_SD).view(rows_KTD.shape)
        else:
            x_KTD = self._placed_rows(rows_KTD, position_KSD, inputs.shape[1])
        return x_KTD.to(self._dtype), self._condition(outside, t_KB, class_KB)

    def _read(self, inputs: Tensor) -> Inputs:
        size = self.context * patch_features(self.own)
        z_KTP = inputs[..., :size].reshape(len(inputs), -1, patch_features(self.own))
        return Inputs(z_KTP, inputs[..., size], inputs[..., size + 1].long())

    def _condition(self, outside: Local, t_KB: Tensor, class_KB: Tensor) -> Tensor:
        """Return c, [K, B, D]."""
        angles = (self.own.time_scale * t_KB).unsqueeze(-1) * self._frequencies
        phi_KBF = torch.cat([angles.cos(), angles.sin()], dim=-1).to(self._dtype)
        hidden = F.silu(self._maps.named(outside, "time_in", 0, phi_KBF))
        sum_KBD = self._maps.named(outside, "time_out", 0, hidden)
        if "label" in outside:
            rows_KBD = embed(outside["label"], class_KB, self.backend)
            self._maps.show("label", 0, class_KB, rows_KBD)
            sum_KBD = sum_KBD + rows_KBD.to(sum_KBD.dtype)
        c_KBD = F.silu(sum_KBD)
        self._maps.show("condition", 0, sum_KBD, c_KBD)
        return c_KBD

    def _block(
        self,
        local: Local,
        block: int,
        x_KTD: Tensor,
        y_KTD: Tensor | None,
        c_KBD: Tensor,
        balance_KE: Tensor | None,
        noise_KE: Tensor | None,
        ties_K: Tensor | None,
    ) -> tuple[Tensor, Tensor, Choice | None]:
        s1, g1, a1, s2, g2, a2 = self._modulation(local, "modulation", block, c_KBD, PARTS)
        x_KTD, h_KTD = self._modulated(x_KTD, y_KTD, s1, g1)
        before_KTD, routing = x_KTD, None
        y_KTD = self._gated(self._attention(local, block, h_KTD), a1)
        x_KTD, h_KTD = self._modulated(x_KTD, y_KTD, s2, g2)
        if balance_KE is not None:
            y_KTD, routing = self._ffn.moe_of(local, block, h_KTD, balance_KE, noise_KE, ties_K)
        else:
            y_KTD = self._ffn.dense(local, block, h_KTD)
        y_KTD = self._gated(y_KTD, a2)
        if self.tap is not None:
            self._maps.show("stream", block, before_KTD, x_KTD + y_KTD)
        return x_KTD, y_KTD, routing

    def _last(self, outside: Local, x_KTD: Tensor, y_KTD: Tensor | None, c_KBD: Tensor) -> tuple[Tensor, Tensor]:
        shift, scale = self._modulation(outside, "final_modulation", 0, c_KBD, LAST_PARTS)
        return self._modulated(x_KTD, y_KTD, shift, scale)

    def _losses(self, outside: Local, h_KTD: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of the velocity of every sample, float32 [K, B]."""
        missing = self._readout(outside, h_KTD).view(targets.shape) - targets
        rows = missing.square().view(-1, targets.shape[2], 1)  # a sample is summed as a trial elsewhere
        return column_sums(rows, self.backend).view(targets.shape[:2]) / targets.shape[2]

    def _readout(self, outside: Local, h_KTD: Tensor) -> Tensor:
        return self._maps.named(outside, "readout", 0, h_KTD.float())

    def _modulation(self, local: Local, name: str, block: int, c_KBD: Tensor, parts: int) -> tuple[Tensor, ...]:
        """Return the parts of a modulation, [N, D] float32 each."""
        return self._maps.named(local, name, block, c_KBD).float().flatten(0, 1).chunk(parts, dim=-1)

    def _modulated(
        self, x_KTD: Tensor, y_KTD: Tensor | None, shift_ND: Tensor, scale_ND: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return x + y, or x, and its norm times 1 + scale, plus shift. A sample has what elsewhere a trial has."""
        by_sample = [None if z is None else z.view(-1, self.context, self.shape.width) for z in (x_KTD, y_KTD)]
        assert by_sample[0] is not None
        x, h = added_norm(
            *(by_sample[0], by_sample[1], 1.0 + scale_ND, shift_ND, self.backend),
            kind=self.setting.norm,
            eps=self.setting.norm_eps,
        )
        return x.view(x_KTD.shape), h.view(x_KTD.shape)

    def _gated(self, y_KTD: Tensor, gate_ND: Tensor) -> Tensor:
        by_sample = y_KTD.view(-1, self.context, self.shape.width)
        return (by_sample * spread(gate_ND, self.context, y_KTD.dtype, self.backend)).view(y_KTD.shape)

    @property
    def _dtype(self) -> torch.dtype:
        return COMPUTE_DTYPE[self.setting.precision]

    @cached_property
    def _frequencies(self) -> Tensor:
        half = self.own.frequencies // 2
        return _powers(half).to(self.route_scale.device)

    @cached_property
    def _places_SD(self) -> Tensor:
        """The fixed table of places: a quarter of the features each for sine and cosine of column and row."""
        side, quarter = math.isqrt(self.context), self.shape.width // 4
        angles = torch.arange(side, dtype=torch.float64).unsqueeze(1) * _powers(quarter).double()
        of_one = torch.cat([angles.sin(), angles.cos()], dim=1)  # [side, D/2]
        columns, rows = of_one.repeat(side, 1), of_one.repeat_interleave(side, 0)
        return torch.cat([columns, rows], dim=1).to(self.route_scale.device, self._dtype)

    def __post_init__(self) -> None:
        for name in ("own", "context", "_frequencies", "_places_SD"):  # as the others, for torch.compile
            getattr(self, name)
        super().__post_init__()


def _powers(count: int) -> Tensor:
    """Return 10000^(-i / count) for i from 0, float32."""
    exponents = torch.arange(count, dtype=torch.float64) / count
    return torch.pow(torch.tensor(LONGEST, dtype=torch.float64), -exponents).float()


def build_dit(trials: Sequence[Trial], device: torch.device, backend: Backend = TORCH) -> DiTForward:
    """Return the forward pass of a stack. Fail if a trial needs a forward multiplier that the model does not apply."""
    return DiTForward(**numbers_of(trials, FORWARD_ROLES, device, backend))
