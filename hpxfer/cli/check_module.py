"""`hpxfer check --module`: finds the user's functions and the recipe, runs the check, writes the files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from hpxfer.cli.check_source import numbers
from hpxfer.cli.options import read_hps
from hpxfer.coordinates.own.checking import SEEDS, STEPS, check_own
from hpxfer.coordinates.own.load import load_own
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.write import WHAT, write_check
from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import make_folder
from hpxfer.recipe import Recipe
from hpxfer.registry import registry
from hpxfer.scaling.shape import load_shape
from hpxfer.scaling.table import Conventions

# What plain attention of torch and of transformers multiplies q.k by.
ATTENTION = "1/sqrt(d_head)"


def check_module(
    name: str,
    recipe: Recipe | None,
    axes: Sequence[str] | None,
    points: str | None,
    steps: int | None,
    seeds: int | None,
    output: Path | None,
) -> tuple[CheckReport, list[Path]]:
    """Return the report and the files written to `output`. Show on stderr what is being trained."""
    if axes is not None and len(axes) > 1:
        raise HpxferError(f"--axis: a module is checked along one axis at a time, got {', '.join(axes)}; name one")
    values = numbers(points)
    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of training
    module, own = load_own(name, Path())
    with Console(stderr=True).status("") as status:
        found = check_own(
            module,
            recipe or _of_module(own, name),
            axis=axes[0] if axes else "width",
            points=values,
            steps=STEPS if steps is None else steps,
            seeds=SEEDS if seeds is None else seeds,
            on_shape=status.update,
        )
    return found, [] if output is None else write_check(found, output)


def given_recipe(
    path: Path | None,
    parameterization: str | None,
    conventions: Conventions,
    optimizer: str | None,
    base: Path | None,
    hps: Iterable[str],
    gate: str | None,
) -> Recipe | None:
    """Return the recipe of a file, or the one that the options make, or None if the module must have it."""
    made: dict[str, Any] = {
        "--parameterization": parameterization,
        "--convention": conventions,
        "--optimizer": optimizer,
        "--base": base,
        "--hp": tuple(hps),
        "--gate": gate,
    }
    given = [option for option, value in made.items() if value]
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
    model: dict[str, Any] = {"attention_scale": ATTENTION, **({} if gate is None else {"gate": gate})}
    return Recipe.from_hps(
        parameterization,
        load_shape(base),
        read_hps(made["--hp"]),
        optimizer=optimizer or "adamw",
        conventions=conventions,
        **model,
    )


def _of_module(own: Any, name: str) -> Recipe:
    """Return the recipe that the module itself gives."""
    if isinstance(own, Recipe):
        return own
    if isinstance(own, str | Path):
        return Recipe.load(own)
    if own is None:
        raise HpxferError(
            "--module: needs a recipe, got none; give --recipe FILE, or --parameterization, --base and --hp, or define "
            f"`recipe` in {name.partition(':')[0]}"
        )
    raise HpxferError(f"{name.partition(':')[0]}.recipe: must be a Recipe or the path of one, got {shown(own)}")
