"""Which column of a user's table holds what: as the user maps it, by its exact name, or by a well-known name."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.cells import exponents_of, is_empty

# docs/judge.md says what each holds.
COLUMNS = (
    *("arm", "axis", "scale", "is_base", "hp", "value", "seed", "loss", "status", "run_id", "steps"),
    *("loss_name", "unit", "scale_name", "shape"),
)
REQUIRED = {
    "scale": "the size of the model along the axis",
    "value": "the value of the HP",
    "loss": "the loss that the run is judged by",
}
# Column -> the names that hold it, in lower case with one underscore between words: those of public trainers, of their
# configs, and of what trackers export.
NAMES = {
    "value": re.compile(r"(max_|peak_|base_)?(lr|learning_?rate)|(lr|learning_rate)_(max|peak)"),
    "scale": re.compile(
        r"scale|width|hidden(_size|_dim)?|n_embe?d|d_model|dim(_model)?|model_(dim|width)|emb(ed|edding)?_dim|depth"
        r"|((num|n)_)?(hidden_)?layers?|(num|n)_(blocks|(local_|routed_)?experts|params)"
    ),
    "seed": re.compile(r"((random|rng|torch|manual|global)_)?seed|replicate|repeat"),
    "arm": re.compile(
        r"arm|method|param(eter|etr)i[sz]ation|optimi[sz]er(_name)?|optim|(use_)?mup|variant|scaling(_rule)?|algorithm"
    ),
    "status": re.compile(r"status|(trial_)?state"),
}
SMOOTHED = re.compile(r"smooth|ema\b|_ema|\bavg|average|running", re.IGNORECASE)
HELD_OUT = re.compile(r"(^|[^a-z])(val|valid|validation|eval|dev|test|held_?out)([^a-z]|$)", re.IGNORECASE)
LOSS = re.compile(r"(^|[^a-z])(loss|nll|ce|cross_?entropy|bpb)([^a-z]|$)", re.IGNORECASE)
_NOT_JUDGED = re.compile(
    rf"{SMOOTHED.pattern}|aux|z_?loss|balanc|router|scale|std|stderr|weight|coef|grad|time|name|step|unit",
    re.IGNORECASE,
)
_RISES = re.compile(r"(^|[^a-z])(acc|accuracy|f1|auc|auroc|bleu|reward|return|score)([^a-z]|$)", re.IGNORECASE)
_SIZE = re.compile(r"(num|n)_params")  # which follows from the other sizes of a model
_OBJECTIVE = re.compile(r"value|values_0|objective")  # what Optuna and TensorBoard call their result
_CONFIG = re.compile(r"(params|config|user_attrs|hparams|hyperparameters)[./_]", re.IGNORECASE)  # of trackers
# Parts of the name of a logged metric. A logged LR is that of the last step, and not the peak of its schedule.
_LOGGED = {"train", "training", "val", "valid", "validation", "eval", "test", "summary", "metrics"}
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")

Cells = Mapping[str, Sequence[Any]]  # the cells of each of the table's own columns


def columns_of(
    own: Cells, given: Mapping[str, str], shape: Sequence[str], where: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return column -> the table's own column that holds it, for every column that is there, and what was guessed.

    `given` is what the user maps. `shape` are the table's columns that give the dimensions of a shape; the scale is
    then one of them. Raises HpxferError that names all columns that are not there, and those that may be one of
    several.
    """
    for name in given:
        if name not in COLUMNS:
            raise HpxferError(f"{where}: --map: unknown column {shown(name)}; {nearest(name, COLUMNS)}")
    for name in (*given.values(), *shape):
        if name not in own:
            raise HpxferError(f"{where}: column {shown(name)} is not in the table; {nearest(name, own)}")
    if _RISES.search(given.get("loss", "")):
        raise HpxferError(
            f"{where}: --map loss: must name a column that falls as models get better, got {shown(given['loss'])}"
        )
    measured = {given.get(name) for name in (*REQUIRED, "seed")}
    exact = {name: name for name in COLUMNS if name in own and name not in shape and name not in measured}
    if shape:
        _check_shape_columns(given, shape, where)
        exact = {name: own for name, own in exact.items() if name not in ("axis", "scale_name", "shape", "scale")}
    out = exact | dict(given)
    holds = dict.fromkeys(shape, "a shape column")
    for what in ("value", "seed", "loss") if shape else ("scale", "value", "seed", "loss"):
        if what in out and (other := holds.setdefault(out[what], what)) != what:
            raise HpxferError(
                f"{where}: column {shown(out[what])} must be one thing, got it as {other} and as {what}; map another "
                "column"
            )
    found = _guessed(own, out, given, shape)
    guessed = {column: names[0] for column, names in found.items() if len(names) == 1}
    out |= guessed
    missing = [name for name in REQUIRED if name not in {*out, *found} and not (name == "scale" and shape)]
    problems = [_missing(missing, own)] if missing else []
    problems += [
        f"column {column} must be one of {', '.join(map(shown, names))}; name it with --map {column}=NAME"
        + (", or name all of them with --shape" if column == "scale" else "")
        for column, names in found.items()
        if len(names) > 1
    ]
    if problems:
        raise HpxferError("\n".join(f"{where}: {problem}" for problem in problems))
    said = ", ".join(f"{column} from {name}" for column, name in guessed.items())
    return out, (f"columns taken by their names: {said}; --map names others",) if said else ()


def _check_shape_columns(given: Mapping[str, str], shape: Sequence[str], where: str) -> None:
    for at, name in enumerate(shape):
        if exponents_of(name) is not None:
            raise HpxferError(f"{where}: --shape: must name a column of sizes, got exponents, {shown(name)}")
        if name in shape[:at]:
            raise HpxferError(f"{where}: --shape: must name {shown(name)} once, got it twice")
    for name in ("axis", "scale_name", "shape"):
        if name in given:
            raise HpxferError(f"{where}: --map {name}: goes without shape columns, got both")
    if (scale := given.get("scale", shape[0])) not in shape:
        raise HpxferError(
            f"{where}: --map scale: must be one of the shape columns {', '.join(shape)}, got {shown(scale)}"
        )


def _guessed(
    own: Cells, out: dict[str, str], given: Mapping[str, str], shape: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Return column -> what may hold it beside `out`, which loses an exact name that may be something else."""
    doubtful = {name for name in ("loss", "value") if out.get(name) == name and name not in given}
    wanted = [name for name in (*NAMES, "loss") if name not in out and not (name == "scale" and shape)]
    if "value" in doubtful and "loss" not in out:  # Optuna's value is the loss
        rest = {name: column for name, column in out.items() if name != "value"}
        found = _candidates(own, rest, shape, ["value", "loss"])
        if len(found) == 2 and found["loss"] == ["value"]:
            del out["value"]
            wanted.append("value")
    if "loss" in doubtful:  # of training, perhaps, beside a held-out one
        beside = _candidates(own, out, shape, ["loss"]).get("loss", ())
        if any(map(HELD_OUT.search, beside)):
            del out["loss"]
            return {**_candidates(own, out, shape, wanted), "loss": [*beside, "loss"]}
    return _candidates(own, out, shape, wanted)


def _candidates(
    own: Cells, found: Mapping[str, str], taken: Sequence[str], wanted: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Return column -> the table's columns that may hold it, for those of `wanted` for which there are any.

    Columns that vary come before constant ones, and of equal ones only the first counts.
    """
    free = {name: cells for name, cells in own.items() if name not in (*found.values(), *taken)}
    if "grad_norm" in own:  # of transformers' Trainer, which logs the LR of each step
        free.pop("learning_rate", None)
    out: dict[str, Sequence[str]] = {}
    for column in wanted:
        names = _losses(free) if column == "loss" else [name for name in free if may_hold(name, column)]
        cells_of = {name: tuple(map(str, free[name])) for name in names}
        varied = [name for name, cells in cells_of.items() if len(set(cells)) > 1]
        if column == "scale":
            varied = [name for name in varied if not _SIZE.fullmatch(_plain_name(name))] or varied
        if column == "arm":
            out[column] = [name for name in varied if not any(map(is_empty, free[name]))]
        else:
            out[column] = list({cells_of[name]: name for name in reversed(varied or names)}.values())[::-1]
    return {column: names for column, names in out.items() if names}


def may_hold(name: str, column: str) -> bool:
    """Return whether a column of this name may hold one of `NAMES`."""
    return NAMES[column].fullmatch(_plain_name(name)) is not None


def own_name(name: str) -> str:
    """Return the name of a column without what a tracker writes before it: `lr` of `params_lr`."""
    return _CONFIG.sub("", name.strip(), count=1) if _CONFIG.match(name.strip()) else name


def _plain_name(name: str) -> str:
    """Return what a column holds by its name: `config/optimizer.lr` and `log2(LR)` hold `lr`; empty for a metric."""
    *path, last = re.split(r"[./]", _CAMEL.sub("_", own_name(name).strip()))
    if _LOGGED & {part.strip().lower() for part in path}:
        return ""
    exponents = exponents_of(last)
    return re.sub(r"\W+|_+", "_", last if exponents is None else exponents[1]).strip("_").lower()


def _losses(free: Cells) -> list[str]:
    """Return the columns that may be the loss: the held-out ones, else those of training, else an objective."""
    words = {name: _CAMEL.sub("_", name) for name, cells in free.items() if not all(map(is_empty, cells))}
    raw = [name for name, said in words.items() if LOSS.search(said) and not _NOT_JUDGED.search(said)]
    held_out = [name for name in raw if HELD_OUT.search(words[name])]
    return held_out or raw or [name for name in words if _OBJECTIVE.fullmatch(_plain_name(name))]


def _missing(missing: Sequence[str], own: Cells) -> str:
    what = f"column {missing[0]} is missing: {REQUIRED[missing[0]]}"
    if first := missing[:-1]:
        holds = ", ".join(f"{name}: {REQUIRED[name]}" for name in missing)
        what = f"columns {', '.join(first)} and {missing[-1]} are missing ({holds})"
    named = " ".join(f"--map {name}=NAME" for name in missing)
    listed = ", ".join(map(shown, list(own)[:20])) or "no column"
    return f"{what}; a row is one run, and {named} names the column; the table has {listed}"
