"""What a check shows of the family `mlp` at every scale, beside sizes of pieces: routers, Adam's eps, and the loss.

`hpxfer.model.router_measures` defines what a router does on the probe. Beside it stand:

- `update / now`, `update / start`, `update / first`: the Frobenius norm of the last update of a router's weights, over
  the norm of the weights before it, over the norm that the table draws them with (without a zero start), and over their
  norm after the first update. A router that starts at zero and freezes has a constant `update / now`, because both
  norms shrink together. Why Routers Freeze does not say which one it plots.
- `update`: the norm itself.
- `expert difference`: the RMS over all pairs of experts of the difference of their weights.
- `sqrt(v) < eps`: the share of a role's parameters whose eps is larger than the root of Adam's second moment.
- `loss`, `accuracy`: means over the probe.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hpxfer.coordinates.measure import Kind
from hpxfer.coordinates.mlp.moments import Moment
from hpxfer.coordinates.mlp.quantities import Measured
from hpxfer.coordinates.optimizer_rules import BELOW_EPS
from hpxfer.model.families import ShowsRouters
from hpxfer.model.router_measures import RouterView, expert_difference, router_measures
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.train.log import EXPERTS
from hpxfer.train.state import TrainState
from hpxfer.trial import Trial

UPDATE, BY_NOW, BY_START, BY_FIRST = "update", "update / now", "update / start", "update / first"
DIFFERENCE, LOSS, ACCURACY = "expert difference", "loss", "accuracy"
PROBE = "probe"  # the role under which loss and accuracy stand
_SHARES = (
    *("entropy_of_all", "entropy_of_active", "load_entropy", "concentration_high", "concentration_low", "gate_slack"),
    *("margin_median", "margin_low", "tied_share", "changed_share"),  # a margin may be negative, and has no power law
)
_SIZES = ("logit_rms", "logit_mean_rms", "logit_spread")
KINDS: Mapping[str, Kind] = {
    **dict.fromkeys((*_SHARES, BELOW_EPS, LOSS, ACCURACY), "share"),
    **dict.fromkeys((*_SIZES, UPDATE, BY_NOW, BY_START, BY_FIRST, DIFFERENCE), "size"),
}


@dataclass(kw_only=True)
class ProbeMeasures:
    """What is measured of a stack from step to step, on the samples of the probe, [K, P, D]."""

    state: TrainState
    inputs: Tensor
    nominal_std: float  # of the router's weights
    start: tuple[RouterView, ...] = ()
    routers: dict[int, tuple[Tensor, ...]] = field(default_factory=dict)  # step -> weights: of 1, and the last one

    @torch.no_grad()
    def of(self, moment: Moment) -> Iterator[Measured]:
        """Yield the measures of a moment, [K] each. The moments must come in order."""
        views = self._views(moment.step)
        weights = {name: _now(moment, name) for name in ("router", *EXPERTS) if name in moment.weights.initial}
        self.start = self.start or views
        is_single = moment.model.shape.depth == 1
        for block, view in enumerate(views):
            layer = None if is_single else block
            found = router_measures(view, self.start[block] if moment.step else None)
            yield from ((name, "router", layer, values) for name, values in found.items())
            for name in EXPERTS:
                if name in weights and view.logits_KPE.shape[-1] > 1:
                    yield DIFFERENCE, name, layer, expert_difference(weights[name][block])
        yield from self._updates(moment, weights["router"], is_single=is_single)
        if moment.step:
            below = self.state.optimizer.below_eps()
            yield from ((BELOW_EPS, role, None, below[role]) for role in below if role not in self.state.plain_roles)
        yield LOSS, PROBE, None, moment.losses.double().mean(1)
        if moment.ranks is not None:
            yield ACCURACY, PROBE, None, (moment.ranks == 0).double().mean(1)

    def _views(self, step: int) -> tuple[RouterView, ...]:
        """Return what each block's router does on the probe, after `step` updates."""
        state = self.state
        assert isinstance(state.model, ShowsRouters), "this family does not show its routers"
        weights = state.layout.weights(state.flat)
        return state.model.router_views(weights, state.router_bias, self.inputs, noise_LKE=state.noise(step))

    def _updates(self, moment: Moment, now: tuple[Tensor, ...], *, is_single: bool) -> Iterator[Measured]:
        """Yield what the last update did to each router's weights."""
        step, before = moment.step, self.routers.get(moment.step - 1)
        if before is not None:
            first = now if step == 1 else self.routers[1]
            for block, weight in enumerate(now):
                layer = None if is_single else block
                update = _norm(weight - before[block])
                yield UPDATE, "router", layer, update
                start = torch.full_like(update, self.nominal_std * weight[0].numel() ** 0.5)
                for name, by in ((BY_NOW, _norm(before[block])), (BY_START, start), (BY_FIRST, _norm(first[block]))):
                    if by.all():  # over an exact zero there is no ratio
                        yield name, "router", layer, update / by
        self.routers = {at: kept for at, kept in self.routers.items() if at == 1} | {step: now}


def nominal_router_std(trial: Trial) -> float:
    """Return the std with which the table draws a router that does not start at zero. It is 0 if the table has none."""
    choice = trial.parameterization
    assert isinstance(choice, Parameterization), "a check has a parameterization"
    kept = {name: value for name, value in choice.conventions if name not in ("router_init", "router_init_exponent")}
    hps = trial.hps
    if dict(hps.multipliers).get("router.init_mult") == 0:
        hps = hps.with_value("router.init_mult", 1.0)
    drawn = replace(trial, parameterization=parameterization(choice.name, kept), hps=hps)
    return drawn.resolved()["router"].init_std


def _now(moment: Moment, name: str) -> tuple[Tensor, ...]:
    start, change = moment.weights.initial[name], moment.weights.change[name]
    return tuple(old + moved for old, moved in zip(start, change, strict=True))


def _norm(x: Tensor) -> Tensor:
    return x.double().flatten(1).square().sum(1).sqrt()
