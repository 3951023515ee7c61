"""Sizes of features, of their changes and of gradients in the built-in transformers, on a fixed batch during training.

    W_t x_t - W_0 x_0 = (W_t - W_0) x_t + W_0 (x_t - x_0)                effective + propagating, of every linear map
    routed experts    = sum_i c g_i,t [ W_0 a_i,0 + (W_t - W_0) a_i,t + W_0 (a_i,t - a_i,0) ]          W = expert_out

Every expert is evaluated on every token. The output of a single expert is measured without its gate and without the
multiplier c; the gated sums include both. All other outputs include the forward multiplier of their role. (Why Routers
Freeze, Appendix B; MSSP, section 4.)

Letters: K seeds, T tokens, I in, O out, D width, E experts, H hidden features.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from hpxfer.coordinates.measure import Observation
from hpxfer.coordinates.optimizer import gradients_over_eps
from hpxfer.model.flat import Weights
from hpxfer.model.transformer.stack import Transformer
from hpxfer.train.log import PROBE_SEED
from hpxfer.train.state import TrainState
from hpxfer.trial import Stack, Trial

LINEAR = (
    *("attn_q", "attn_k", "attn_v", "attn_gate", "attn_out", "router", "shared_router", "readout"),
    *("dense_in", "dense_gate", "dense_out", "time_out", "modulation", "final_modulation"),
)
SHARED = ("shared_in", "shared_gate", "shared_out")
EXPERTS = ("expert_in", "expert_gate")  # these read the stream; expert_out reads their output
# What reads the data. The data stays, so that all of a change is what was learned.
INPUTS = ("patch_in", "time_in", "label")
# Parts of the model that are no linear map. Their output and its change are measured.
PARTS = ("stream", "gates", "moe", "dense", "final_norm")
OUTSIDE = ("final_norm", "readout", "time_out", "final_modulation", *INPUTS)
LOGIT_BIAS = "router_logit_bias"
PROBE_TOKENS = 64
# Exactly zero before the first update.
OF_A_CHANGE = ("change", "effective", "propagating", "aggregate effective", "aggregate propagating", "weight change")

Part = tuple[str, int | None]  # the name of a part, and its block; None outside the blocks
Values = dict[str, Tensor]  # quantity -> [K, ...]


def observe(trials: Sequence[Trial], *, scale: float, steps: int) -> Iterator[Observation]:
    """Yield the sizes in the trials of one shape, one trial per seed, before training and after each update."""
    state = TrainState(Stack(trials=tuple(trials)), torch.device("cpu"))
    probe = _Probe(state)
    for step in range(steps + 1):
        output, grads = state.forward_backward(step)
        sizes = [*probe.sizes(), *_by_role(state, grads, "gradient")]
        if step:
            sizes += _by_role(state, probe.weight_changes(), "weight change")
        for (role, layer), quantity, rms_K in sizes:
            if step == 0 and quantity in OF_A_CHANGE:
                continue
            values = tuple(rms_K.tolist())
            seen = Observation(quantity=quantity, role=role, layer=layer, step=step, scale=scale, values=values)
            yield seen
            yield from gradients_over_eps((seen,), trials[0])
        if step < steps:
            state.update(output, grads)


@dataclass(frozen=True, kw_only=True)
class _Seen:
    """Inputs and outputs of a forward pass on the probe batch, [K, T, ...]; those of experts are [K, E, T, ...]."""

    inputs: Mapping[Part, Tensor]
    outputs: Mapping[Part, Tensor]
    experts: Mapping[int, Mapping[str, Tensor]]  # block -> name of a matrix -> its input


class _Probe:
    """The probe batch, and the activations of the model on it before training."""

    def __init__(self, state: TrainState) -> None:
        self._state = state
        self._blocks = {tensor.name: tensor.blocks for tensor in state.layout.parameters}
        assert isinstance(state.model, Transformer), "the check has taps in transformers alone"
        num_rows = max(1, PROBE_TOKENS // state.model.context)
        inputs, targets = (rows[:num_rows] for rows in state.data.train_batch(PROBE_SEED, 0))
        self._inputs, self._targets = state.for_all((inputs, targets))
        self._start = state.layout.weights(state.initial())
        self._before = self._look()

    @torch.no_grad()
    def sizes(self) -> list[tuple[Part, str, Tensor]]:
        """Return (part, quantity, RMS [K]) of everything that is measured."""
        seen = self._look()
        out = [
            (part, quantity, value) for part in seen.outputs for quantity, value in self._quantities(part, seen).items()
        ]
        for block in seen.experts:
            for name in seen.experts[block]:
                values = self._of_expert(name, block, seen)
                out += [((name, block), quantity, _rms(value)) for quantity, value in values.items()]
            out += [(("expert_out", block), quantity, _rms(value)) for quantity, value in self._aggregates(block, seen)]
        return out

    @torch.no_grad()
    def weight_changes(self) -> Weights:
        """Return W_t - W_0 of every tensor."""
        return {
            name: tuple(now - start for now, start in zip(copies, self._start[name], strict=True))
            for name, copies in self._state.weights.items()
        }

    @torch.no_grad()
    def _look(self) -> _Seen:
        inputs: dict[Part, Tensor] = {}
        outputs: dict[Part, Tensor] = {}

        def tap(name: str, block: int, x: Tensor, y: Tensor) -> None:
            if name in (*LINEAR, *SHARED, *PARTS, *INPUTS):
                part = (name, None if name in OUTSIDE else block)
                inputs[part], outputs[part] = x, y
            if name == "final_norm":
                inputs["stream", None], outputs["stream", None] = x, x  # the output of the last block

        outputs.update(self._looked_up())
        self._state.forward(self._inputs, self._targets, self._state.setting.steps, tap=tap)
        experts = {block: self._expert_inputs(block, inputs["moe", block]) for block in self._state.moe_blocks}
        return _Seen(inputs=inputs, outputs=outputs, experts=experts)

    def _looked_up(self) -> dict[Part, Tensor]:
        """Return what the stream starts from, apart: the rows of the tokens, and those of the positions."""
        weights = self._state.weights
        out: dict[Part, Tensor] = {}
        if "embedding" in weights:
            rows = [table[ids] for table, ids in zip(weights["embedding"][0], self._inputs, strict=True)]
            out["embedding", None] = torch.stack(rows)
        if "position" in weights:
            out["position", None] = weights["position"][0].clone()
        return out

    def _expert_inputs(self, block: int, h_KTD: Tensor) -> dict[str, Tensor]:
        """Return the inputs of every expert's matrices on every token, [K, 1 or E, T, I]."""
        x, weights = h_KTD.unsqueeze(1), self._state.weights
        out: dict[str, Tensor] = {name: x for name in EXPERTS if name in weights}
        hidden = {name: x @ self._matrix(weights, (name, block)) + self._bias(name, block) for name in out}
        up, gate = hidden["expert_in"], hidden.get("expert_gate")
        if gate is not None:
            return {**out, "expert_out": F.silu(gate) * up}
        return {**out, "expert_out": up.relu() if self._state.setting.ffn == "relu" else F.gelu(up)}

    def _quantities(self, part: Part, seen: _Seen) -> Values:
        """Return the RMS [K] of an output and its change. For a linear map, add the two parts of the change."""
        name = part[0]
        y, y_0 = seen.outputs[part], self._before.outputs[part]
        if name == "gates":  # gates are zero outside the active set, so the mean is over the active experts
            share = (y != 0).flatten(1).double().mean(1).sqrt()
            return {"activation": _rms(y) / share, "change": _rms(y - y_0) / share}
        if name == "label":  # of the probe's classes few are in a batch: the update of the table shows what is learned
            return {"activation": _rms(y)}
        out = {"activation": _rms(y), "change": _rms(y - y_0)}
        if name in (*LINEAR, *SHARED):
            x, x_0 = seen.inputs[part], self._before.inputs[part]
            start = self._matrix(self._start, part)
            role, numbers = self._state.roles.get(name, name), self._state.model.numbers()  # the readout may be tied
            factor = numbers[role].double() if role in numbers else 1.0
            out["effective"] = _rms(x @ (self._matrix(self._state.weights, part) - start)) * factor
            out["propagating"] = _rms((x - x_0) @ start) * factor
        return out

    def _of_expert(self, name: str, block: int, seen: _Seen) -> Values:
        """Return output, change and its two parts, of all experts [K, E, T, O], without gate and multiplier."""
        x, x_0 = seen.experts[block][name], self._before.experts[block][name]
        start = self._matrix(self._start, (name, block))
        effective = x @ (self._matrix(self._state.weights, (name, block)) - start)
        propagating = (x - x_0) @ start
        return {
            "activation": x_0 @ start + effective + propagating,
            "change": effective + propagating,
            "effective": effective,
            "propagating": propagating,
        }

    def _aggregates(self, block: int, seen: _Seen) -> Iterator[tuple[str, Tensor]]:
        """Yield the three parts of the routed experts' sum, [K, T, D]."""
        gates_KTE = seen.outputs["gates", block] * self._state.model.numbers()["expert_out"].view(-1, 1, 1)
        x, x_0 = seen.experts[block]["expert_out"], self._before.experts[block]["expert_out"]
        start = self._matrix(self._start, ("expert_out", block))
        change = self._matrix(self._state.weights, ("expert_out", block)) - start
        weighted = gates_KTE.transpose(1, 2).unsqueeze(-1)
        yield "aggregate init", ((weighted * x_0) @ start).sum(1)
        yield "aggregate effective", ((weighted * x) @ change).sum(1)
        yield "aggregate propagating", ((weighted * (x - x_0)) @ start).sum(1)

    def _matrix(self, weights: Weights, part: Part) -> Tensor:
        """Return the weight of a linear map as the model applies it, [K, I, O] or [K, E, I, O], without multiplier."""
        name, block = part
        if name == "readout" and name not in weights:
            return weights["embedding"][0].transpose(1, 2)  # tied
        matrix = weights[name][0 if block is None else self._blocks[name].index(block)]
        if name == "shared_out":
            return matrix.flatten(1, 2)
        return matrix.transpose(1, 2).flatten(2) if name in SHARED else matrix

    def _bias(self, name: str, block: int) -> Tensor | float:
        biases = self._state.weights.get(f"{name}_bias")
        return 0.0 if biases is None else biases[self._blocks[name].index(block)].unsqueeze(2)


def _rms(x: Tensor) -> Tensor:
    """Return [K] float64, the RMS over all but the first dimension."""
    return x.flatten(1).double().square().mean(1).sqrt()


def _by_role(state: TrainState, tensors: Weights, quantity: str) -> Iterator[tuple[Part, str, Tensor]]:
    """Yield the RMS of every role's tensors, block by block.

    The bias of the final norm is left out. It has the role of the biases inside the blocks, but no branch before it.
    The trained bias of the router is a part of its own, without its gradient: that by the logits, which has two parts.
    """
    parts: dict[Part, list[Tensor]] = {}
    for tensor in state.layout.parameters:
        if tensor.name not in tensors or (tensor.role == "hidden_bias" and not tensor.blocks):
            continue
        if tensor.name == LOGIT_BIAS and quantity == "gradient":
            continue
        for block, copy in zip(tensor.blocks or (None,), tensors[tensor.name], strict=True):
            name = tensor.name if tensor.name == LOGIT_BIAS else tensor.role
            parts.setdefault((name, block), []).append(copy.flatten(1))
    for part, found in parts.items():
        yield part, quantity, _rms(torch.cat(found, 1))
