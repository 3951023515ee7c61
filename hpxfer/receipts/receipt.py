"""Receipt: what a torch training's optimizer really holds, what its updates change, and how large its outputs are.

All of it runs in the process of a user's training. Torch is imported late, as a trainer need not be one of torch.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host import json_ready, reason
from hpxfer.recipe import SCALING, Roles, Sites, pairs_of, plain_modules, plain_names

if TYPE_CHECKING:
    import torch


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
    of an optimizer that is no parameter of the model has the name None. `hpxfer.receipts.checks` lists all fields.

    Args:
        model: the model, wrapped or not.
        optimizer: one of torch, or anything with its `param_groups`; several if the training has several.
        roles: as recipes take them; the first pattern that matches a name of a parameter gives its role.
        init: add `std`, `mean`, `largest` and `digest` of the elements. Before the first step these are of the init.
            With a sharded model each rank must call, as its parts are gathered.

    Raises:
        HpxferError: an optimizer has no groups, or `roles` holds no pairs.

    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Linear(8, 2))
    >>> optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    >>> [(entry["name"], entry["held"], entry["lr"]) for entry in hpxfer.receipt(model, optimizer)][:2]
    [('0.weight', 1, 0.01), ('0.bias', 1, 0.01)]
    """
    plain, pairs = plain_names(model), pairs_of(roles or ())
    every: list[Any] = list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]
    for one in every:
        if not hasattr(one, "param_groups"):
            raise HpxferError(f"receipt: optimizer must be one of torch, or a list of such, got {type(one).__name__}")
    names: dict[int, list[str]] = {}
    tensors: dict[int, torch.Tensor] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(plain(name))
        tensors[id(parameter)] = parameter
    held: dict[int, list[dict[str, Any]]] = {key: [] for key in names}
    for at, group in enumerate(group for one in every for group in one.param_groups):
        for tensor in group["params"]:
            tensors.setdefault(id(tensor), tensor)
            held.setdefault(id(tensor), []).append({"group": at, **_numbers(group)})
    out = []
    for key, found in held.items():
        aliases = names.get(key, [])
        role = next((role for pattern, role in pairs for name in aliases if fnmatchcase(name, pattern)), None)
        tensor = tensors[key]
        out.append(
            {
                "name": aliases[0] if aliases else None,
                "size": list(tensor.shape),
                "numel": tensor.numel(),
                "trained": tensor.requires_grad,
                "role": role,
                "held": len(found),
                **(found[0] if found else {"group": None, **_numbers({})}),
                **(_statistics(tensor) if init and aliases else {}),
            }
        )
    return out


def _numbers(group: Mapping[str, Any]) -> dict[str, Any]:
    """Return the numbers of a group. An LR may be a tensor."""
    numbers = ((key, group.get(key)) for key in ("lr", "peak_lr", "eps", "weight_decay"))
    betas = group.get("betas")
    return {
        **{key: None if value is None else float(value) for key, value in numbers},
        "betas": None if betas is None else [float(each) for each in betas],
    }


def _statistics(tensor: torch.Tensor) -> dict[str, Any]:
    """Return the spread of the elements about their mean, their mean, the largest magnitude, and a hash of the bits."""
    import torch

    whole = tensor.detach()
    if hasattr(whole, "full_tensor"):
        whole = whole.full_tensor()  # of a DTensor: a collective call
    whole = whole.cpu()
    if not whole.numel():
        return dict.fromkeys(("std", "mean", "largest", "digest"))
    values = whole.double()
    spread, mean = torch.var_mean(values, correction=0)
    return {
        "std": float(spread.sqrt()),
        "mean": float(mean),
        "largest": float(values.abs().max()),
        "digest": digest([whole]),
    }


def digest(values: Any) -> str | None:
    """Return a hash of the bits of all tensors in values; None if there are none."""
    import torch

    bits = [each.detach().cpu().contiguous().flatten().view(torch.uint8).numpy() for each in _tensors(values)]
    return hashlib.blake2b(b"".join(each.tobytes() for each in bits), digest_size=8).hexdigest() if bits else None


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if hasattr(value, "detach"):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for each in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(each)


def append(path: str | Path, line: Mapping[str, Any]) -> None:
    """Append a line to a report file with one write, so that a kill leaves it whole or torn at the end."""
    data = memoryview(json.dumps(line, separators=(",", ":")).encode() + b"\n")
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        while data:
            data = data[os.write(handle, data) :]
    finally:
        os.close(handle)


def write_groups(path: str | Path, step: int, groups: Iterable[Mapping[str, Any]]) -> None:
    """Append `{"type": "groups", "step": step, "groups": [...]}` to a file of JSON lines.

    Call it on rank 0 alone. `step` counts the optimizer updates before. Numbers that are not finite become null. Raises
    HpxferError if the step is no count, or the file cannot be written.
    """
    if isinstance(step, bool) or not isinstance(step, int) or step < 0:
        raise HpxferError(f"write_groups: step must be a number of updates, 0 or more, got {shown(step)}")
    try:
        append(path, {"type": "groups", "step": step, "groups": [json_ready(dict(entry)) for entry in groups]})
    except OSError as error:
        raise HpxferError(f"{path}: the groups cannot be written: {reason(error)}") from None


FEW = 8  # elements, of which too few may lie in line by chance


def weights_of(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Return name -> a copy of each parameter that needs a gradient."""
    plain = plain_names(model)
    return {plain(name): tensor.detach().clone() for name, tensor in model.named_parameters() if tensor.requires_grad}


def changes_since(model: torch.nn.Module, before: Mapping[str, torch.Tensor]) -> dict[str, float]:
    """Return name -> RMS of the change of each parameter since `weights_of` copied it, or 0 if it did not learn.

    A parameter did not learn if it has no gradient, or if it only shrank, as weight decay alone makes it. Call this
    after the step and before `zero_grad`: without gradients the second is all that shows. Of a sharded model these are
    numbers of this rank's part. Raises HpxferError if a parameter has no copy.
    """
    plain, out = plain_names(model), {}
    has_gradients = any(tensor.grad is not None for tensor in model.parameters())
    for name, tensor in model.named_parameters():
        if not tensor.requires_grad:
            continue
        if plain(name) not in before:
            raise HpxferError(f"changes_since: every parameter must have a copy, got none of {plain(name)}")
        start = _local(before[plain(name)]).double()
        change = _local(tensor.detach()).double() - start
        learned = bool(_local(tensor.grad).any()) if tensor.grad is not None else not has_gradients
        learned = learned and bool(change.any()) and not _only_shrank(change, start, tensor.dtype)
        out[plain(name)] = float(change.square().mean().sqrt()) if learned else 0.0
    return out


def _only_shrank(change: torch.Tensor, start: torch.Tensor, dtype: torch.dtype) -> bool:
    """Return whether a change is one small negative share of the weights, up to rounding.

    Weights that are all alike, such as those of a gain at its start, do not show it.
    """
    import torch

    square = start.square().sum()
    if start.numel() < FEW or not bool(square > 0) or bool((start == start.flatten()[0]).all()):
        return False
    share = (change * start).sum() / square
    rest = (change - share * start).square().mean().sqrt()
    # To round to the nearest number moves a weight by at most half an eps of itself, and by 0.29 eps in the RMS.
    rounding = 0.35 * torch.finfo(dtype).eps * start.square().mean().sqrt()
    return bool(share < 0) and bool(rest <= rounding)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    local: torch.Tensor = tensor.to_local() if hasattr(tensor, "to_local") else tensor
    return local


ATTENTION = "attn_logits"


def measure_sites(model: torch.nn.Module, sites: Sites, tell: Callable[[Mapping[str, Any]], None]) -> None:
    """Call `tell` with the output of each site at its first forward pass in training, and at its first in evaluation.

    What is told is `{"key", "module", "mode", "with", "without"}`. `with` is the RMS of what the module gives to the
    model. `without` is that of its plain `forward` on the same input, without the hooks that stand on it. So a missing
    multiplier has the ratio 1. For attn_logits the numbers are the module's `scaling`, and 1. The random state is put
    back, so that the training goes on as without this. A sharded module (FSDP2) is not measured.
    """
    modules = plain_modules(model)
    for pattern, key in pairs_of(sites, "sites", "key of forward_multipliers"):
        seen: set[int] = set()
        for name, module in modules.items():
            is_sharded = any(hasattr(each, "full_tensor") for each in module.parameters())
            if fnmatchcase(name, pattern) and id(module) not in seen and not is_sharded:
                seen.add(id(module))
                _measure(module, key, name, tell)


def _measure(module: torch.nn.Module, key: str, name: str, tell: Callable[[Mapping[str, Any]], None]) -> None:
    import torch

    modes: set[bool] = set()  # of training, that were measured
    without: float | None = None

    def before(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the output without the hooks, in the random state that the forward pass will have."""
        nonlocal without
        if module.training in modes or torch.compiler.is_compiling():
            return
        devices = [each.device for each in module.parameters() if each.device.type == "cuda"][:1]
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            without = 1.0 if key == ATTENTION else _rms(module.forward(*args, **kwargs))

    def after(module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Tell what the output is with all hooks that were added before."""
        nonlocal without
        if without is not None:
            modes.add(module.training)
            mode = "train" if module.training else "eval"
            with_it = float(getattr(module, SCALING)) if key == ATTENTION else _rms(output)
            tell({"key": key, "module": name, "mode": mode, "with": with_it, "without": without})
            without = None

    module.register_forward_pre_hook(before, prepend=True, with_kwargs=True)
    module.register_forward_hook(after)


def _rms(output: Any) -> float:
    first = output[0] if isinstance(output, tuple) else output
    return float(first.detach().double().square().mean().sqrt())
