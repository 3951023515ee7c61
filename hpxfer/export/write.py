"""Write: from a recipe to the files of a target, and their folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial as bound
from pathlib import Path
from typing import IO, Any

from hpxfer.errors import HpxferError
from hpxfer.export.names import Named, checked, read_names
from hpxfer.export.plan import Lack, Plan, make_plan
from hpxfer.export.targets import EXPORT_TARGETS
from hpxfer.host import read_text, write_files
from hpxfer.recipe import Recipe, as_shape
from hpxfer.scaling.muon import kind_of, muon_of
from hpxfer.scaling.shape import Shape

ALWAYS = "hpxfer.json"
VERSION_KEY = "hpxfer_export"
FAMILIES = ("gpt", "user")  # whose recipes serve models of other frameworks


@dataclass(frozen=True, kw_only=True)
class Exported:
    """The files of an export, which are not written yet, and what the target cannot hold."""

    target: str
    files: Mapping[str, str]  # name -> text
    lacks: tuple[Lack, ...]
    cautions: tuple[str, ...]
    plan: Plan

    def write(self, folder: str | Path) -> list[Path]:
        """Write the files, all or none, and return their paths. Older files of their names are replaced."""
        where = Path(folder)
        paths = {where / name: text.encode() for name, text in self.files.items()}
        for path in paths:
            if path.is_dir():
                raise HpxferError(f"{path}: must be a file, got a folder; choose another --output")
        try:
            where.mkdir(parents=True, exist_ok=True)
            write_files({path: bound(_put, content) for path, content in paths.items()})
        except OSError as error:
            raise HpxferError(f"{where}: cannot be written: {error.strerror}; choose another --output") from None
        return list(paths)


def export(
    recipe: Recipe,
    to: str,
    shape: Shape | Mapping[str, int],
    names: str | Path | Sequence[Named] | None = None,
    *,
    partial: bool = False,
) -> Exported:
    """Return a recipe at a shape as the files of a target, e.g. `megatron`; `EXPORT_TARGETS` has their names.

    `names` are the parameters of the user's model, or the file with them (`write_names`). Without them, or with
    patterns of names alone, they are the target's own. Raises HpxferError for an unknown target, a shape that the table
    does not cover, a parameter without a role, an optimizer that the target cannot build and, unless `partial`, for all
    that the target cannot hold.
    """
    target, at = EXPORT_TARGETS.get(to, "--to"), as_shape(shape, "shape")
    if recipe.file.family not in FAMILIES:
        raise HpxferError(
            f"recipe: must be of the family {' or '.join(FAMILIES)} for an export, got {recipe.file.family}; use "
            "recipe.param_groups(model, roles, shape)"
        )
    if recipe.parameterization.is_own:
        raise HpxferError(
            f"recipe: must have a table for an export, got {recipe.parameterization.name}, an arm of your own trainer: "
            "that trainer alone knows how it scales"
        )
    if kind_of(recipe.optimizer) not in target.optimizers:
        raise HpxferError(
            f"recipe: {to} takes the optimizers {', '.join(target.optimizers)}, got {recipe.optimizer}; use --to torch"
        )
    where = str(names) if isinstance(names, str | Path) else "names"
    given: Sequence[Named] | None
    given = read_names(names) if isinstance(names, str | Path) else None if names is None else checked(names, where)
    patterns = tuple(given or ())
    if all(one.is_pattern for one in patterns) and target.names is not None:
        given, where = (*target.names(recipe, at), *patterns), where if patterns else f"the names of {to}"
    if all(one.is_pattern for one in given or ()) and (target.needs_names or given):
        raise HpxferError(
            f"--names: must be given for {to}, which knows no names of its own, got none; "
            "hpxfer.export.write_names(model, path) writes them"
        )
    plan = make_plan(recipe, at, given, target.roles(recipe), where)
    lacks = tuple(target.lacks(plan))
    if lacks and not partial:
        listed = "\n".join(f"{to} cannot hold {lack.what}; do it by: {lack.call}" for lack in lacks)
        raise HpxferError(f"{listed}\n--partial writes the rest, and lists these calls")
    content = json.dumps(as_data(plan, to, lacks), indent=1) + "\n"
    return Exported(
        target=to,
        files={**target.files(plan, lacks), ALWAYS: content},
        lacks=lacks,
        cautions=plan.cautions,
        plan=plan,
    )


def as_data(plan: Plan, target: str, lacks: Sequence[Lack]) -> dict[str, Any]:
    """Return hpxfer.json as plain data. LRs are peaks, and weight decay is decoupled: times the LR."""
    recipe, sites, values = plan.recipe, plan.resolved.sites, plan.resolved.values
    return {
        VERSION_KEY: 1,
        "target": target,
        "recipe_sha256": plan.digest,
        "parameterization": {
            "name": recipe.parameterization.name,
            "conventions": dict(recipe.parameterization.conventions),
        },
        "optimizer": recipe.optimizer,
        "betas": None if plan.betas is None else list(plan.betas),
        "momentum": recipe.hps.momentum if plan.betas is None or muon_of(recipe.optimizer) else None,
        "base_shape": recipe.base_shape.dims(),
        "shape": plan.shape.dims(),
        "schedule": None if plan.phases is None else asdict(plan.phases),
        "gradient_clip": recipe.file.training.gradient_clip if recipe.file.training else None,
        "aux_weight": recipe.hps.aux_weight,
        "z_weight": recipe.hps.z_weight,
        "forward": {key: {"factor": number, "of": sites[key]} for key, number in plan.forward.items()},
        "roles": {role: asdict(numbers) for role, numbers in values.items()},
        "tensors": [
            {
                "name": row.name,
                "role": row.role,
                **({"by": row.by, "scale": list(row.scale)} if row.by else {}),
                "size": list(row.size) if plan.sizes_known else None,
                "init": row.init if isinstance(row.init, str) else "normal",
                "init_std": row.init if isinstance(row.init, float) else None,
                "lr": row.lr,
                "eps": row.eps if plan.betas is not None else None,
                "weight_decay": row.weight_decay,
                "note": row.note,
            }
            for row in plan.rows
        ],
        "not_held": [asdict(lack) for lack in lacks],
    }


def read_roles(path: str | Path) -> dict[str, str]:
    """Return name -> role of an hpxfer.json, as `Recipe.init_` takes it. Raise HpxferError if the file is none."""
    rule = f"{path}: must be an hpxfer.json with tensors by name"
    try:
        data = json.loads(read_text(path))
        return {tensor["name"]: tensor["role"] for tensor in data["tensors"]}
    except OSError as error:
        raise HpxferError(f"{path}: cannot be read: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise HpxferError(f"{rule}, got another file; `hpxfer recipe export` writes one") from None


def _put(content: bytes, file: IO[bytes]) -> None:
    file.write(content)
