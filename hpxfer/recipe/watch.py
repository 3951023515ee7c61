"""Watch: what modules put out for one batch, for a coordinate check of a model of one's own."""

from __future__ import annotations

from collections.abc import Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest
from hpxfer.recipe.names import plain_modules

if TYPE_CHECKING:
    import torch


def module_outputs(
    model: torch.nn.Module, patterns: Iterable[str], *args: Any, **kwargs: Any
) -> dict[str, torch.Tensor]:
    """Return name -> detached output (the first of a tuple) of every module that a pattern matches.

    The model is called as `model(*args, **kwargs)`, in its present mode and without gradients; a module that is called
    several times leaves its last output. Raises HpxferError for a pattern without a module, and for a module that was
    not called: code that torch.compile made before does not call what watches it.
    """
    import torch

    modules = plain_modules(model)
    wanted = tuple(patterns)
    names = [name for name in modules if any(fnmatchcase(name, pattern) for pattern in wanted)]
    if idle := [one for one in wanted if not any(fnmatchcase(name, one) for name in names)]:
        raise HpxferError(f"module_outputs: {idle[0]!r} must match a module, got none; {nearest(idle[0], modules)}")
    seen: dict[str, torch.Tensor] = {}

    def hook(name: str) -> Any:
        def keep(module: Any, inputs: Any, output: Any) -> None:
            seen[name] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return keep

    handles = [modules[name].register_forward_hook(hook(name)) for name in names]
    try:
        with torch.no_grad():
            model(*args, **kwargs)
    finally:
        for handle in handles:
            handle.remove()
    if missing := [name for name in names if name not in seen]:
        raise HpxferError(f"module_outputs: {', '.join(missing)} must be called by the model, got no call")
    return {name: seen[name] for name in names}
