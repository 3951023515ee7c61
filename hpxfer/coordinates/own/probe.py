"""The features of a user's model on one batch: what hooks see, and the sizes that follow.

    y_t - y_0 = c [ x_t (W_t - W_0) + (x_t - x_0) W_0 ]      effective + propagating, of a linear map with multiplier c

A module counts as a linear map if its output is c (x W + b), whatever its class is. The number c is found by this test,
so that a multiplier of a hook is in it. A multiplier that the model's own code applies elsewhere is not seen.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hpxfer.coordinates.own.parts import Held, factor_around, factor_at, first_tensor, layer_modules, paths_around
from hpxfer.errors import HpxferError
from hpxfer.recipe import MultiplyInput, MultiplyOutput, plain_modules

Key = tuple[str, str, int | None]  # quantity, role, block
TOP = ""  # the whole model
# An output is a multiple of x W + b if what is left is smaller than this share of it. Low precision rounds more.
SAME = {torch.float64: 1e-6, torch.float32: 1e-3}
SAME_LOW = 3e-2
RANDOM = "effective of a random matrix"
# A token may choose other experts after an update. So the tokens of two calls cannot be compared.
ROUTED = ("expert_in", "expert_gate", "expert_out")


@dataclass(frozen=True, kw_only=True)
class Seen:
    """The first tensor that a module took and that it returned, as double."""

    x: Tensor | None
    y: Tensor | None


class Sizes:
    """Mean squares by key. A role's tensors in a block count by their numbers of elements."""

    def __init__(self) -> None:
        self._sums: dict[Key, tuple[Tensor, int]] = {}

    def add(self, quantity: str, item: Held | tuple[str, int | None], values: Tensor, factor: float = 1.0) -> None:
        """Add the squares of the values, to each role of a tensor that holds several matrices."""
        roles, layer = (item.roles, item.layer) if isinstance(item, Held) else ((item[0],), item[1])
        if not values.numel():
            return
        square = values.detach().double().square().sum().cpu() * factor**2
        for role in roles:
            total, count = self._sums.get((quantity, role, layer), (torch.zeros((), dtype=torch.float64), 0))
            self._sums[quantity, role, layer] = (total + square, count + values.numel())

    def items(self) -> Iterator[tuple[Key, float]]:
        """Yield (key, RMS)."""
        for key, (total, count) in self._sums.items():
            yield key, float((total / count).sqrt())


class Probe:
    """The model, and its features on a batch before training."""

    def __init__(self, model: nn.Module, tensors: Sequence[Held], run: Callable[[], object]) -> None:
        self._model, self._tensors, self._run = model, tensors, run
        self._modules = plain_modules(model)
        self._layers = layer_modules(tensors)
        self._matrices = [item for item in tensors if item.tensor.ndim == 2]
        norms = [item.owner for item in tensors if item.role == "final_norm"]
        self._final_norm = norms[0] if norms else None
        self.start = {item.name: item.tensor.detach().clone() for item in tensors}
        self._before = self._look()
        if not any(seen.y is not None for name, seen in self._before.items() if name != TOP):
            raise HpxferError(
                "build: hooks must see the modules of the model, got no call of any of them; return the model without "
                "torch.compile, and let loss_fn(model, batch) call it"
            )

    def sizes(self, sizes: Sizes, *, first: bool) -> None:
        """Add the sizes of all features; of their changes too, but for the first time."""
        seen = self._before if first else self._look()
        for item in self._matrices:
            self._of_matrix(sizes, item, seen, first)
        for (part, layer), name in self._layers.items():
            self._of_output(sizes, (part, layer), name, seen, first)
        if self._final_norm is not None and self._final_norm in seen:
            x, x_0 = seen[self._final_norm].x, self._before[self._final_norm].x
            if x is not None and x_0 is not None:
                sizes.add("activation", ("stream", None), x)
                if not first:
                    sizes.add("change", ("stream", None), x - x_0)
            self._of_output(sizes, ("final_norm", None), self._final_norm, seen, first)

    def linear_maps(self) -> set[str]:
        """Return the names of the tensors whose module is a linear map."""
        return {item.name for item in self._matrices if self._map(item, self._before, self.start) is not None}

    def multiplied(self, role: str) -> bool:
        """Return whether a hook multiplies the output of a part that ends with this role, or the input of a router."""
        part = {"expert_out": "moe", "dense_out": "dense"}.get(role)
        names = [name for (kind, _), name in self._layers.items() if kind == part]
        for item in self._tensors:
            if item.role == role:
                names += [item.owner, *paths_around(item)]
        modules = [self._modules[name] for name in names]
        hooks = [*(each for module in modules for each in module._forward_hooks.values())]
        before = [*(each for module in modules for each in module._forward_pre_hooks.values())]
        return any(isinstance(each, MultiplyOutput) for each in hooks) or any(
            isinstance(each, MultiplyInput) for each in before
        )

    def sees_logits(self) -> bool:
        """Return whether the output of the whole model is a multiple of that of the readout."""
        return any(self._after(item, self._before) is not None for item in self._matrices if item.role == "readout")

    def _of_matrix(self, sizes: Sizes, item: Held, seen: Mapping[str, Seen], first: bool) -> None:
        if item.owner not in seen:
            if item.role == "position":  # many models add its rows without a call
                self._of_rows(sizes, item, first)
            return
        now, before = seen[item.owner], self._before[item.owner]
        weights = {item.name: item.tensor.detach()}
        found = self._map(item, seen, weights) or self._map(item, self._before, self.start)
        factor = factor_around(item, self._modules) * (self._after(item, seen) or 1.0)
        y, y_0 = now.y, before.y
        if y is None or (item.role == "router" and found is None):
            return  # a module that returns gates shows no logits, of which the tables speak
        sizes.add("activation", item, y, factor)
        compares = item.role not in ROUTED and y_0 is not None and y.shape == y_0.shape
        if first:
            return
        if compares and y_0 is not None:
            sizes.add("change", item, y - y_0, factor)
        if found is None or now.x is None:
            return
        multiplier, transposed = found
        matrix_0 = self._matrix(self.start[item.name], transposed)
        update = self._matrix(weights[item.name], transposed) - matrix_0
        learned = now.x @ update
        sizes.add("effective", item, learned, factor * multiplier)
        square = now.x.square().mean() * update.square().mean() * len(update)
        sizes.add(RANDOM, item, square.sqrt().expand_as(learned), factor * multiplier)
        if compares and before.x is not None and before.x.shape == now.x.shape:
            sizes.add("propagating", item, (now.x - before.x) @ matrix_0, factor * multiplier)

    def _of_rows(self, sizes: Sizes, item: Held, first: bool) -> None:
        sizes.add("activation", item, item.tensor)
        if not first:
            sizes.add("change", item, item.tensor.detach() - self.start[item.name])

    def _of_output(
        self, sizes: Sizes, part: tuple[str, int | None], name: str, seen: Mapping[str, Seen], first: bool
    ) -> None:
        y = seen[name].y if name in seen else None
        y_0 = self._before[name].y if name in self._before else None
        if y is not None and y_0 is not None and y.shape == y_0.shape:
            sizes.add("activation", part, y)
            if not first:
                sizes.add("change", part, y - y_0)

    def _map(self, item: Held, seen: Mapping[str, Seen], weights: Mapping[str, Tensor]) -> tuple[float, bool] | None:
        """Return (multiplier, whether the weight is [out, in]) if the module is a linear map, else None."""
        module, weight = self._modules[item.owner], weights[item.name]
        at = seen.get(item.owner)
        if at is None or at.x is None or at.y is None or isinstance(module, nn.Embedding):
            return None
        bias = getattr(module, "bias", None)
        for transposed in (True, False):
            matrix = self._matrix(weight, transposed)
            if (at.x.shape[-1], at.y.shape[-1]) != tuple(matrix.shape):
                continue
            x, y = at.x.flatten(0, -2), at.y.flatten(0, -2)
            if len(x) != len(y):
                continue
            plain = x @ matrix
            if isinstance(bias, Tensor):
                plain = plain + bias.detach().double()
            if not plain.any() and not y.any():
                return factor_at(module), transposed
            multiplier = _multiple(y, plain, weight.dtype)
            if multiplier is not None:
                return multiplier, transposed
        return None

    def _after(self, item: Held, seen: Mapping[str, Seen]) -> float | None:
        """Return by how much the model multiplies what its readout returns, or None if the logits are not seen."""
        top, own = seen.get(TOP), seen.get(item.owner)
        if item.role != "readout" or top is None or own is None or top.y is None or own.y is None:
            return None
        if top.y.shape != own.y.shape:
            return None
        return 1.0 if not own.y.any() and not top.y.any() else _multiple(top.y, own.y, item.tensor.dtype)

    @staticmethod
    def _matrix(weight: Tensor, transposed: bool) -> Tensor:
        return (weight.T if transposed else weight).double()

    @torch.no_grad()
    def _look(self) -> dict[str, Seen]:
        """Return name -> what a module took and returned, in evaluation mode. Of several calls the last one counts."""
        names = {item.owner for item in self._matrices} | set(self._layers.values()) | {TOP}
        names |= {self._final_norm} if self._final_norm is not None else set()
        out: dict[str, Seen] = {}

        def keep(name: str) -> Callable[..., None]:
            def hook(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
                x = first_tensor(args)
                out[name] = Seen(x=_double(first_tensor(kwargs) if x is None else x), y=_double(first_tensor(output)))

            return hook

        modes = {module: module.training for module in self._model.modules()}
        handles = [self._modules[name].register_forward_hook(keep(name), with_kwargs=True) for name in names]
        self._model.eval()
        try:
            self._run()
        finally:
            for handle in handles:
                handle.remove()
            for module, training in modes.items():
                module.training = training
        return out


def _double(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.detach().to(torch.float64, copy=True)  # what follows may change it in place


def _multiple(y: Tensor, of: Tensor, dtype: torch.dtype) -> float | None:
    """Return c if y is c times another tensor, else None."""
    square = of.square().sum()
    if not bool(square > 0):
        return None
    c = (y * of).sum() / square
    left = (y - c * of).norm()
    return float(c) if bool(left <= SAME.get(dtype, SAME_LOW) * y.norm()) else None
