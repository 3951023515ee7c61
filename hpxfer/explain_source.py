"""Where `hpxfer explain` takes its shapes and values from: shape files, a sweep or a recipe."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.explain import BaseValues
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.table import Optimizer
from hpxfer.shape import Shape, load_shape


@dataclass(frozen=True, kw_only=True)
class Source:
    """What to explain."""

    choice: Parameterization
    optimizer: Optimizer
    base: Shape
    target: Shape
    values: BaseValues | None
    note: str | None = None  # what the reader of the values should know


def from_files(name: str | None, base: Path | None, target: Path | None) -> Source:
    """Return what a name and two shape files spell out."""
    choice = None if name is None else parameterization(name)
    if choice is None or base is None or target is None:
        raise HpxferError(
            "explain needs --parameterization, --base and --target, or --sweep, or --recipe; --list shows the names"
        )
    return Source(choice=choice, optimizer="adam", base=load_shape(base), target=load_shape(target), values=None)


def from_sweep(path: Path, name: str | None, base: Path | None, target: Path | None) -> Source:
    """Return what a sweep says; by default its first parameterization at its largest shape."""
    from hpxfer.model.cost import train_flops
    from hpxfer.spec import load_sweep, paths
    from hpxfer.spec.vocabulary import vocabulary
    from hpxfer.trial import DataRef, base_hps, setting_of

    _refuse_base(base, "--sweep")
    spec = load_sweep(path)
    choices = {one.name: one for one in reversed(spec.parameterizations)}
    if name is None:
        chosen = spec.parameterizations[0]
        choice = parameterization(chosen.name, chosen.conventions)
    else:
        choice = parameterization(name, choices[name].conventions if name in choices else None)
    tokenizer, vocab_size = vocabulary(spec.data)
    setting = setting_of(spec, DataRef(digest="", tokenizer=tokenizer, vocab_size=vocab_size))
    shapes = [point.shape for one in paths(spec) for point in one.points]
    hps = base_hps(spec)
    return Source(
        choice=choice,
        optimizer=setting.column,
        base=spec.base_shape,
        target=load_shape(target) if target else max(shapes, key=lambda shape: train_flops(shape, setting)),
        values=BaseValues(hps=hps, init=setting.init),
        note=f"the sweep scans lr and names no base value: shown at {hps.lr:g}" if spec.hps.lr is None else None,
    )


def from_recipe(path: Path, name: str | None, base: Path | None, target: Path | None) -> Source:
    """Return what a recipe says, at `target` or, without one, at its own base shape."""
    from hpxfer.recipe import Recipe

    _refuse_base(base, "--recipe")
    recipe = Recipe.load(path)
    if name is not None and name != recipe.parameterization.name:
        raise HpxferError(f"--parameterization {name}: the recipe was tuned under {recipe.parameterization.name}")
    return Source(
        choice=recipe.parameterization,
        optimizer=recipe.column,
        base=recipe.base_shape,
        target=load_shape(target) if target else recipe.base_shape,
        values=BaseValues(hps=recipe.hps, init=recipe.init),
    )


def _refuse_base(base: Path | None, other: str) -> None:
    if base is not None:
        raise HpxferError(f"--base: {other} has a base shape of its own; leave one out")
