"""Load `pkg.mod:build`, the functions of the user that a check of an own module needs, and call them."""

from __future__ import annotations

import importlib
import re
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from hpxfer.errors import HpxferError, first_line, nearest, shown
from hpxfer.recipe import Recipe, Roles, Sites, plain_names
from hpxfer.registry import registry
from hpxfer.scaling.shape import load_shape
from hpxfer.scaling.table import Conventions

DEVICE = "same device"  # what torch says if a batch lies elsewhere than the model


@contextmanager
def calling(what: str, at: str) -> Iterator[None]:
    """Turn whatever a function of the user raises into an HpxferError that names the function, the shape and the line.

    An HpxferError of hpxfer itself, such as that of `recipe.attach` inside the user's `build`, gets the name alone.
    """
    try:
        yield
    except HpxferError as error:
        raise HpxferError(f"{what} at {at}: {error}") from error
    except (Exception, SystemExit) as error:
        where = _line_of(error)
        got = f"{type(error).__name__}: {first_line(error)}"
        fix = "mend it, and call it by hand at this shape first"
        if DEVICE in str(error):
            fix = "the batch must lie on the model's device: let batch() return tensors there"
        raise HpxferError(f"{what} at {at}: must not raise, got {got}{where}; {fix}") from error


def require_module(made: Any, what: str, at: str) -> torch.nn.Module:
    """Return what `build` gave. Raise HpxferError unless it is a module with parameters that have memory."""
    if not isinstance(made, torch.nn.Module):
        raise HpxferError(f"{what} at {at}: must return a torch.nn.Module, got {type(made).__name__}; return the model")
    parameters = dict(made.named_parameters())
    if not any(tensor.requires_grad for tensor in parameters.values()):
        raise HpxferError(f"{what} at {at}: must return a model with parameters to train, got none; unfreeze some")
    plain = plain_names(made)
    if meta := [plain(name) for name, tensor in parameters.items() if tensor.is_meta]:
        raise HpxferError(
            f"{what} at {at}: tensors must have memory, got meta ones: {', '.join(meta[:3])}; build on a real device"
        )
    return made


def require_loss(made: Any, what: str, at: str) -> torch.Tensor:
    """Return a loss. Raise HpxferError unless it is one number of torch that leads back to the parameters."""
    if not isinstance(made, torch.Tensor):
        raise HpxferError(f"{what} at {at}: must return a scalar tensor, got {type(made).__name__}; return the loss")
    if made.numel() != 1:
        size = tuple(made.shape)
        raise HpxferError(f"{what} at {at}: must return one number, got a tensor of size {size}; take its mean")
    if torch.is_grad_enabled() and not made.requires_grad:
        raise HpxferError(
            f"{what} at {at}: must depend on the parameters, got a loss without a gradient; do not detach it"
        )
    return made.reshape(())


def require_finite(loss: torch.Tensor, what: str, at: str) -> None:
    """Raise HpxferError if the loss is no number before the first update. Later it is a finding, and no mistake."""
    if not bool(torch.isfinite(loss)):
        raise HpxferError(
            f"{what} at {at}: must be a finite number before training, got {loss.item()}; look at the batch and the "
            "init of this shape"
        )


def require_optimizer(made: Any, model: torch.nn.Module, what: str, at: str) -> torch.optim.Optimizer:
    """Return what `optimizer` gave. Raise HpxferError unless it is one of torch that holds parameters of the model."""
    if not isinstance(made, torch.optim.Optimizer):
        got = type(made).__name__
        raise HpxferError(f"{what} at {at}: must return a torch.optim.Optimizer, got {got}; return the optimizer")
    known = {id(tensor) for tensor in model.parameters()}
    if not any(id(tensor) in known for group in made.param_groups for tensor in group["params"]):
        raise HpxferError(
            f"{what} at {at}: must hold parameters of the model that it is given, got only others; do not copy the "
            "model, and make the optimizer from it"
        )
    return made


def require_callable(given: Any, name: str, example: str) -> None:
    """Raise HpxferError unless a part of the check is a function."""
    if not callable(given):
        raise HpxferError(f"{name}: must be a function {example}, got {shown(given)}; define it")


def _line_of(error: BaseException) -> str:
    """Return where in the user's own code an error came from: the last line outside of installed packages."""
    frames = traceback.extract_tb(error.__traceback__)[1:]  # the first is ours
    own = [frame for frame in frames if "site-packages" not in frame.filename and not _is_ours(frame.filename)]
    return f" ({own[-1].filename}:{own[-1].lineno})" if own else ""


def _is_ours(path: str) -> bool:
    return __file__.rpartition("own")[0] in path or "/hpxfer/recipe/" in path


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


# What plain attention of torch and of transformers multiplies q.k by.
_ATTENTION = "1/sqrt(d_head)"


def given_recipe(
    path: Path | None,
    parameterization: str | None,
    conventions: Conventions,
    optimizer: str | None,
    base: Path | None,
    hps: Mapping[str, float],
    gate: str | None,
) -> Recipe | None:
    """Return the recipe of a file, or the one that the options of a check make, or None if the module must have it."""
    made = {"--parameterization": parameterization, "--convention": conventions, "--optimizer": optimizer}
    given = [name for name, value in {**made, "--base": base, "--hp": hps, "--gate": gate}.items() if value]
    if path is not None:
        if given:
            raise HpxferError(f"{', '.join(given)}: the recipe says these; leave them out")
        return Recipe.load(path)
    if not given:
        return None
    if parameterization is None or base is None:
        lacks = "--parameterization" if parameterization is None else "--base"
        raise HpxferError(f"--module: needs --recipe, or --parameterization, --base and --hp; got no {lacks}")
    if gate is not None:
        registry("gate").get(gate, "--gate")
    model: dict[str, Any] = {"attention_scale": _ATTENTION, **({} if gate is None else {"gate": gate})}
    shape, column = load_shape(base), optimizer or "adamw"
    return Recipe.from_hps(parameterization, shape, hps, optimizer=column, conventions=conventions, **model)


def own_recipe(own: Any, name: str) -> Recipe:
    """Return the recipe that a module itself gives."""
    module = name.partition(":")[0]
    if own is None:
        raise HpxferError(
            "--module: needs a recipe, got none; give --recipe FILE, or --parameterization, --base and --hp, or define "
            f"`recipe` in {module}"
        )
    if isinstance(own, Recipe):
        return own
    if isinstance(own, str | Path):
        return Recipe.load(own)
    raise HpxferError(f"{module}.recipe: must be a Recipe or the path of one, got {shown(own)}")
