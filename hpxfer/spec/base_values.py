"""Base values: the HPs of a sweep's base, which the sections `hps` and `training` of its file hold between them."""

from __future__ import annotations

from hpxfer.spec.sweep import SweepSpec


def base_values(spec: SweepSpec) -> dict[str, float]:
    """Return HP -> its base value, multipliers by dotted name. `lr` is missing where only the grid gives it."""
    hps, training = spec.hps, spec.training
    scalars = {
        "lr": hps.lr,
        "init_scale": hps.init_scale,
        "residual_scale": hps.residual_scale,
        "weight_decay": training.weight_decay,
        "eps": training.eps,
        **dict(zip(("beta1", "beta2"), training.betas, strict=False)),  # `checks` refuses any other number of betas
        "momentum": hps.momentum,
        "router_bias_lr": hps.router_bias_lr,
        "aux_weight": hps.aux_weight,
        "z_weight": hps.z_weight,
    }
    return {**{name: value for name, value in scalars.items() if value is not None}, **hps.multipliers}
