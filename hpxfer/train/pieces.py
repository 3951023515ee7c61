"""Pieces: the gradients of a batch that is cut into pieces, computed for a few pieces at a time.

    gradient = sum over the lanes, in order, of ( sum over the pieces of a lane, in order, of the piece's gradient )

The model knows no pieces. Each of the P pieces that are computed at once is a row of the model, like a trial of its
own. A row has the same bits beside any other rows, so P changes no bit. The rows of one trial share its weights: for
P > 1 they read copies, which a step makes once.

A gradient is added to the sum as soon as autograd has it, and let go. Several ranks have contiguous lanes each
(`hpxfer.train.ranks`), and sum them in the same order.

Letters: K trials, P pieces at once, N pieces of a batch, R = K*P rows of the model (row k*P + p), T tokens of a piece,
L MoE layers, E experts.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hpxfer.kernels.backend import Backend
from hpxfer.model.flat import FlatLayout, Weights
from hpxfer.model.output import Output, router_entropies
from hpxfer.train.monitor import mean_losses
from hpxfer.train.ranks import ALONE, Ranks
from hpxfer.trial import Stack

# Runs the forward and the backward pass of the micro-batch in the buffers.
Micro = Callable[[], Output]


class Pieces:
    """The sum of the gradients over the pieces of a batch, and the buffers that a micro-batch of P pieces reads.

    `weights` are the parameters of the K trials. `forward` is the model of the R rows, possibly compiled. `gradients`
    are those of the parameters that this rank owns.
    """

    def __init__(
        self,
        stack: Stack,
        layout: FlatLayout,
        weights: Weights,
        model: Any,
        forward: Any,
        backend: Backend,
        ranks: Ranks = ALONE,
    ) -> None:
        self._stack, self._setting, self._backend, self._ranks = stack, stack.setting, backend, ranks
        self._trial_weights, self._model, self._forward = weights, model, forward
        device = next(iter(weights.values()))[0].device
        setting, num_trials, at_once = stack.setting, len(stack.trials), stack.pieces
        assert setting.pieces_per_lane % at_once == 0, (setting.pieces_per_lane, at_once)
        assert setting.accumulation_lanes % ranks.world == 0, (setting.accumulation_lanes, ranks.world)
        rows = num_trials * at_once
        self.inputs = self.targets = torch.empty(0, device=device)  # a first batch says how large they are
        self._place = torch.arange(at_once, dtype=torch.int32, device=device).repeat(num_trials)
        self._piece_K = self._place.clone()
        self._grad_out = torch.full((rows, setting.piece_tokens), 1.0 / setting.batch_tokens, device=device)
        self._lanes = ranks.lanes(setting.accumulation_lanes)
        per_lane = setting.pieces_per_lane // at_once
        self._micros = [range(lane * per_lane, (lane + 1) * per_lane) for lane in self._lanes]
        own_pieces = len(self._lanes) * setting.pieces_per_lane
        self._losses = torch.empty(num_trials, own_pieces, setting.piece_tokens, device=device)
        self._bounds = ranks.bounds(layout)
        low, high = self._bounds[ranks.rank : ranks.rank + 2]
        self._total = torch.zeros(high - low, device=device)
        self.gradients: Weights = layout.part(self._total, low)
        only = setting.accumulation_lanes == 1
        self._lane = self._total if only else torch.zeros(layout.numel, device=device)
        self._copied: Weights | None = None
        if at_once > 1:
            copied = FlatLayout(parameters=layout.parameters, num_trials=rows)
            self._copied = copied.leaves(torch.zeros(copied.numel, device=device))
        self._sum_into(layout.weights(self._lane))
        self._numbers: dict[str, Tensor] = {}
        self._metrics: dict[str, list[list[Tensor]]] = {}
        self._entropies: list[tuple[Tensor, ...]] = []
        self._run: Micro = self.micro
        self._run_loads: Callable[[], object] = self.micro_loads

    @property
    def weights(self) -> Weights:
        """The parameters that the rows read: leaves of autograd."""
        return self._trial_weights if self._copied is None else self._copied

    @property
    def spare(self) -> Tensor | None:
        """A vector in the layout of the parameters that nobody reads until the next gradients, if there is one."""
        return None if self._lane is self._total else self._lane

    def _output(self) -> Output:
        """Return the output on the batch. In one process its losses and loads lie in tensors that stay in place."""
        metrics = {name: self._means_of_pieces(layers) for name, layers in self._metrics.items()}
        entropies = self._means_of_pieces(list(zip(*self._entropies, strict=True))) if self._entropies else None
        return Output(
            losses_KT=self._ranks.joined(self._losses).flatten(1),
            load_LKE=self._ranks.sum_(self._numbers["load"]),
            regularizers=metrics,
            entropies=entropies,
        )

    def replay(self, run: Micro, run_loads: Callable[[], object]) -> None:
        """Use what replays `micro` and `micro_loads`, in place of these."""
        self._run, self._run_loads = run, run_loads

    def sum(
        self, inputs: Tensor, targets: Tensor, numbers: Mapping[str, Tensor | None], *, with_entropies: bool = False
    ) -> Output:
        """Write the gradients of a batch [K, B, S], of every trial's mean loss, into `gradients`. Return its output.

        `numbers` are those of the K trials that the model reads: `bias` [L, K, E], `noise` [L, K, E] or None, and
        `last_load` [L, K, E] or None.
        """
        self.begin(numbers)
        if self.counts_first:
            for micro in itertools.chain(*self._micros):
                self.fill(micro, inputs, targets)
                self._run_loads()
            self._ranks.sum_(self._numbers["counted"])
        received = []
        for micros in self._micros:
            for micro in micros:
                self.fill(micro, inputs, targets)
                self._collect(micro, self._run(), with_entropies)
            received.append(self._end_lane())
        if self._ranks.world > 1:
            for lane in range(self._setting.accumulation_lanes):
                rank, own = divmod(lane, len(self._lanes))
                self._total.add_(received[own][rank])
        return self._output()

    @torch.no_grad()
    def losses(self, inputs: Tensor, targets: Tensor, numbers: Mapping[str, Tensor | None]) -> Tensor:
        """Return the losses [K, N*T] of a batch, without gradients."""
        self.begin(numbers)
        for micro in itertools.chain(*self._micros):
            self.fill(micro, inputs, targets)
            output = self._model(*self._given(), self.targets, **self._named())
            self._keep_losses(micro, output.losses_KT)
        return self._ranks.joined(self._losses).flatten(1)

    def begin(self, numbers: Mapping[str, Tensor | None]) -> None:
        """Set the sums to zero, and copy the numbers of the step and the weights."""
        self._metrics, self._entropies = {}, []
        self._total.zero_()
        self._lane.zero_()
        given = {name: value for name, value in numbers.items() if value is not None}
        sums = {"load": torch.zeros_like(given["bias"], dtype=torch.int64)}
        if self.counts_first:
            sums["counted"] = sums["load"].clone()
        for name, value in {**given, **sums}.items():
            if name in self._numbers:
                self._numbers[name].copy_(value)  # in place, for a micro-batch that was captured
            else:
                self._numbers[name] = value.clone()
        if self._copied is not None:
            for name, copies in self._copied.items():
                for own, copy in zip(self._trial_weights[name], copies, strict=True):
                    self._by_trial(copy.detach()).copy_(own.detach().unsqueeze(1))

    def fill(self, micro: int, inputs: Tensor, targets: Tensor) -> None:
        """Write the pieces of a micro-batch into the buffers."""
        first, at_once = micro * self._stack.pieces, self._stack.pieces
        for name, batch in (("inputs", inputs), ("targets", targets)):
            pieces = batch.view(len(batch), self._setting.num_pieces, -1, *batch.shape[2:])
            if not getattr(self, name).numel():
                setattr(self, name, batch.new_empty(len(self._place), *pieces.shape[2:]))
            self._by_trial(getattr(self, name)).copy_(pieces[:, first : first + at_once])
        torch.add(self._place, first, out=self._piece_K)

    def micro(self) -> Output:
        """Compute the micro-batch in the buffers, and add its gradients and loads to the sums."""
        output: Output = self._forward(*self._given(), self.targets, **self._named(), **self._loads_given())
        roots, onto = [output.losses_KT], [self._grad_out]
        if output.regularizer_K is not None:
            roots.append(output.regularizer_K)
            onto.append(torch.full_like(output.regularizer_K, 1.0 / self._setting.num_pieces))
        torch.autograd.backward(roots, onto)
        self._add_load("load", output.load_LKE)
        return Output(
            losses_KT=output.losses_KT.detach(),
            load_LKE=output.load_LKE,
            regularizers=output.regularizers,
            scores=output.scores,
        )

    def micro_loads(self) -> None:
        """Add the loads of the micro-batch in the buffers to those that the balancing loss reads."""
        self._add_load("counted", self._model.loads(*self._given(), **self._named()))

    @property
    def counts_first(self) -> bool:
        """Whether the balancing loss needs the loads of the whole batch before any gradient."""
        return self._setting.balance.is_of_batch and any(trial.hps.aux_weight for trial in self._stack.trials)

    # What the model is given.

    def _given(self) -> tuple[Weights, Tensor, Tensor]:
        return self.weights, self._of_rows("bias"), self.inputs

    def _named(self) -> dict[str, Any]:
        named: dict[str, Any] = {"noise_LKE": self._of_rows("noise") if "noise" in self._numbers else None}
        if any(trial.setting.ties == "random" for trial in self._stack.trials):
            named["piece_K"] = self._piece_K
        return named

    def _loads_given(self) -> dict[str, Tensor]:
        """Return the loads that stand in for those of the piece in a balancing loss."""
        source = "counted" if self.counts_first else "last_load"
        return {"load_LKE": self._of_rows(source)} if source in self._numbers else {}

    def _of_rows(self, name: str) -> Tensor:
        """Return numbers of the trials [L, K, E] for the rows, [L, R, E]."""
        return self._numbers[name].repeat_interleave(self._stack.pieces, 1)

    # What it returns.

    def _sum_into(self, sums: Weights) -> None:
        """Let every gradient of `weights` be added to its sum, piece by piece, as soon as it is there."""
        for name, copies in self.weights.items():
            for leaf, total in zip(copies, sums[name], strict=True):
                leaf.register_post_accumulate_grad_hook(partial(self._add, total))  # type: ignore[no-untyped-call]

    def _add(self, total: Tensor, leaf: Tensor) -> None:
        assert leaf.grad is not None
        for gradient in self._by_trial(leaf.grad).unbind(1):
            total.add_(gradient)
        leaf.grad = None

    def _add_load(self, name: str, load_LRE: Tensor) -> None:
        size = len(load_LRE), len(self._stack.trials), self._stack.pieces, load_LRE.shape[2]
        self._numbers[name] += load_LRE.view(size).sum(2)

    def _end_lane(self) -> Tensor:
        """Add the sum of a lane to the total. Of several ranks, return [R, shard]: the sums of their lanes instead."""
        if self._lane is self._total:
            return self._total
        if self._ranks.world > 1:
            received = self._ranks.to_owners(self._lane, self._bounds)
        else:
            received = self._total.add_(self._lane)
        self._lane.zero_()
        return received

    def _collect(self, micro: int, output: Output, with_entropies: bool) -> None:
        """Keep what a micro-batch returned. A replay writes into the same tensors again."""
        self._keep_losses(micro, output.losses_KT)
        for name, layers in output.regularizers.items():
            kept = self._metrics.setdefault(name, [[] for _ in layers])
            for of_layer, value in zip(kept, layers, strict=True):
                of_layer.append(value.clone())
        if with_entropies:
            self._entropies.append(router_entropies(output, self._backend))

    def _keep_losses(self, micro: int, losses_RT: Tensor) -> None:
        first, at_once = (micro - self._micros[0].start) * self._stack.pieces, self._stack.pieces
        self._losses[:, first : first + at_once] = self._by_trial(losses_RT)

    def _means_of_pieces(self, layers: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
        """Return [K] per layer: the mean over the pieces of [R] per layer and micro-batch."""
        if not layers:
            return ()
        of_layers = [torch.cat([self._by_trial(value) for value in values], dim=1) for values in layers]
        joined = self._ranks.joined(torch.stack(of_layers, dim=2))
        return tuple(mean_losses(value.contiguous(), self._backend) for value in joined.unbind(2))

    def _by_trial(self, rows: Tensor) -> Tensor:
        """Return [K, P, ...] of [R, ...]."""
        return rows.view(-1, self._stack.pieces, *rows.shape[1:])
