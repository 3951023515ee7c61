"""TrainState: the parameters, model, optimizer and router biases of one stack. Training and checks share this code.

Letters: K trials, B sequences, S context, L MoE layers, E experts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor

from hpxfer.data import Batch, Data, open_data
from hpxfer.kernels.backend import TORCH, Backend
from hpxfer.model.draws import draw
from hpxfer.model.families import FAMILIES, StackedModel
from hpxfer.model.flat import FlatLayout, Weights, gradients
from hpxfer.model.output import Output, Tap
from hpxfer.scaling.evaluate import Multipliers
from hpxfer.spec import moe_blocks
from hpxfer.train.batch_loader import BatchLoader
from hpxfer.train.optimizer import StackOptimizer
from hpxfer.train.pieces import Pieces
from hpxfer.train.ranks import ALONE, Ranks
from hpxfer.train.snapshot import Snapshot, copy_flat_trials, copy_trials
from hpxfer.trial import Stack

# The parameter of a learned router bias.
ROUTER_BIAS = "router_logit_bias"


class TrainState:
    """The state of a stack in training.

    `layout` says where the parameters lie in the vector `flat`. `weights` are its views as leaves of autograd, which
    follow what is written to the vector. `roles` maps a parameter's name to its role. Everything that differs between
    stacks of one shape, setting and size is written into tensors that stay in place (`set_trials`, `reset`).
    """

    def __init__(
        self,
        stack: Stack,
        device: torch.device,
        data: Data | None = None,
        *,
        backend: Backend = TORCH,
        compiled: bool = False,
        reset: bool = True,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        self.device, self.setting, self.backend = device, stack.setting, backend
        self.num_trials = len(stack.trials)
        self.data = open_data(self.setting) if data is None else data
        self._family = FAMILIES.get(self.setting.family)
        self._routed = self.setting.batch_tokens * self._family.tokens_of_row(self.setting)  # tokens of a batch
        parameters = self._family.parameters(stack.shape, self.setting)
        self.layout = FlatLayout(parameters=parameters, num_trials=self.num_trials)
        self.bounds = ranks.bounds(self.layout)
        self.roles = {spec.name: spec.role for spec in parameters}
        self.moe_blocks = tuple(moe_blocks(stack.shape, self.setting))
        self.flat = torch.empty(self.layout.numel, device=device)
        self.weights: Weights = self.layout.leaves(self.flat)
        self.model = self._build(stack)
        self._forward: Any = self.model
        if compiled and self._family.compiles:
            self._forward = torch.compile(self.model.__call__, dynamic=False)
        self.optimizer = StackOptimizer(
            self.layout, self.flat, self.setting.optimizer, backend, has_momentum=stack.has_momentum, ranks=ranks
        )
        # [L, K, E] over the MoE layers. The balancing rule moves them at the rate of each trial.
        self.router_bias = torch.zeros(len(self.moe_blocks), self.num_trials, stack.shape.num_experts, device=device)
        # The tokens of every expert in the step before, where the balancing loss takes its loads from there.
        layers = len(self.moe_blocks) if self.setting.balance.load == "last_step" else 0
        self.last_load = torch.zeros(layers, *self.router_bias.shape[1:], dtype=torch.int64, device=device)
        self._bias_rate = torch.zeros(1, self.num_trials, 1, device=device)
        # Of a router bias that plain SGD trains, whatever the optimizer is.
        self._plain_rate = torch.zeros(self.num_trials, 1, device=device)
        self._grad_out = torch.full(
            (self.num_trials, self.setting.batch_tokens), 1.0 / self.setting.batch_tokens, device=device
        )
        self.pieces: Pieces | None = None
        if self.setting.num_pieces > 1:
            self.pieces = Pieces(stack, self.layout, self.weights, self.model, self._forward, backend, ranks)
        self.set_trials(stack)
        if reset:
            self.reset()

    def _build(self, stack: Stack) -> StackedModel:
        model: Any = self._family.build(stack.rows, self.device, self.backend)
        if stack.recompute and hasattr(model, "with_recomputation"):
            model = model.with_recomputation()
        return cast(StackedModel, model)

    def set_trials(self, stack: Stack) -> None:
        """Use the HPs and data of another stack of the same shape, setting and size. Parameters stay as they are."""
        self.stack = stack
        numbers = self.model.numbers()
        for name, value in self._build(stack).numbers().items():
            numbers[name].copy_(value)  # in place, for the code that was compiled or captured with these tensors
        self._resolved = [trial.resolved() for trial in stack.trials]
        self._plain_rate.copy_(torch.tensor([self._plain(roles) for roles in self._resolved]).unsqueeze(1))
        globals_ = [trial.globals() for trial in stack.trials]
        self.optimizer.set_hps(
            [(values.beta1, values.beta2) for values in globals_],
            [self._without_plain(roles) for roles in self._resolved],
            [trial.hps.momentum for trial in stack.trials],
        )
        rates = [roles["router_bias"].lr if self.moe_blocks else 0.0 for roles in self._resolved]
        self._bias_rate.copy_(torch.tensor(rates).view(1, -1, 1))
        self._loader = BatchLoader(self.data, stack.trials, self.device, self.moe_blocks)

    @property
    def plain_roles(self) -> tuple[str, ...]:
        """The roles that plain SGD trains, whatever the optimizer is."""
        return ("router_bias",) if self._has_plain_bias else ()

    @property
    def _has_plain_bias(self) -> bool:
        return self.setting.mlp.router_bias == "learned_sgd"

    def _plain(self, roles: Mapping[str, Multipliers]) -> float:
        return roles["router_bias"].lr if self._has_plain_bias else 0.0

    def _without_plain(self, roles: Mapping[str, Multipliers]) -> Mapping[str, Multipliers]:
        """Return the numbers of the roles for the optimizer, which leaves a bias alone that plain SGD trains."""
        if not self._has_plain_bias:
            return roles
        return {**roles, "router_bias": replace(roles["router_bias"], lr=0.0)}

    def reset(self) -> None:
        """Go to the start of the training: parameters drawn, and moments, router biases and counters at zero."""
        self.zero()
        self.flat.copy_(self.initial())

    def zero(self) -> None:
        """Set everything that training changes to zero."""
        self.flat.zero_()
        self.router_bias.zero_()
        self.last_load.zero_()
        self.optimizer.reset()

    def resume(self, snapshot: Snapshot, rows: Sequence[int]) -> None:
        """Continue from those trials of a snapshot that `rows` names. They are the trials of this stack."""
        copy_flat_trials(snapshot.layout, snapshot.parameters, self.layout.weights(self.flat), rows)
        self.optimizer.resume(snapshot, rows)
        copy_trials(snapshot.router_bias, 1, rows, self.router_bias)
        copy_trials(snapshot.last_load, 1, rows, self.last_load)

    def initial(self) -> Tensor:
        """Return the flat vector of initial parameters. It has the same bits at every call."""
        stds = [{role: values.init_std for role, values in roles.items()} for roles in self._resolved]
        tied = [trial.structure().tied_experts for trial in self.stack.trials]
        seeds = [trial.seed for trial in self.stack.trials]
        return draw(self.layout, seeds, stds, tied, method=self.setting.init_draw, device=self.device)

    @property
    def has_noise(self) -> bool:
        """Whether something is added to the logits of a trial's routers."""
        return self._loader.has_noise

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of a step, [K, B, S] of tokens. Trials of one seed read the same data."""
        return self._loader.batch(step)

    def noise(self, step: int) -> Tensor | None:
        """Return what is added to the routers' logits, [L, K, E], or None if no trial has such a thing."""
        return self._loader.noise(step)

    def for_all(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return one batch as inputs and targets [K, ...], the same for every trial."""
        inputs, targets = (torch.from_numpy(part).to(self.device) for part in batch)
        rows = self.num_trials
        return inputs.expand(rows, *inputs.shape).contiguous(), targets.expand(rows, *targets.shape).contiguous()

    def forward(
        self,
        inputs: Tensor,
        targets: Tensor,
        step: int,
        *,
        weights: Weights | None = None,
        tap: Tap | None = None,
    ) -> Output:
        """Return the model's output on a batch of one piece, with the router noise of `step`. Evaluation uses step =
        steps.

        `weights` replace the state's own. `tap` is shown the parts of the model.
        """
        model: Any = self.model
        model = model if tap is None else model.with_tap(tap)
        used = self.weights if weights is None else weights
        output: Output = model(used, self.router_bias, inputs, targets, noise_LKE=self.noise(step))
        return output

    @torch.no_grad()
    def losses(self, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the losses [K, T] of every trial on one batch, after the last step, and of classes their ranks."""
        inputs, targets = self.for_all(batch)
        if self.pieces is not None:
            return self.pieces.losses(inputs, targets, self.numbers(self.setting.steps)), None
        output = self.forward(inputs, targets, self.setting.steps)
        return output.losses_KT, None if output.ranks is None else output.ranks()

    def own(self, vector: Tensor) -> Weights:
        """Return the copies of a vector that this rank owns. The others are empty."""
        low, high = self.bounds[self.ranks.rank : self.ranks.rank + 2]
        return self.layout.part(vector[low:high], low)

    def moments(self) -> tuple[Tensor, ...]:
        """Return the moments of all parameters: the optimizer's own, or of several ranks copies on the host."""
        return tuple(self.ranks.whole(moment, self.bounds) for moment in self.optimizer.moments)

    def copied(self) -> Tensor:
        """Return a copy of the parameters, which lasts until the next gradients."""
        spare = None if self.pieces is None else self.pieces.spare
        return self.flat.clone() if spare is None else spare.copy_(self.flat)

    def warm_up(self, inputs: Tensor, targets: Tensor) -> None:
        """Compute losses once, so that what the model makes on first use is there."""
        if self.pieces is None:
            self.forward(inputs, targets, 0)
        else:
            self.pieces.losses(inputs, targets, self.numbers(0))

    def numbers(self, step: int) -> dict[str, Tensor | None]:
        """Return what a model that computes pieces reads beside weights and tokens, by the names of `Pieces.sum`."""
        last_load = self.last_load if self.last_load.numel() else None
        return {"bias": self.router_bias, "noise": self.noise(step), "last_load": last_load}

    def forward_backward(self, step: int, *, with_entropies: bool = False) -> tuple[Output, Weights]:
        """Return the output on the batch of a step, and the gradients of every trial's mean loss.

        A batch in pieces has no scores in its output, but `with_entropies` the entropies of its routers.
        """
        inputs, targets = self.batch(step)
        if self.pieces is None:
            return self.gradients(inputs, targets, self.noise(step))
        output = self.pieces.sum(inputs, targets, self.numbers(step), with_entropies=with_entropies)
        return output, self.pieces.gradients

    def gradients(self, inputs: Tensor, targets: Tensor, noise: Tensor | None) -> tuple[Output, Weights]:
        """Return the output on a batch of one piece with router noise, and the gradients of every trial's mean loss."""
        by_hand = getattr(self.model, "with_gradients", None)
        if by_hand is not None:
            found: tuple[Output, Weights] = by_hand(
                self.weights, self.router_bias, inputs, targets, self._grad_out, noise_LKE=noise
            )
            return found
        # Only models that are told of such a load take it.
        last = {"load_LKE": self.last_load} if self.last_load.numel() else {}
        output: Output = self._forward(self.weights, self.router_bias, inputs, targets, noise_LKE=noise, **last)
        return output, gradients(output.losses_KT, self.weights, self._grad_out, output.regularizer_K)

    def load(self, output: Output) -> Tensor:
        """Return [L, K, E]: the fraction of the tokens that chose each expert."""
        return output.load_LKE.float() / self._routed

    def update(self, output: Output, grads: Weights, factor: float | Tensor = 1.0) -> None:
        """Take the optimizer's step at `factor` times the peak LR, then the step of the balancing rule.

        `grads` is used up: clipping scales it in place.
        """
        self.optimizer.step(grads, factor, self.setting.gradient_clip)
        if self._has_plain_bias:
            rate = torch.where(self.optimizer.alive.unsqueeze(1), self._plain_rate * factor, 0.0).float()
            for bias, grad in zip(self.weights[ROUTER_BIAS], grads[ROUTER_BIAS], strict=True):
                bias.data.sub_(torch.where(rate > 0, rate * grad, 0.0))
        self.ranks.share_(self.flat, self.bounds)
        # Loss-free balancing (2601.20205, section 3.1; the sign: 2408.15664): the bias falls where the load is above
        # kappa.
        match self.setting.balance.bias:
            case "proportional":
                self.router_bias -= self._bias_rate * (self.load(output) - self.stack.shape.kappa)
            case "sign":  # of whole numbers, so that no rounding decides it
                shape = self.stack.shape
                above = output.load_LKE * shape.num_experts - self._routed * shape.num_active
                self.router_bias -= self._bias_rate * above.sign()
        if self.last_load.numel():
            self.last_load.copy_(output.load_LKE)
