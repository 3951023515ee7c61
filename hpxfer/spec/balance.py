"""Balance: how a model keeps its experts equally busy. It may have the rule of a bias, a loss, both or neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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

    @property
    def is_of_batch(self) -> bool:
        """Whether the loss reads the loads of the whole batch, which no piece of it knows."""
        return self.load == "batch" and self.aux in ("switch", "transformers")

    def text(self, spell: Callable[[str], str]) -> str:
        """Return in words what balances the experts. `spell` spells the value of an HP."""
        found = list(self._parts(spell))
        return " and ".join(found) if found else "nothing balances the experts"

    def _parts(self, spell: Callable[[str], str]) -> Iterator[str]:
        if self.bias != "none":
            yield f"a bias by the {self.bias} rule, router_bias_lr {spell('router_bias_lr')}"
        if self.aux != "none":
            loads = "" if self.aux == "sequence" else f" over the loads of the {self.load.replace('_', ' ')}"
            yield f"the {self.aux} loss{loads}, aux_weight {spell('aux_weight')}"
