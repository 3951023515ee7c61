"""What `hpxfer check` checks: reads the sweep, runs the check, writes the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

from rich.console import Console

from hpxfer.cli.explain_source import of_sweep
from hpxfer.coordinates import checking
from hpxfer.coordinates.mlp import Options
from hpxfer.coordinates.mlp.own import Gate
from hpxfer.coordinates.report import CheckReport
from hpxfer.coordinates.write import WHAT, write_check
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.host.files import make_folder
from hpxfer.scaling.evaluate import Parameterization, parameterization
from hpxfer.scaling.table import Column, Conventions
from hpxfer.spec import SweepSpec
from hpxfer.spec.model_section import Activation, RouterBias
from hpxfer.store.sweep_file import load_given


def check(
    name: str | None,
    conventions: Conventions,
    axes: Sequence[str] | None,
    optimizer: Column | None,
    sweep: Path | None,
    points: str | None,
    steps: int | None,
    seeds: int | None,
    architecture: str | None,
    options: Options | None,
    output: Path | None,
) -> tuple[CheckReport, list[Path]]:
    """Return the report and the files written to `output`. Show on stderr what is being trained."""
    spec = None if sweep is None else load_given(sweep)
    choice, values = chosen(name, conventions, spec), numbers(points)
    if output is not None:
        make_folder(output, WHAT)  # fails now, and not after minutes of training
    with Console(stderr=True).status("") as status:
        found = checking.check(
            choice,
            axes=axes,
            optimizer=optimizer,
            sweep=spec,
            points=values,
            steps=checking.STEPS if steps is None else steps,
            seeds=checking.SEEDS if seeds is None else seeds,
            architecture=architecture,
            options=options,
            on_shape=status.update,
        )
    return found, [] if output is None else write_check(found, output)


def chosen(name: str | None, conventions: Conventions, sweep: SweepSpec | None) -> Parameterization:
    """Return the named parameterization, or the first of the sweep."""
    if sweep is not None:
        return of_sweep(sweep, name, conventions)
    if name is None:
        raise HpxferError("check needs --parameterization or --sweep; hpxfer explain --list shows the names")
    return parameterization(name, conventions)


def mlp_options(
    gate: str | None, activation: str | None, matrices: int | None, top_k: int | None, bias: str | None
) -> Options | None:
    """Return the options of the check's own MLP mixture, or None if none is given."""
    named = (("gate", gate, Gate), ("activation", activation, Activation), ("bias", bias, RouterBias))
    for name, given, legal in named:
        if given is not None and given not in get_args(legal):
            raise HpxferError(f"--{name}: unknown {name} {shown(given)}; {nearest(given, get_args(legal))}")
    if matrices is not None and matrices not in (1, 2):
        raise HpxferError(f"--matrices: must be 1 or 2, got {matrices}")
    if top_k is not None and top_k < 1:
        raise HpxferError(f"--top-k: must be at least 1 active expert, got {top_k}; leave it out for all of them")
    given_all: dict[str, Any] = {
        "gate": gate,
        "activation": activation,
        "expert_matrices": matrices,
        "num_active": top_k,
        "router_bias": bias,
    }
    chosen = {name: value for name, value in given_all.items() if value is not None}
    return Options(**chosen) if chosen else None


def numbers(text: str | None) -> tuple[float, ...] | None:
    """Return the numbers in a text such as `32,64,128`, in ascending order."""
    if text is None:
        return None
    try:
        return tuple(sorted({float(number) for number in text.split(",")}))
    except ValueError:
        raise HpxferError(f"--points: must be numbers with commas between them, got {shown(text)}") from None
