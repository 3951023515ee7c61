"""The size of outputs at the sites of forward multipliers, with them and without them. Torch is imported late."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.recipe.forward_hooks import SCALING, Sites
from hpxfer.recipe.match import pairs_of
from hpxfer.recipe.wrappers import plain_modules

if TYPE_CHECKING:
    import torch

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
