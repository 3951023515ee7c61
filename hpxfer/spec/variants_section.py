"""The section `variants` of a sweep file, key by key. The text below a field documents its key."""

from __future__ import annotations

from pydantic import Field

from hpxfer.spec.fields import Number, Section
from hpxfer.spec.model_section import BalanceSpec


class VariantHPs(Section):
    """The base values that a variant moves. What is left out is as in `hps` and `training`."""

    lr: Number | None = None
    """The learning rate."""
    init_scale: Number | None = None
    """The factor of the init std of every matrix."""
    residual_scale: Number | None = None
    """The factor of every residual branch."""
    weight_decay: Number | None = None
    """The weight decay."""
    eps: Number | None = None
    """AdamW's eps."""
    beta1: Number | None = None
    """The first beta of AdamW."""
    beta2: Number | None = None
    """The second beta of AdamW."""
    momentum: Number | None = None
    """The momentum of SGD."""
    router_bias_lr: Number | None = None
    """The rate of the rule that balances the experts through the router bias."""
    aux_weight: Number | None = None
    """The weight of the loss that balances the experts."""
    z_weight: Number | None = None
    """The weight of the router's z-loss."""
    multipliers: dict[str, Number] = Field(default_factory=dict)
    """Constant multipliers of one role. A multiplier of `hps` that is not named here stays."""


class VariantSpec(Section):
    """What a variant changes."""

    hps: VariantHPs = VariantHPs()
    """The base values that differ."""
    balance: BalanceSpec | None = None
    """How the experts are balanced instead, e.g. `{bias: sign}`. It replaces `model.balance` whole. Without a loss in
    it, aux_weight is 0."""
