"""Names: what a parameter is called in the model as it was written, under whatever wraps it. Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

# torch.compile, FSDP1 and activation checkpointing put their inner module under these; nobody else uses such names.
INNER = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# These call it `module`, which a model may use for itself: the class must say that it is a wrapper.
PARALLEL = ("DistributedDataParallel", "DataParallel")


def plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    """Return a function: dotted name in `model` -> the name that it has without wrappers.

    Whole components are removed where they stand; a `strip` of letters would also eat into the names beside them.
    """
    dropped = {
        f"{path}.module" if path else "module"
        for path, module in model.named_modules(remove_duplicate=False)
        if type(module).__name__ in PARALLEL and type(module).__module__.startswith("torch.nn.parallel.")
    }

    def plain(name: str) -> str:
        parts = name.split(".")
        kept = [
            part
            for i, part in enumerate(parts)
            if part not in INNER and not (part == "module" and ".".join(parts[: i + 1]) in dropped)
        ]
        return ".".join(kept)

    return plain


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module that the outermost wrappers hold."""
    plain = plain_names(model)
    inner = model
    for path, module in model.named_modules(remove_duplicate=False):
        if not plain(path):
            inner = module
    return inner


def plain_modules(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Return name -> module, under the names without wrappers; of wrapper and wrapped, the wrapped one."""
    plain = plain_names(model)
    return {plain(name): module for name, module in model.named_modules(remove_duplicate=False)}
