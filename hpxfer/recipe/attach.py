"""Attach: forward multipliers as hooks on the modules of a model, for those who do not write them into it."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest
from hpxfer.recipe.match import pairs_of
from hpxfer.recipe.names import plain_modules

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

# (pattern of module names, key of `Recipe.forward_multipliers`). A module may have several keys.
Sites = Iterable[tuple[str, str]] | Mapping[str, str]
SCALING = "scaling"  # what attention modules of transformers call the factor on q.k


class ByHandWarning(UserWarning):
    """The recipe asks for something that no hook does: the model itself must."""


@dataclass(frozen=True)
class MultiplyOutput:
    """A forward hook: the module's output, or its first one, times a number."""

    by: float

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0] * self.by, *output[1:])
        return output * self.by


@dataclass(frozen=True)
class MultiplyInput:
    """A forward pre-hook: the first input of a linear map times a number, which is its output times that number."""

    by: float

    def __call__(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * self.by, *args[1:])


@dataclass(eq=False)
class Attached(AbstractContextManager["Attached"]):
    """What is attached to a model. `remove()`, or the end of a `with` block, takes it off again."""

    multiplied: tuple[tuple[str, str, float], ...] = ()  # (module, key, number)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _scalings: list[tuple[torch.nn.Module, float]] = field(default_factory=list)

    def remove(self) -> None:
        """Take every multiplier off. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        for module, before in self._scalings:
            setattr(module, SCALING, before)
        if self._handles or self._scalings:
            self._handles, self._scalings = [], []
            _forget_compiled()

    def __exit__(self, *failure: object) -> None:
        self.remove()

    def __str__(self) -> str:
        return "\n".join(f"{module}: {key} x {by:.6g}" for module, key, by in self.multiplied)


def attach(
    model: torch.nn.Module,
    numbers: Mapping[str, float],
    sites: Sites,
    by_hand: Collection[str],
) -> Attached:
    """Return the handle of hooks that multiply by `numbers`, by key; attn_logits becomes a module's `scaling`.

    Raises HpxferError, and attaches nothing, on sites that are no pairs, a pattern without a module, a key without a
    number, a number that is not 1 without a site and not said to be done `by_hand`, and a model that has multipliers.
    """
    pairs = pairs_of(sites, "attach: sites", "key of forward_multipliers")
    modules = plain_modules(model)
    faults = [*_bad_sites(pairs, modules, numbers, by_hand), *_taken(modules)]
    found = [(name, key) for pattern, key in pairs for name in modules if fnmatchcase(name, pattern)]
    found = list(dict.fromkeys(found))
    faults += [fault for name, key in found if (fault := _misfit(name, key, modules[name]))]
    served = {key for _, key in found}
    missing = [key for key, by in numbers.items() if by != 1.0 and key not in {*served, *by_hand}]
    if missing:
        spelled = ", ".join(f"{key} ({numbers[key]:.6g})" for key in missing)
        faults.append(f"every multiplier must have a site, got none for {spelled}; add it, or name it in by_hand")
    if faults:
        raise HpxferError("\n".join(f"attach: {one}" for one in dict.fromkeys(faults)))
    out = Attached(multiplied=tuple((name, key, numbers[key]) for name, key in found))
    for name, key in found:
        _attach_one(out, modules[name], key, numbers[key])
    _forget_compiled()
    return out


def _attach_one(out: Attached, module: torch.nn.Module, key: str, by: float) -> None:
    if key == "attn_logits":
        out._scalings.append((module, getattr(module, SCALING)))
        setattr(module, SCALING, by)
    elif key == "router":
        out._handles.append(module.register_forward_pre_hook(MultiplyInput(by)))
    else:
        # Number 1 too: that a model has multipliers must not depend on their values.
        out._handles.append(module.register_forward_hook(MultiplyOutput(by)))


def _bad_sites(
    pairs: Iterable[tuple[str, str]], names: Collection[str], numbers: Mapping[str, float], by_hand: Collection[str]
) -> Iterable[str]:
    for pattern, key in pairs:
        if not any(fnmatchcase(name, pattern) for name in names):
            yield f"{pattern!r}: must match a module, got none; {nearest(pattern, [one for one in names if one])}"
        if key not in numbers:
            yield f"{pattern!r}: unknown multiplier {key!r}; {nearest(key, numbers)}"
    for key in by_hand:
        if key not in numbers:
            yield f"by_hand: unknown multiplier {key!r}; {nearest(key, numbers)}"


def _taken(modules: Mapping[str, torch.nn.Module]) -> Iterable[str]:
    """Yield that modules have multipliers already, a copy's of a model that had them included."""
    names = [
        name
        for name, module in modules.items()
        if any(isinstance(hook, MultiplyOutput) for hook in module._forward_hooks.values())
        or any(isinstance(hook, MultiplyInput) for hook in module._forward_pre_hooks.values())
    ]
    if names:
        yield f"a model must have no multipliers yet, got some at {', '.join(names)}; remove() these first"


def _misfit(name: str, key: str, module: torch.nn.Module) -> str | None:
    """Return why this module cannot be the site of this key, or None."""
    if key == "attn_logits" and not isinstance(getattr(module, SCALING, None), float):
        return f"{name}: an attention module must have a number `{SCALING}`, got none; scale q.k by hand"
    if key == "router" and getattr(module, "bias", None) is not None:
        return f"{name}: a router must have no bias, got one; multiply its logits by hand"
    return None


def _forget_compiled() -> None:
    """Have torch.compile start over: what it compiled before does not see hooks that come or go."""
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()
