"""Families: the model architectures that a sweep can name. One package per family; torch is imported by no row.

To add a family, write a package that holds a `Family` and add its line here. From outside, call `register_family` in a
plug-in. `hpxfer.testing.families.FamilySuite` holds a family to the rules. The trainer, the planner and the checks of
a sweep use the functions of the row and know no family by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from hpxfer.model.parameters import Memory, ParameterSpec
from hpxfer.registry import Registry
from hpxfer.scaling.roles import ROLES
from hpxfer.scaling.shape import ROW_MULTIPLE, Shape
from hpxfer.spec import KeyPath, ModelBase, Options, Problem, SweepSpec
from hpxfer.trial import Setting, Trial

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray

    from hpxfer.data import Data
    from hpxfer.kernels.backend import Backend
    from hpxfer.model.flat import Weights
    from hpxfer.model.output import Output
    from hpxfer.model.router_measures import RouterView


class StackedModel(Protocol):
    """The forward pass of a stack. It holds the numbers of its trials, such as forward multipliers, and no weights.

    A model may have more methods, each of which is used where it is there:

    loads(weights, router_bias_LKE, inputs_KBS, *, noise_LKE, piece_K)  the tokens of every expert, [L, K, E] int64. A
        batch of several pieces with a loss that balances the whole of it asks for them first
    with_recomputation()  this model, of which the backward pass computes each block again (`recompute`)
    with_tap(tap)         this model with a tap, which is shown the inputs and outputs of its parts (`hpxfer check`)
    with_gradients(weights, router_bias_LKE, inputs_KBS, targets_KBS, grad_KT, *, noise_LKE)  the output, and the
        gradients of sum(losses * grad), where autograd does not give them
    router_views          see `ShowsRouters`
    """

    def __call__(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        targets_KBS: torch.Tensor,
        *,
        noise_LKE: torch.Tensor | None = None,
    ) -> Output:
        """Return per-token losses, the loads and scores of the experts, and what else the gradients are of.

        Two more tensors are given where a sweep has what they are for. `load_LKE` are the tokens of every expert in the
        step before, where `balance.load` is last_step, or in the whole batch where a batch has several pieces and a
        balancing loss of all of them. `piece_K` int32 is the place of the inputs in such a batch, where trials break
        ties at random.
        """

    def numbers(self) -> Mapping[str, torch.Tensor]:
        """Return the numbers of the trials by name, [K, ...] on the device. A captured step reads them in place."""


@runtime_checkable
class ShowsRouters(Protocol):
    """A stacked model that shows its routers. Its trials measure them (`hpxfer.train.log`)."""

    def router_views(
        self,
        weights: Weights,
        router_bias_LKE: torch.Tensor,
        inputs_KBS: torch.Tensor,
        *,
        noise_LKE: torch.Tensor | None = None,
    ) -> tuple[RouterView, ...]:
        """Return what the router of every MoE layer does on a batch."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture, as far as the checks of a sweep, the planner and the trainer need it."""

    name: str
    section: type[ModelBase]
    """The keys of the section `model` of a sweep: a `TrainedModel` of hpxfer.spec with keys of its own."""
    roles: Callable[[Shape, Options], tuple[str, ...]]
    """(shape, model options) -> the roles that the tables must have rows for, `router_bias` included."""
    parameters: Callable[[Shape, Setting], tuple[ParameterSpec, ...]]
    """(shape, setting) -> the trained parameters of one trial. A setting has the section's own keys as `own`."""
    flops_per_token: Callable[[Shape, Setting], float]
    """(shape, setting) -> training FLOPs per token, forward and backward."""
    build: Callable[[Sequence[Trial], torch.device, Backend], StackedModel]
    """(trials of one shape and setting, device, kernels) -> their stacked model. It may import torch."""
    memory: Callable[[Shape, Setting, bool], Memory]
    """(shape, setting, on CUDA) -> what one trial keeps and holds, part by part, for planning."""
    logits_per_token: Callable[[Shape, Setting], int] = lambda shape, setting: 0
    """(shape, setting) -> the logits per token that `hpxfer.kernels.head` computes, for planning. It keeps them up to a
    limit, and computes them piece by piece again above it."""
    data: Literal["tokens", "samples", "user"] = "tokens"
    """What the model reads; `user` where hpxfer does not see it."""
    batches: Callable[[Setting, Data], Data] = lambda setting, data: data
    """(setting, its tokens or samples) -> what its models read of them. It may import torch."""
    tokens_of_row: Callable[[Setting], int] = lambda setting: 1
    """(setting) -> the tokens that the model makes of each token or sample of the batch: its routers see so many."""
    problems: Callable[[SweepSpec, Sequence[tuple[KeyPath, Shape]]], Iterator[Problem]] = lambda spec, shapes: iter(())
    """(sweep, its shapes with their key paths, none if they are broken) -> the broken rules that only this family
    has."""
    row_multiple: int = ROW_MULTIPLE
    """What every hidden size must be a multiple of."""
    precisions: tuple[str, ...] = ("float32", "bfloat16")
    """The precisions of compute that the model has."""
    has_pieces: bool = True
    """Whether a batch may be cut into pieces, whose gradients autograd adds (`training.accumulation_*`)."""
    regularizes: bool = True
    """Whether the model has losses of its router, weighted by the HPs aux_weight and z_weight."""
    compiles: bool = True
    """Whether torch may compile the forward pass on CUDA."""
    needs_experts: bool = False
    """Whether each block has experts. Otherwise a sweep may leave all keys of experts out."""
    weights: Literal["transformers", "safetensors"] = "safetensors"
    """The form in which `hpxfer weights` writes a trial by default."""
    draw_samples: (
        Callable[
            [Trial, Mapping[str, tuple[torch.Tensor, ...]], torch.Tensor, Data, int, int],
            tuple[NDArray[np.float32], NDArray[np.float32]],
        ]
        | None
    ) = None
    """(trial, its weights, its router biases [L, E], its data, most, steps) -> so many held-out samples at most, and as
    many that the trial draws for their classes in so many passes, [samples, channels, side, side] each; None where a
    model draws none. It may import torch."""
    forward_roles: tuple[str, ...] = tuple(ROLES)
    """The roles whose forward multiplier the model applies. Tables that give others one are refused."""


FAMILIES: Registry[Family] = Registry(
    "family",
    {
        "gpt": "hpxfer.model.gpt:GPT",
        "mlp": "hpxfer.model.mlp:FAMILY",
        "dit": "hpxfer.model.dit:FAMILY",
        "user": "hpxfer.model.user:FAMILY",
    },
)
register_family = FAMILIES.register
