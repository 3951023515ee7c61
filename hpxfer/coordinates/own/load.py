"""Load `pkg.mod:build`: the functions that a coordinate check of a user's own module needs, from one Python module."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from hpxfer.coordinates.own.calls import require_callable
from hpxfer.errors import HpxferError, first_line, nearest, shown
from hpxfer.recipe.forward_hooks import Sites
from hpxfer.recipe.match import Roles

NAME = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*")
EXAMPLE = "a Python module and a function in it, e.g. train.model:build"
# What the module may define beside `build`. The first two must be there.
REQUIRED = {"batch": "batch(shape)", "loss_fn": "loss_fn(model, batch)"}
OPTIONAL = ("optimizer", "roles", "sites", "by_hand", "shapes", "dims", "recipe")


@dataclass(frozen=True, kw_only=True)
class OwnModule:
    """The user's side of a check. `shape` is a Shape, or an entry of `shapes` as the user wrote it."""

    name: str
    build: Callable[[Any], Any]  # shape -> the model
    batch: Callable[[Any], Any]  # shape -> a batch on the model's device
    loss_fn: Callable[[Any, Any], Any]  # model, batch -> the loss, one number
    optimizer: Callable[[Any, Any], Any] | None = None  # model, shape -> the optimizer; then build() inits too
    roles: Roles | Callable[[Any], Roles] | None = None  # or a function of the model
    sites: Sites | None = None  # of the forward multipliers
    by_hand: Sequence[str] = ()  # the multipliers that the model applies by itself
    shapes: Sequence[Any] | None = None  # what to build, in place of the shapes that follow from the recipe's base
    dims: Callable[[Any], Mapping[str, int]] | None = None  # an entry of `shapes` -> its dimensions

    def __post_init__(self) -> None:
        require_callable(self.build, "build", "build(shape)")
        for part, example in REQUIRED.items():
            require_callable(getattr(self, part), part, example)
        if self.optimizer is not None:
            require_callable(self.optimizer, "optimizer", "optimizer(model, shape)")
        if self.dims is not None:
            require_callable(self.dims, "dims", "dims(shape)")
        if isinstance(self.by_hand, str):
            raise HpxferError(f"by_hand: must be a list of multipliers, got {shown(self.by_hand)}; put it in a list")


def load_own(name: str, folder: Path) -> tuple[OwnModule, Any]:
    """Return the functions that `pkg.mod:build` and its module give, and the module's `recipe` or None.

    The module is looked for in `folder` first. Raises HpxferError if there is no such module or function, and if
    importing the module fails.
    """
    if not NAME.fullmatch(name):
        raise HpxferError(f"--module: must name {EXAMPLE}, got {shown(name)}")
    path, _, function = name.partition(":")
    module = _imported(path, folder)
    there = {each for each in vars(module) if not each.startswith("_")}
    wanted = [(function, f"{function}(shape)"), *REQUIRED.items()]
    for each, example in wanted:
        if each not in there:
            raise HpxferError(f"--module {name}: {path} must define {example}, got no {each}; {nearest(each, there)}")
    found = {each: getattr(module, each) for each in (*REQUIRED, *OPTIONAL) if each in there}
    recipe = found.pop("recipe", None)
    return OwnModule(name=name, build=getattr(module, function), **found), recipe


def _imported(path: str, folder: Path) -> ModuleType:
    here = str(folder.resolve())
    sys.path.insert(0, here)
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name is not None and (path == error.name or path.startswith(f"{error.name}.")):
            fix = "name one that Python finds from the current folder"
            raise HpxferError(f"--module: no Python module is called {path} in {here}; {fix}") from None
        raise _failed(path, error) from error
    except (Exception, SystemExit) as error:
        raise _failed(path, error) from error
    finally:
        sys.path.remove(here)


def _failed(path: str, error: BaseException) -> HpxferError:
    return HpxferError(
        f"--module: {path} must be importable, got {type(error).__name__}: {first_line(error)}; mend it, and try: "
        f"python -c 'import {path}'"
    )
