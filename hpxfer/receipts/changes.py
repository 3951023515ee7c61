"""How much each parameter changed, and how large outputs are at forward multipliers. Torch is imported late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError
from hpxfer.recipe.forward_hooks import SCALING, Sites
from hpxfer.recipe.match import pairs_of
from hpxfer.recipe.wrappers import plain_modules, plain_names

if TYPE_CHECKING:
    import torch


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
            if fnmatchcase(name, pattern) and id(module) not in seen and not _is_sharded(module):
                seen.add(id(module))
                site = _Site(key, name, tell)
                module.register_forward_pre_hook(site.before, prepend=True, with_kwargs=True)
                module.register_forward_hook(site.after)


class _Site:
    """A module whose output a multiplier is for."""

    def __init__(self, key: str, name: str, tell: Callable[[Mapping[str, Any]], None]) -> None:
        self._key, self._name, self._tell = key, name, tell
        self._seen: set[str] = set()
        self._without: float | None = None

    def before(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compute the output without the hooks, in the random state that the forward pass will have."""
        import torch

        if _mode(module) in self._seen or torch.compiler.is_compiling():
            return
        if self._key == ATTENTION:
            self._without = 1.0
            return
        devices = [each.device for each in module.parameters() if each.device.type == "cuda"][:1]
        with torch.no_grad(), torch.random.fork_rng(devices=devices):
            self._without = _rms(module.forward(*args, **kwargs))

    def after(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Tell what the output is with all hooks that were added before."""
        if self._without is None:
            return
        mode = _mode(module)
        self._seen.add(mode)
        with_it = float(getattr(module, SCALING)) if self._key == ATTENTION else _rms(output)
        self._tell({"key": self._key, "module": self._name, "mode": mode, "with": with_it, "without": self._without})
        self._without = None


def _mode(module: Any) -> str:
    return "train" if module.training else "eval"


def _is_sharded(module: torch.nn.Module) -> bool:
    return any(hasattr(each, "full_tensor") for each in module.parameters())


def _rms(output: Any) -> float:
    first = output[0] if isinstance(output, tuple) else output
    return float(first.detach().double().square().mean().sqrt())
