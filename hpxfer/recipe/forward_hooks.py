"""Forward multipliers: the places where a model multiplies by a number of the recipe, and hooks that do so."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.recipe.known_models import known_model, known_sites
from hpxfer.recipe.match import pairs_of
from hpxfer.recipe.modules import class_of, plain_modules, unwrapped

if TYPE_CHECKING:
    import torch
    from torch.utils.hooks import RemovableHandle

    from hpxfer.scaling.shape import Shape


# What multiplies the output of a branch. Only these two may multiply the same output.
BRANCHES = ("attn_out", "expert_out", "route_scale", "shared_out", "dense_out")
EXPERTS = ("expert_out", "route_scale")
TOGETHER = set(EXPERTS)


def multiplied_twice(
    sites: Sequence[tuple[str, str]], named: Sequence[tuple[int, str]], modules: Mapping[str, torch.nn.Module]
) -> Iterator[str]:
    """Yield which outputs two sites would both multiply, one sentence per pair of sites.

    `named` holds (number of a site, name of a module that its pattern names). Two sites meet where they name one
    module, and where the module of one is part of the other's: a factor on a MoE layer multiplies the shared experts in
    it too.
    """
    sites_of: dict[int, list[tuple[int, str]]] = {}
    for at, name in named:
        sites_of.setdefault(id(modules[name]), []).append((at, name))
    meet: dict[tuple[int, int], list[tuple[str, str]]] = {}
    for first, outer in named:
        for part in modules[outer].modules():
            same = part is modules[outer]
            for second, inner in sites_of.get(id(part), ()):
                met_before = same and first >= second
                if not met_before and _clash(sites[first][1], sites[second][1], same):
                    meet.setdefault((first, second), []).append((outer, inner))
    for both, ((outer, inner), *more) in meet.items():
        where = inner if outer == inner else f"{inner}, which is part of {outer},"
        by = " and ".join(f"{pattern!r} ({key})" for pattern, key in (sites[at] for at in both))
        yield (
            f"a module must be multiplied once, got two sites for {where}{f' and {len(more)} more' if more else ''}: "
            f"{by}; name for each key the module that returns this part alone, e.g. '*.mlp.experts' and "
            "'*.mlp.shared_experts', or name one key in by_hand; `*` matches dots too, and [0-9] a digit alone"
        )


def _clash(outer: str, inner: str, same: bool) -> bool:
    """Return whether the numbers of two keys would both multiply what the inner module returns."""
    if outer == inner:
        return True
    if same and "readout" in (outer, inner):
        return {outer, inner} <= {"readout", *BRANCHES}
    return outer in BRANCHES and inner in BRANCHES and {outer, inner} != TOGETHER


def _shared_experts(
    sites: Sequence[tuple[str, str]],
    named: Sequence[tuple[int, str]],
    modules: Mapping[str, torch.nn.Module],
    numbers: Mapping[str, float],
) -> Iterator[str]:
    """Yield the shared experts inside what a site of routed experts multiplies. They are known by their name."""
    net: dict[str, float] = {}  # two factors may cancel
    for at, name in named:
        if sites[at][1] in TOGETHER:
            net[name] = net.get(name, 1.0) * numbers.get(sites[at][1], 1.0)
    for name, by in net.items():
        shared = next((part for part, _ in modules[name].named_children() if "shared" in part.lower()), None)
        if shared and not math.isclose(by, 1.0):
            yield f"{name}.{shared}"


# (pattern of module names, key of `Recipe.forward_multipliers`). A module may have several keys.
Sites = Iterable[tuple[str, str]] | Mapping[str, str]
SCALING = "scaling"  # what attention modules of transformers call the factor on q.k


class UnattachedWarning(UserWarning):
    """The recipe has forward multipliers, and nothing multiplies by them as far as can be seen."""


class ByHandWarning(UserWarning):
    """The recipe asks for something that no hook can do. The model itself must do it."""


@dataclass(frozen=True)
class MultiplyOutput:
    """A forward hook: it multiplies the module's output, or the first of a tuple."""

    by: float

    def __call__(self, module: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (output[0] * self.by, *output[1:])
        return output * self.by


@dataclass(frozen=True)
class MultiplyInput:
    """A forward pre-hook: it multiplies the first input. For a linear map, that multiplies the output."""

    by: float

    def __call__(self, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
        return (args[0] * self.by, *args[1:])


@dataclass(frozen=True)
class Declared:
    """A forward pre-hook of the whole model that does nothing. It tells that the model has its multipliers."""

    numbers: Mapping[str, float]  # key -> multiplier, those by hand included

    def __call__(self, module: Any, args: tuple[Any, ...]) -> None:
        return None


@dataclass(eq=False)
class Attached(AbstractContextManager["Attached"]):
    """The multipliers that are attached to a model, until `remove()` or the end of a `with` block."""

    multiplied: tuple[tuple[str, str, float], ...] = ()  # (module, key, number)
    _handles: list[RemovableHandle] = field(default_factory=list)
    _scalings: list[tuple[torch.nn.Module, float]] = field(default_factory=list)

    def remove(self) -> None:
        """Remove all multipliers. A second call does nothing."""
        for handle in self._handles:
            handle.remove()
        for module, before in reversed(self._scalings):
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
    """Attach hooks that multiply by `numbers`, and return their handle. attn_logits sets a module's `scaling` instead.

    Raises HpxferError, and attaches nothing, for sites that are no pairs, for a pattern that matches no module, for a
    key without a number, for a model that has multipliers already, and for a number other than 1 that has no site and
    is not in `by_hand`.
    """
    if isinstance(by_hand, str):
        raise HpxferError(f"attach: by_hand: must be a list of keys, got {shown(by_hand)}; give [{shown(by_hand)}]")
    pairs = pairs_of(sites, "attach: sites", "key of forward_multipliers")
    modules = plain_modules(model)
    faults = [*_bad_sites(pairs, modules, numbers, by_hand), *_taken(modules)]
    named = [(at, name) for at, (pattern, _) in enumerate(pairs) for name in _named(pattern, modules)]
    # The model's own code multiplies shared experts like a site.
    own = _shared_experts(pairs, named, modules, numbers) if "shared_out" in by_hand else ()
    all_named = [*named, *((len(pairs), name) for name in own)]
    faults += multiplied_twice([*pairs, ("by_hand", "shared_out")], all_named, modules)
    found = [(name, pairs[at][1]) for at, name in named]
    faults += [fault for name, key in found if (fault := _misfit(name, key, modules[name]))]
    with_site = {key for _, key in found}
    missing = [key for key, by in numbers.items() if by != 1.0 and key not in {*with_site, *by_hand}]
    if missing:
        spelled = ", ".join(f"{key} ({numbers[key]:.6g})" for key in missing)
        faults.append(f"every multiplier must have a site, got none for {spelled}; add it, or name it in by_hand")
    if faults:
        raise HpxferError("\n".join(f"attach: {fault}" for fault in dict.fromkeys(faults)))
    out = Attached(multiplied=tuple((name, key, numbers[key]) for name, key in found))
    for name, key in found:
        _attach_one(out, modules[name], key, numbers[key])
    out._handles.append(unwrapped(model).register_forward_pre_hook(Declared(dict(numbers))))
    _forget_compiled()
    return out


def declared(model: torch.nn.Module) -> Mapping[str, float] | None:
    """Return the multipliers that `attach` gave the model, or left to it by hand. None: it was not called."""
    hooks = unwrapped(model)._forward_pre_hooks.values()
    return next((hook.numbers for hook in hooks if isinstance(hook, Declared)), None)


def _named(pattern: str, modules: Mapping[str, torch.nn.Module]) -> Iterable[str]:
    """Return the modules that a pattern names, each once: a shared module has several names."""
    out: dict[int, str] = {}
    for name, module in modules.items():
        if fnmatchcase(name, pattern):
            out.setdefault(id(module), name)
    return out.values()


def _attach_one(out: Attached, module: torch.nn.Module, key: str, by: float) -> None:
    if key == "attn_logits":
        out._scalings.append((module, getattr(module, SCALING)))
        setattr(module, SCALING, by)
    elif key == "router":
        out._handles.append(module.register_forward_pre_hook(MultiplyInput(by)))
    else:
        out._handles.append(module.register_forward_hook(MultiplyOutput(by)))


def _bad_sites(
    pairs: Sequence[tuple[str, str]], names: Collection[str], numbers: Mapping[str, float], by_hand: Collection[str]
) -> Iterable[str]:
    for pattern, key in pairs:
        if not any(fnmatchcase(name, pattern) for name in names):
            fix = nearest(pattern, [name for name in names if name])
            yield f"{shown(pattern)}: must match a module, got none; {fix}"
        if key not in numbers:
            yield f"{shown(pattern)}: unknown multiplier {shown(key)}; {nearest(key, numbers)}"
    for key in by_hand:
        if key not in numbers:
            yield f"by_hand: unknown multiplier {shown(key)}; {nearest(key, numbers)}"
        if patterns := [pattern for pattern, of_site in pairs if of_site == key]:
            got = shown(patterns[0])
            yield f"by_hand: {key} must have no site, got {got}, which would multiply again; leave one out"


def _taken(modules: Mapping[str, torch.nn.Module]) -> Iterable[str]:
    """Yield which modules have multipliers already. A copy of a model with multipliers has them too."""
    ours = (MultiplyOutput, MultiplyInput, Declared)
    names = [
        name or "the model"
        for name, module in modules.items()
        if any(
            isinstance(hook, ours) for hook in (*module._forward_hooks.values(), *module._forward_pre_hooks.values())
        )
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
    """Make torch.compile start over: code that it compiled does not notice hooks that are added or removed."""
    if "torch._dynamo" in sys.modules:
        import torch

        torch.compiler.reset()


def unattached(model: torch.nn.Module, target: Shape, numbers: Mapping[str, float]) -> str | None:
    """Return in words which multipliers the model lacks, or None.

    `numbers` are those that the model does not multiply by itself as its config says. `Recipe.attach` leaves a mark on
    the model, for multipliers by hand too: a model without the mark is taken to multiply by none of them.
    """
    given = declared(model)
    if given is not None:
        wrong = [key for key, by in numbers.items() if not _same(by, given.get(key, 1.0))]
        spelled = ", ".join(f"{key} {given.get(key, 1.0):.6g} in place of {numbers[key]:.6g}" for key in wrong)
        return f"the attached multipliers are those of another recipe or shape: {spelled}" if wrong else None
    # Of a model of one's own it is not known where it multiplies, but that common gates and attention are the recipe's.
    ours = known_model(model) is None or not class_of(unwrapped(model)).__module__.startswith("transformers.")
    own = [("(experts)" if key in EXPERTS else f"({key})", key) for key in numbers]
    missing = _missing(model, target, numbers, own if ours else known_sites(model, numbers))
    if not missing:
        return None
    by_hand = ", ".join(f"'{key}'" for key, by in numbers.items() if by != 1.0)
    return (
        f"this {class_of(unwrapped(model)).__name__} does not multiply by {', '.join(missing)}, and trains otherwise "
        "than the recipe says: call recipe.attach(model, shape) before init_ and param_groups; of a model whose code "
        f"multiplies by them say so: recipe.attach(model, shape, by_hand=[{by_hand}])"
    )


def _missing(model: torch.nn.Module, target: Shape, numbers: Mapping[str, float], sites: Sites) -> list[str]:
    """Return the multipliers that change a model with these sites. Two that cancel at one module change nothing."""
    modules, net, keys = plain_modules(model), dict[tuple[str, bool], float](), dict[tuple[str, bool], list[str]]()
    for name, key in pairs_of(sites):
        by, is_scale = numbers[key], key == "attn_logits"
        if is_scale:
            by /= getattr(modules.get(name), SCALING, target.head_dim**-0.5)
        net[name, is_scale] = net.get((name, is_scale), 1.0) * by
        keys.setdefault((name, is_scale), []).append(key)
    missing = dict.fromkeys(key for at, by in net.items() if not _same(by, 1.0) for key in keys[at])
    return [f"{key} ({numbers[key]:.6g})" for key in missing]


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-9)
