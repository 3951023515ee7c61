"""Modules of a model: their names without what torch.compile, DDP and FSDP put around them, and what they return."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from hpxfer.errors import HpxferError, nearest, shown

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
