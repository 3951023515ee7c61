"""What a router does on a batch, as one number per trial: how sure it is, how it spreads its samples, how it changed.

All numbers are float64. Entropies are of scores and weights that are normalized again in float64, so a gate whose
largest weight float32 rounds to 1 still has the small entropy of the others. The bits of a trial do not depend on the
trials beside it.

Letters: K trials, P samples (or tokens), E experts, X and Y the sizes of an expert's matrix.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hpxfer.model.padded import padded

LOW = 0.05  # the quantile of `margin_low` and `logit_low`; `logit_high` is that of 1 - LOW


@dataclass(frozen=True, kw_only=True)
class RouterView:
    """A router on a batch. All tensors are [K, P, E] of any float type, without a gradient."""

    logits_KPE: Tensor
    """As the gate gets them: with biases and noise, before the inverse temperature."""
    weights_KPE: Tensor
    """Of the gate itself, from 0 to 1 and without the route scale. They are 0 for experts that are not active."""
    scores_KPE: Tensor
    """Of all experts, by which they are chosen, up to a factor. They are not negative."""
    active_KPE: Tensor | None
    """Bool: which experts are active. None where all are."""
    num_active: int


def router_measures(now: RouterView, first: RouterView | None) -> dict[str, Tensor]:
    """Return name -> [K] float64. `first` is the same batch at another time, which `changed_share` compares with.

    - `entropy_of_all`: entropy of the normalized scores of all M experts / log M, mean over samples. 1 is undecided.
    - `entropy_of_active`: entropy of the normalized weights of the K active experts / log K, mean over samples.
    - `load_entropy`: entropy of the mean over samples of the normalized weights / log M. 1 is a fair load.
    - `logit_rms`; `logit_mean_rms`: RMS over samples of the mean over experts; `logit_spread`: RMS of the logits minus
      that mean. The squares of the last two add up to the square of the first.
    - `logit_low`, `logit_high`: 5% and 95% quantile of the logits over samples and experts.
    - `margin_median`, `margin_low`: median and 5% quantile over samples of the margin: the smallest logit of an active
      expert minus the largest of one that is not. It is negative where a balancing rule chose against the logits.
    - `tied_share`: share of the samples whose margin is exactly zero.
    - `changed_share`: share of the samples whose active experts are not those of `first`.
    - `concentration_high`, `concentration_low`: M times the largest, or the smallest, normalized weight of a sample,
      mean over samples. 1 is uniform. The smallest is 0 where an expert is not active.
    - `gate_slack`: g(1 - g), mean over samples and all experts. An expert that is not active has 0.

    A measure that a router cannot have is left out: entropies over one expert, and what compares active experts with
    others where all are active. A sample whose weights (or scores) are all rounded to zero has no normalized ones. It
    is left out of the means of these, and a trial without any other sample has NaN there. Logits that are not finite
    give NaN too.
    """
    logits, weights, scores = (x.double() for x in (now.logits_KPE, now.weights_KPE, now.scores_KPE))
    num_experts = logits.shape[-1]
    out = {}
    share, has_share = _normalized(weights)
    if num_experts > 1:
        of_all, has_score = _normalized(scores)
        out["entropy_of_all"] = _mean_where(has_score, _entropy(of_all)) / math.log(num_experts)
    if now.num_active > 1:
        out["entropy_of_active"] = _mean_where(has_share, _entropy(share)) / math.log(now.num_active)
    if num_experts > 1:
        load = torch.stack([_mean_where(has_share, of_expert) for of_expert in share.unbind(-1)], -1)
        out["load_entropy"] = _entropy(load) / math.log(num_experts)
    mean = logits.sum(-1, keepdim=True) / num_experts
    out["logit_rms"] = rms(logits)
    out["logit_mean_rms"] = rms(mean)
    out["logit_spread"] = rms(logits - mean)
    ascending = logits.flatten(1).sort(-1).values
    out |= {"logit_low": _quantile(ascending, LOW), "logit_high": _quantile(ascending, 1 - LOW)}
    out["concentration_high"] = _mean_where(has_share, num_experts * share.amax(-1))
    out["concentration_low"] = _mean_where(has_share, num_experts * share.amin(-1))
    out["gate_slack"] = _mean((weights * (1 - weights)).flatten(1))
    if now.active_KPE is not None:
        out |= _of_choice(logits, now.active_KPE, None if first is None else first.active_KPE)
    return out


def _of_choice(logits: Tensor, active: Tensor, before: Tensor | None) -> dict[str, Tensor]:
    of_active = torch.where(active, logits, torch.inf).amin(-1)
    margin_KP = of_active - torch.where(active, -torch.inf, logits).amax(-1)
    ascending = margin_KP.sort(-1).values
    out = {
        "margin_median": _quantile(ascending, 0.5),
        "margin_low": _quantile(ascending, LOW),
        "tied_share": _mean((margin_KP == 0).double()),
    }
    if before is not None:
        out["changed_share"] = _mean((active != before).any(-1).double())
    return out


def expert_difference(weight_KEXY: Tensor) -> Tensor:
    """Return [K] float64: the RMS over all pairs of different experts of the difference of their weights.

    The mean over pairs of (w_i - w_j)^2 is 2/(E - 1) times the sum over experts of their squared deviation from the
    mean expert. There must be two experts or more.
    """
    experts = weight_KEXY.shape[1]
    assert experts > 1, "one expert differs from nothing"
    total = torch.zeros_like(weight_KEXY[:, 0], dtype=torch.float64)
    for own in weight_KEXY.unbind(1):  # one by one: a copy of all experts in float64 would double their memory
        total = total + own
    mean, squares_K = total / experts, torch.zeros(len(total), dtype=torch.float64, device=total.device)
    for own in weight_KEXY.unbind(1):
        squares_K = squares_K + _mean((own - mean).flatten(1).square())
    return (squares_K * (2 / (experts - 1))).sqrt()


def rms(x: Tensor) -> Tensor:
    """Return [K] float64: the root mean square of x [K, ...]."""
    return _mean(x.double().flatten(1).square()).sqrt()


def _mean(x_KN: Tensor) -> Tensor:
    return x_KN.contiguous().sum(-1) / x_KN.shape[-1]


def _mean_where(has_KP: Tensor, x_KP: Tensor) -> Tensor:
    """Return the mean [K] of those numbers that exist. NaN if none does."""
    return torch.where(has_KP, x_KP, 0.0).contiguous().sum(-1) / has_KP.sum(-1)


def _normalized(x_KPE: Tensor) -> tuple[Tensor, Tensor]:
    """Return x over its sum, and where that exists [K, P]."""
    total_KP1 = x_KPE.sum(-1, keepdim=True)
    return x_KPE / total_KP1, total_KP1.squeeze(-1) != 0


def _entropy(p: Tensor) -> Tensor:
    """Return the entropy [K, ...] of p [K, ..., E] in nats."""
    return padded(torch.special.entr, p).sum(-1)


def _quantile(ascending_KN: Tensor, level: float) -> Tensor:
    """Return the quantile [K] of sorted numbers, linear between neighbors. Of infinite ones it may be NaN."""
    place = level * (ascending_KN.shape[-1] - 1)
    below, above = ascending_KN[:, math.floor(place)], ascending_KN[:, math.ceil(place)]
    return below + (above - below) * (place - math.floor(place))
