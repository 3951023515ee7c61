"""The columns of a table of runs, and which column of the user's holds each, named or guessed."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.outside.cells import exponents_of, is_empty
from hpxfer.outside.imports.logged import HELD_OUT, LOSS, SMOOTHED

# Which column of a table holds what, by its name, where the user names none. Pure.
#
# Names are those of public trainers, of their configs, and of what trackers export.

# Column -> the names that hold it, in lower case with one underscore between words.
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
_SIZE = re.compile(r"(num|n)_params")  # which follows from the other sizes of a model
_OBJECTIVE = re.compile(r"value|values_0|objective")  # what Optuna and TensorBoard call their result
_CONFIG = re.compile(r"(params|config|user_attrs|hparams|hyperparameters)[./_]", re.IGNORECASE)  # of trackers
# Parts of the name of a logged metric. A logged LR is that of the last step, and not the peak of its schedule.
_LOGGED = {"train", "training", "val", "valid", "validation", "eval", "test", "summary", "metrics"}
_NOT_JUDGED = re.compile(
    rf"{SMOOTHED.pattern}|aux|z_?loss|balanc|router|scale|std|stderr|weight|coef|grad|time|name|step|unit",
    re.IGNORECASE,
)
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")


@dataclass(frozen=True)
class Guess:
    """The columns of a table that may hold one thing. It is known if there is one."""

    column: str
    names: tuple[str, ...]

    @property
    def only(self) -> str | None:
        return self.names[0] if len(self.names) == 1 else None


def guesses(
    own: Mapping[str, Sequence[Any]], found: Mapping[str, str], taken: Sequence[str], wanted: Sequence[str]
) -> dict[str, Guess]:
    """Return column -> the table's columns that may hold it, for those of `wanted` for which there are any.

    `own` are the table's columns. `found` is what the user maps and what is found by its exact name, and `taken` are
    columns that are something else.
    """
    free = {name: cells for name, cells in own.items() if name not in (*found.values(), *taken)}
    logged = ("learning_rate",) if "grad_norm" in own else ()  # of transformers' Trainer, which logs that of each step
    out = {}
    for column in wanted:
        if column == "loss":
            names = _losses(free)
        else:
            named = {name: cells for name, cells in free.items() if may_hold(name, column) and name not in logged}
            names = _settled(column, named)
        if names:
            out[column] = Guess(column, tuple(names))
    return out


def may_hold(name: str, column: str) -> bool:
    """Return whether a column of this name may hold one of `NAMES`."""
    return NAMES[column].fullmatch(plain_name(name)) is not None


def own_name(name: str) -> str:
    """Return the name of a column without what a tracker writes before it: `lr` of `params_lr`."""
    return _CONFIG.sub("", name.strip(), count=1) if _CONFIG.match(name.strip()) else name


def plain_name(name: str) -> str:
    """Return what a column holds by its name: `config/optimizer.lr` and `log2(LR)` hold `lr`; empty for a metric."""
    *path, last = re.split(r"[./]", _CAMEL.sub("_", own_name(name).strip()))
    if _LOGGED & {part.strip().lower() for part in path}:
        return ""
    exponents = exponents_of(last)
    return re.sub(r"\W+|_+", "_", last if exponents is None else exponents[1]).strip("_").lower()


def _settled(column: str, found: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the columns among those of one thing that say something: those that vary, and of equal ones the first."""
    cells_of = {name: tuple(map(str, cells)) for name, cells in found.items()}
    varied = [name for name, cells in cells_of.items() if len(set(cells)) > 1]
    if column == "arm":
        return [name for name in varied if not any(map(is_empty, found[name]))]
    if column == "scale" and (dims := [name for name in varied if not _SIZE.fullmatch(plain_name(name))]):
        varied = dims
    return list({cells_of[name]: name for name in reversed(varied or list(found))}.values())[::-1]


def _losses(free: Mapping[str, Sequence[Any]]) -> list[str]:
    """Return the columns that may be the loss: the held-out ones, else those of training, else an objective."""
    filled = {name: cells for name, cells in free.items() if not all(map(is_empty, cells))}
    words = {name: _CAMEL.sub("_", name) for name in filled}
    raw = [name for name, said in words.items() if LOSS.search(said) and not _NOT_JUDGED.search(said)]
    held_out = [name for name in raw if HELD_OUT.search(words[name])]
    found = held_out or raw or [name for name in filled if _OBJECTIVE.fullmatch(plain_name(name))]
    return _settled("loss", {name: filled[name] for name in found})


def ambiguous(guess: Guess) -> str:
    """Return the refusal of a guess with several columns, and what names one."""
    listed = ", ".join(map(shown, guess.names))
    fix = f"name it, e.g. --map {guess.column}={guess.names[0]}"
    if guess.column == "scale":
        shapes = " ".join(f"--shape {name}" for name in guess.names)
        fix = f"name the one that grows alone, e.g. --map scale={guess.names[0]}, or all of them: {shapes}"
    return f"column {guess.column} must be one of {listed}; {fix}"


# Column -> what it holds.
COLUMNS = {
    "arm": "what the runs of one arm have in common, such as a parameterization",
    "axis": "what grows along the scales",
    "scale": "the size of the model along the axis",
    "is_base": "whether the shape is the base, from which the HP is transferred",
    "hp": "the name of the HP that is scanned",
    "value": "the value of the HP",
    "seed": "the seed of the run",
    "loss": "the loss that the run is judged by",
    "status": "finished, diverged, failed or running",
    "run_id": "the name of the run",
    "steps": "how many steps it trained",
    "loss_name": "what the loss is, in words",
    "unit": "the unit of the loss",
    "scale_name": "what the scale counts, if the axis has another name",
    "shape": "the name of the whole shape",
}
REQUIRED = ("scale", "value", "loss")
_RISES = re.compile(r"(^|[^a-z])(acc|accuracy|f1|auc|auroc|bleu|reward|return|score)([^a-z]|$)", re.IGNORECASE)
STATUSES = ("finished", "diverged", "failed", "running")


def columns_of(
    own: Mapping[str, Sequence[Any]], given: Mapping[str, str], shape: Sequence[str], where: str
) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return column -> the table's own column that holds it, for every column that is there, and what was guessed.

    `own` are the table's columns. `given` is what the user maps. Other columns are found by their name, or by one of
    `guessed.NAMES`. `shape` are the table's columns that give the dimensions of a shape; the scale is then one of them.
    Raises HpxferError that names all columns that are not there, and those that may be one of several.
    """
    present = list(own)
    for name in given:
        if name not in COLUMNS:
            raise HpxferError(f"{where}: --map: unknown column {shown(name)}; {nearest(name, COLUMNS)}")
    for name in (*given.values(), *shape):
        if name not in present:
            raise HpxferError(f"{where}: column {shown(name)} is not in the table; {nearest(name, present)}")
    if _RISES.search(given.get("loss", "")):
        raise HpxferError(
            f"{where}: --map loss: must name a column that falls as models get better, got {shown(given['loss'])}; "
            "name the column of the loss"
        )
    for name in shape:
        if exponents_of(name) is not None:
            raise HpxferError(
                f"{where}: --shape: must name a column of sizes, got exponents, {shown(name)}; write sizes"
            )
    measured = {given.get(name) for name in (*REQUIRED, "seed")}
    exact = {name: name for name in COLUMNS if name in present and name not in shape and name not in measured}
    out = exact | dict(given)
    _check_used_once(out, shape, where)
    if shape:
        _check_shape_columns(out, given, shape, where)
    found = _guessed(own, out, given, shape)
    out |= {guess.column: guess.only for guess in found if guess.only is not None}
    unclear = [guess for guess in found if guess.only is None]
    known = (*out, *(guess.column for guess in unclear))
    missing = [name for name in REQUIRED if name not in known and not (name == "scale" and shape)]
    if problems := [*([_missing(missing, own)] if missing else []), *map(ambiguous, unclear)]:
        raise HpxferError("\n".join(f"{where}: {problem}" for problem in problems))
    said = ", ".join(f"{guess.column} from {guess.only}" for guess in found if guess.only is not None)
    return out, (f"columns taken by their names: {said}; --map names others",) if said else ()


def _guessed(
    own: Mapping[str, Sequence[Any]], out: dict[str, str], given: Mapping[str, str], shape: Sequence[str]
) -> list[Guess]:
    """Return what names of columns say beside `out`, which loses an exact name that may be something else."""
    doubtful = {name for name in ("loss", "value") if out.get(name) == name and name not in given}
    wanted = [name for name in (*NAMES, "loss") if name not in out and not (name == "scale" and shape)]
    if "value" in doubtful and "loss" not in out:  # Optuna's value is the loss
        rest = {name: column for name, column in out.items() if name != "value"}
        found = guesses(own, rest, shape, ["value", "loss"])
        if len(found) == 2 and found["loss"].names == ("value",):
            del out["value"]
            wanted.append("value")
    if "loss" in doubtful:  # of training, perhaps, beside a held-out one
        beside = guesses(own, out, shape, ["loss"]).get("loss")
        if beside is not None and any(map(HELD_OUT.search, beside.names)):
            del out["loss"]
            return [*guesses(own, out, shape, wanted).values(), Guess("loss", (*beside.names, "loss"))]
    return list(guesses(own, out, shape, wanted).values())


def _missing(missing: Sequence[str], own: Mapping[str, Sequence[Any]]) -> str:
    """Return that columns are missing, and how to name them."""
    *first, last = missing
    holds = ", ".join(f"{name}: {COLUMNS[name]}" for name in missing)
    what = f"columns {', '.join(first)} and {last} are missing ({holds})"
    what = what if first else f"column {last} is missing: {COLUMNS[last]}"
    named = " ".join(f"--map {name}=NAME" for name in missing)
    listed = ", ".join(map(shown, list(own)[:20])) or "no column"
    return f"{what}; a row is one run, and {named} names the column; the table has {listed}"


def _check_used_once(of: Mapping[str, str], shape: Sequence[str], where: str) -> None:
    """Refuse a column of the table that would be two things at once, such as the HP value and the loss."""
    for name in shape:
        if shape.count(name) > 1:
            raise HpxferError(f"{where}: --shape: must name {shown(name)} once, got it twice; leave one of them out")
    holds = dict.fromkeys(shape, "a shape column")
    for what in ("value", "seed", "loss") if shape else ("scale", "value", "seed", "loss"):
        own = of.get(what)
        if own is not None and holds.setdefault(own, what) != what:
            raise HpxferError(
                f"{where}: column {shown(own)} must be one thing, got it as {holds[own]} and as {what}; map another "
                "column"
            )


def _check_shape_columns(out: dict[str, str], given: Mapping[str, str], shape: Sequence[str], where: str) -> None:
    """Refuse columns that shape columns stand for, if the user maps them, and leave out those found by name."""
    for name in ("axis", "scale_name", "shape"):
        if name in given:
            raise HpxferError(f"{where}: --map {name}: goes without shape columns, got both; leave one of them out")
        out.pop(name, None)
    if "scale" in given and given["scale"] not in shape:
        raise HpxferError(
            f"{where}: --map scale: must be one of the shape columns {', '.join(shape)}, got {shown(given['scale'])}; "
            "its axis varies that column alone"
        )
    if "scale" not in given:
        out.pop("scale", None)
