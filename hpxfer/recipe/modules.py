"""Modules of a model: their names without what torch.compile, DDP and FSDP put around them."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hpxfer.errors import HpxferError

if TYPE_CHECKING:
    import torch


# torch.compile, FSDP1 and activation checkpointing keep the inner module under these names, which no model uses.
INNER = frozenset({"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"})
# These keep it under `module`, a name that a model may use too: the class tells a wrapper.
PARALLEL = ("DistributedDataParallel", "DataParallel")


def plain_names(model: torch.nn.Module) -> Callable[[str], str]:
    """Return a function: dotted name in `model` -> the same name without the parts that wrappers add.

    All that asks a model for its tensors comes through here first. Raises HpxferError for what is no model.
    """
    if not hasattr(model, "named_modules"):
        raise HpxferError(f"model: must be a torch.nn.Module, got {type(model).__name__}")
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
    """Return name -> module without wrappers. A name that wrapper and wrapped module share means the wrapped one."""
    plain = plain_names(model)
    return {plain(name): module for name, module in model.named_modules(remove_duplicate=False)}


def class_of(module: torch.nn.Module) -> type:
    """Return the class of a module as its author wrote it. FSDP2 puts a class of its own over each such class."""
    kind = type(module)
    return kind.__bases__[-1] if kind.__bases__[0].__name__ == "FSDPModule" else kind


# Model, without its wrappers -> the texts of its warnings. It ends with the model.
_WARNED: WeakKeyDictionary[torch.nn.Module, set[str]] = WeakKeyDictionary()


def warn_once(model: torch.nn.Module, text: str | None, kind: type[UserWarning], *, stacklevel: int = 3) -> None:
    """Warn of the model, unless `text` is None or this model got the same warning before."""
    inner = unwrapped(model)
    if text is not None and text not in _WARNED.get(inner, ()):
        warnings.warn(text, kind, stacklevel=stacklevel)
        _WARNED.setdefault(inner, set()).add(text)
