"""Which column of a table holds what, by its name, where the user names none. Pure.

Names are those of public trainers, of their configs, and of what trackers export.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpxfer.errors import shown
from hpxfer.outside.cells import exponents_of, is_empty
from hpxfer.outside.imports.choices import HELD_OUT, LOSS, SMOOTHED

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
