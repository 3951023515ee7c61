"""Muon for a user's own model: an optimizer of torch for the groups of a recipe, and groups for torch's own Muon.

m <- momentum m + (1 - momentum) g        u = (1 - momentum) g + momentum m          (Nesterov; KellerJordan/Muon)
W <- (1 - lr weight_decay) W - lr s X(u)  X by five Newton-Schulz steps, see `hpxfer.kernels.orthogonal`

This is the step of hpxfer's own trainer. `hpxfer.scaling.muon` says what s is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from hpxfer.errors import HpxferError
from hpxfer.kernels.orthogonal import orthogonal
from hpxfer.recipe import schedule
from hpxfer.scaling.muon import SCALES

Group = dict[str, Any]


class Muon(torch.optim.Optimizer):
    """Muon with the groups of `Recipe.param_groups`, in which AdamW moves what Muon does not.

    A group with a `scale` is Muon's. Its matrices step along the nearest semi-orthogonal matrix to their momentum, in
    float32 on any device, and each expert, query, key or gate in one tensor by itself. A matrix whose gradient is
    exactly zero, such as that of an expert without tokens, takes no step and keeps its momentum. `recipe.scheduler` and
    any other schedule of torch works. Raises HpxferError for groups of something else, and for sharded tensors.

    >>> model = torch.nn.ModuleDict({"q_proj": torch.nn.Linear(32, 32, bias=False), "norm": torch.nn.LayerNorm(32)})
    >>> groups = [
    ...     {"params": [model["q_proj"].weight], "lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "scale": (1.0,),
    ...      "axis": -1, "parts": ()},
    ...     {"params": model["norm"].parameters(), "lr": 1e-3, "weight_decay": 0.0, "eps": 1e-8, "betas": (0.9, 0.95)},
    ... ]
    >>> optimizer = hpxfer.Muon(groups)  # groups of a recipe: recipe.param_groups(model, roles, shape)
    >>> model["norm"](model["q_proj"](torch.ones(2, 32))).square().sum().backward()
    >>> optimizer.step()
    """

    def __init__(self, groups: Iterable[Group]) -> None:
        super().__init__(groups, {})
        for group in self.param_groups:
            if "scale" not in group and "betas" not in group:
                given = ", ".join(key for key in group if key != "params") or "params alone"
                raise HpxferError(f"hpxfer.Muon: groups must be those of recipe.param_groups, got one with {given}")
            for tensor in group["params"] if "scale" in group else ():
                if hasattr(tensor, "device_mesh"):
                    at = "/".join(group.get("roles", ()))
                    raise HpxferError(f"hpxfer.Muon: matrices must be whole on each device, got sharded ones ({at})")

    @overload
    def step(self, closure: None = None) -> None: ...
    @overload
    def step(self, closure: Callable[[], float]) -> float: ...
    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step. A closure computes the loss, which is returned, and the gradients anew."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            (self._muon if "scale" in group else self._adamw)(group)
        return loss

    def _muon(self, group: Group) -> None:
        lr, momentum = float(group["lr"]), float(group["momentum"])
        by_size: dict[torch.Size, list[tuple[Tensor, Tensor, float]]] = {}
        for tensor in group["params"]:
            if tensor.grad is None:
                continue
            state = self.state[tensor]
            if not state:
                state["momentum"] = torch.zeros_like(tensor)
            tensor.mul_(1 - lr * group["weight_decay"])
            split = zip(*(_parts(each, group) for each in (tensor, tensor.grad, state["momentum"])), strict=True)
            for (w, g, m), scale in zip(split, group["scale"], strict=True):
                moves = (g != 0).flatten(1).any(1).view(-1, 1, 1)
                fresh = g.float() * (1 - momentum)
                m.copy_((m.float() * momentum).add_(fresh).where(moves, m.float()))
                u = (m.float() * momentum).add_(fresh).masked_fill_(~moves, 0.0)  # X of zeros is zero
                by_size.setdefault(w.shape[-2:], []).append((w, u, scale))
        for found in by_size.values():
            x_NIO, start = orthogonal(torch.cat([u for _, u, _ in found])), 0
            for w, u, scale in found:
                w.sub_(x_NIO[start : start + len(u)].mul_(lr * scale))
                start += len(u)

    def _adamw(self, group: Group) -> None:
        tensors = [tensor for tensor in group["params"] if tensor.grad is not None]
        for tensor in tensors:
            if not self.state[tensor]:
                zeros = {name: torch.zeros_like(tensor) for name in ("exp_avg", "exp_avg_sq")}
                self.state[tensor].update(zeros, step=torch.tensor(0.0))
        states = [self.state[tensor] for tensor in tensors]
        beta1, beta2 = group["betas"]
        adamw(
            tensors,
            [tensor.grad for tensor in tensors],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            amsgrad=False,
            maximize=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
        )


def torch_muon(
    groups: Iterable[Group], adjust_lr_fn: Literal["original", "match_rms_adamw"] = "original"
) -> tuple[list[Group], list[Group]]:
    """Return the groups of a recipe for `torch.optim.Muon`, and those for `torch.optim.AdamW`.

    torch multiplies the LR by a scale of its own, which `adjust_lr_fn` names, and decays by the LR without it. LR and
    weight decay of the groups make up for both, so that each matrix takes the recipe's step. It orthogonalizes in
    bfloat16 whatever the precision of the model, which `hpxfer.Muon` does not, and an expert without tokens
    steps on by its old momentum. Raises HpxferError for stacked or joined matrices, which it cannot take apart.

    >>> model = torch.nn.Linear(16, 64, bias=False)
    >>> groups = [{"params": [model.weight], "lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "scale": (2.0,),
    ...            "axis": -2, "parts": (), "peak_lr": 0.02, "names": ("up_proj.weight",), "roles": ("dense_in",)}]
    >>> of_muon, of_adamw = hpxfer.torch_muon(groups)
    >>> of_muon[0]["lr"], of_muon[0]["adjust_lr_fn"], of_adamw
    (0.02, 'original', [])
    """
    if adjust_lr_fn not in ("original", "match_rms_adamw"):
        raise HpxferError(f"torch_muon: adjust_lr_fn must be original or match_rms_adamw, got {adjust_lr_fn!r}")
    of_muon: dict[tuple[float, ...], Group] = {}
    of_adamw: list[Group] = []
    for group in groups:
        if "scale" not in group:
            of_adamw.append(group)
            continue
        for name, tensor in zip(group["names"], group["params"], strict=True):
            if tensor.ndim != 2 or group["parts"]:
                raise HpxferError(
                    f"torch.optim.Muon: {name} ({'/'.join(group['roles'])}) must be one matrix, got size "
                    f"{tuple(tensor.shape)} with {len(group['parts']) or len(tensor)} of them; use hpxfer.Muon"
                )
            rows, columns = tensor.shape
            ratio = group["scale"][0] / SCALES[adjust_lr_fn][1](columns, rows)
            numbers = {"lr": group["lr"] * ratio, "weight_decay": group["weight_decay"] / ratio}
            numbers["momentum"] = group["momentum"]
            peak = {"peak_lr": group["peak_lr"] * ratio, "adjust_lr_fn": adjust_lr_fn}
            made = of_muon.setdefault(
                tuple(numbers.values()), {"params": [], **numbers, **peak, "names": (), "roles": ()}
            )
            made["params"].append(tensor)
            made["names"] += (name,)
            made["roles"] += tuple(role for role in group["roles"] if role not in made["roles"])
    schedule.remember(of_muon.values())
    return list(of_muon.values()), of_adamw


def _parts(tensor: Tensor, group: Group) -> list[Tensor]:
    """Return views [N, rows, columns] of the matrices in a tensor [..., rows, columns], one stack per scale.

    A whole tensor whose matrices share a scale has one stack.
    """
    stack = tensor.view(-1, *tensor.shape[-2:]) if tensor.ndim != 3 else tensor
    if not group["parts"]:
        return [stack]
    return [
        stack[:, slice(*part)] if group["axis"] == -2 else stack[:, :, slice(*part)]
        for part in map(tuple, group["parts"])
    ]
