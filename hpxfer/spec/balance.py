"""Balance: how a model keeps its experts equally busy. It may have the rule of a bias, a loss, both or neither."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BiasRule = Literal["proportional", "sign", "none"]
BalanceLoss = Literal["none", "switch", "sequence", "transformers"]
LoadOf = Literal["batch", "last_step", "piece"]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """What a trial's setting says of it. The numbers are HPs: router_bias_lr, aux_weight and z_weight."""

    bias: BiasRule = "proportional"
    aux: BalanceLoss = "none"
    load: LoadOf = "batch"
