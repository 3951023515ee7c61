"""TrialWeights: the parameters of one trial, by the names of its family's layout."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from hpxfer.model.families import FAMILIES
from hpxfer.model.flat import FlatLayout
from hpxfer.model.parameters import ParameterSpec
from hpxfer.trial import Trial


def parameters_of(trial: Trial) -> tuple[ParameterSpec, ...]:
    """Return the parameters of the trial's family."""
    return FAMILIES.get(trial.setting.family).parameters(trial.shape, trial.setting)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialWeights:
    """The weights of a trial. Matrices are [in, out], those of experts [experts, in, out], all float32 on the CPU.

    They are as they are trained: the forward multipliers of the trial are not in them.
    """

    trial: Trial
    tensors: Mapping[str, tuple[Tensor, ...]]  # name -> one tensor per block that has it, or one outside the blocks
    router_bias: Tensor  # [L, E], what balances the choice in the L blocks with experts

    def of_block(self, name: str, block: int) -> Tensor | None:
        """Return the tensor of a block, or None if the model has none of this name there."""
        spec = next((spec for spec in parameters_of(self.trial) if spec.name == name), None)
        if spec is None or block not in spec.blocks:
            return None
        return self.tensors[name][list(spec.blocks).index(block)]


def weights_of(trial: Trial, row: int, layout: FlatLayout, flat: Tensor, router_bias_LKE: Tensor) -> TrialWeights:
    """Return a copy of the weights of the trial in this row of a stack's vector."""
    tensors = {
        name: tuple(copy[row].detach().cpu().clone() for copy in copies)
        for name, copies in layout.weights(flat).items()
    }
    return TrialWeights(trial=trial, tensors=tensors, router_bias=router_bias_LKE[:, row].detach().cpu().clone())
