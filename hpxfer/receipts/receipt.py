"""A receipt: each parameter of a model with what the optimizer holds for it, as JSON-ready data."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.output import json_ready
from hpxfer.recipe.match import Roles, pairs_of
from hpxfer.recipe.wrappers import plain_names

if TYPE_CHECKING:
    import torch


OF_A_GROUP = ("lr", "peak_lr", "eps", "weight_decay")


def receipt(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
    roles: Roles | None = None,
    *,
    init: bool = False,
) -> list[dict[str, Any]]:
    """Return one entry per parameter: its name, size and role, and the numbers of the group that holds it.

    Names are those of the model before torch.compile, DDP or FSDP wrapped it. `held` says how many times the optimizers
    hold a parameter, which should be once: 0 is a parameter that nothing trains although it needs a gradient. A tensor
    of an optimizer that is no parameter of the model has the name None. `hpxfer.receipts.entries` lists all fields.

    Args:
        model: the model, wrapped or not.
        optimizer: one of torch, or anything with its `param_groups`; several if the training has several.
        roles: as recipes take them; the first pattern that matches a name of a parameter gives its role.
        init: add `std`, `mean`, `largest` and `digest` of the elements. Before the first step these are of the init.
            With a sharded model each rank must call, as its parts are gathered.

    Raises:
        HpxferError: an optimizer has no groups, or `roles` holds no pairs.
    """
    plain, pairs = plain_names(model), pairs_of(roles or ())
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
        tensors[id(parameter)] = parameter
    held: dict[int, list[dict[str, Any]]] = {}
    strangers: list[dict[str, Any]] = []
    for at, tensor, group in _held(optimizer):
        numbers = {"group": at, **_numbers(group)}
        if id(tensor) in names:
            held.setdefault(id(tensor), []).append(numbers)
        else:
            strangers.append({"name": None, **_of_tensor(tensor), "role": None, "held": 1, **numbers})
    out = []
    for key, aliases in names.items():
        found = held.get(key, [])
        numbers = found[0] if found else {"group": None, **_numbers({})}
        entry = {"name": aliases[0], **_of_tensor(tensors[key]), "role": _role(aliases, pairs), "held": len(found)}
        out.append({**entry, **numbers, **(_statistics(tensors[key]) if init else {})})
    return [*out, *strangers]


def _held(
    optimizer: torch.optim.Optimizer | Iterable[torch.optim.Optimizer],
) -> Iterator[tuple[int, torch.Tensor, dict[str, Any]]]:
    """Yield (number of the group, tensor, group) for all that the optimizers hold."""
    every = [optimizer] if hasattr(optimizer, "param_groups") else optimizer
    rule = "receipt: optimizer must be one of torch, or a list of such"
    if not isinstance(every, Iterable):
        raise HpxferError(f"{rule}, got {type(optimizer).__name__}, which has no param_groups")
    at = 0
    for one in every:
        if not hasattr(one, "param_groups"):
            raise HpxferError(f"{rule}, got {type(one).__name__}, which has no param_groups")
        for group in one.param_groups:
            for tensor in group["params"]:
                yield at, tensor, group
            at += 1


def _numbers(group: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of a group. An LR may be a tensor."""
    out: dict[str, Any] = {key: None if group.get(key) is None else float(group[key]) for key in OF_A_GROUP}
    betas = group.get("betas")
    return {**out, "betas": None if betas is None else [float(each) for each in betas]}


def _of_tensor(tensor: torch.Tensor) -> dict[str, Any]:
    return {"size": list(tensor.shape), "numel": tensor.numel(), "trained": tensor.requires_grad}


def _role(names: Sequence[str], pairs: Sequence[tuple[str, str]]) -> str | None:
    found = (role for pattern, role in pairs for name in names if fnmatchcase(name, pattern))
    return next(found, None)


def _statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the spread of the elements about their mean, their mean, the largest magnitude, and a hash of the bits."""
    import torch

    with torch.no_grad():
        whole = tensor.detach()
        if hasattr(whole, "full_tensor"):
            whole = whole.full_tensor()  # of a DTensor: a collective call
        whole = whole.contiguous().cpu()
        if not whole.numel():
            return {"std": None, "mean": None, "largest": None, "digest": None}
        bits = whole.flatten().view(torch.uint8).numpy().tobytes()
        values = whole.double()
        spread, mean = torch.var_mean(values, correction=0)
        return {
            "std": float(spread.sqrt()),
            "mean": float(mean),
            "largest": float(values.abs().max()),
            "digest": hashlib.blake2b(bits, digest_size=8).hexdigest(),
        }


def write_groups(path: str | Path, step: int, groups: Iterable[Mapping[str, Any]]) -> None:
    """Append `{"type": "groups", "step": step, "groups": [...]}` to a file of JSON lines.

    Call it on rank 0 alone. `step` counts the optimizer updates before. Numbers that are not finite become null.

    Raises:
        HpxferError: the step is no count, or the file cannot be written.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise HpxferError(f"write_groups: step must be a number of updates, 0 or more, got {shown(step)}")
    line = {"type": "groups", "step": step, "groups": [json_ready(dict(entry)) for entry in groups]}
    text = json.dumps(line, allow_nan=False, separators=(",", ":")) + "\n"
    try:
        handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            left = memoryview(text.encode())
            while left:
                left = left[os.write(handle, left) :]
        finally:
            os.close(handle)
    except OSError as error:
        raise HpxferError(f"{path}: the groups cannot be written: {error.strerror}; give another path") from None
