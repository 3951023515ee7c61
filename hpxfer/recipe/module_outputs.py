"""Module outputs: what modules return for one batch, for a coordinate check of a user's own model."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.recipe.wrappers import plain_modules

if TYPE_CHECKING:
    import torch


def module_outputs(
    model: torch.nn.Module, patterns: Iterable[str], *args: Any, **kwargs: Any
) -> dict[str, torch.Tensor]:
    """Return name -> detached output (the first of a tuple) of each module that a pattern matches.

    The model is called as `model(*args, **kwargs)`, in its current mode and without gradients. Of a module that is
    called several times, the last output is returned. Raises HpxferError for a pattern that matches no module, and for
    a module that is not called. Code that torch.compile made earlier calls no hooks.
    """
    import torch

    modules = plain_modules(model)
    wanted = tuple(patterns)
    names = [name for name in modules if any(fnmatchcase(name, pattern) for pattern in wanted)]
    if unused := [pattern for pattern in wanted if not any(fnmatchcase(name, pattern) for name in names)]:
        raise HpxferError(
            f"module_outputs: {shown(unused[0])} must match a module, got none; {nearest(unused[0], modules)}"
        )
    outputs: dict[str, torch.Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            outputs[name] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return keep

    handles = [modules[name].register_forward_hook(hook(name)) for name in names]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if missing := [name for name in names if name not in outputs]:
        raise HpxferError(f"module_outputs: {', '.join(missing)} must be called by the model, got no call")
    return {name: outputs[name] for name in names}
