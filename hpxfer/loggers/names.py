"""Names: what loggers call a trial, e.g. `completep-moe/width=128/lr=2^-7/seed=1`, and the table of its HPs.

The parts are the parameterization, the name of its arm, the shape, the round of an adaptive search, the HPs that the
sweep varies, and the seed. A part is left out where there is nothing to say: tables that agree at the base have one
trial there, `base/lr=2^-7/seed=1`. Where an HP is rounded or a part is cut, another trial could have the same name.
Such a name ends with the start of the trial's id.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

from hpxfer.host import scale_text, value_text
from hpxfer.loggers.kinds import LoggedTrial
from hpxfer.scaling.hps import SCALARS, HPs
from hpxfer.scaling.shape import DIMENSIONS, Shape
from hpxfer.search import is_of, kind_of
from hpxfer.trial import Expansion, Trial, base_hps

MOST_CHARACTERS = 100  # of a part; file systems have at most 255 bytes
ID_CHARACTERS = 6
_ILLEGAL = re.compile(r"[^A-Za-z0-9_.,=^+()\[\]-]")


class Names:
    """The names of the trials of one sweep."""

    def __init__(self, expansion: Expansion) -> None:
        self._expansion = expansion

    def describe(self, trial: Trial, round: int | None = None) -> LoggedTrial:
        """Return a trial as loggers show it. `round` is that of the search which asked for it, from 1."""
        part = self._part(trial)
        table = None if trial.parameterization is None else trial.parameterization.label()
        hps = {name: trial.hps.get(name) for name in self._shown(part, trial.hps)}
        parts = [table, part.name, self._shape(trial.shape), None if round is None else f"round={round}"]
        parts += [*(f"{name}={_text(value)}" for name, value in hps.items()), f"seed={trial.seed}"]
        given = [text for text in parts if text is not None]
        legal = [_legal(text) for text in given]
        is_exact = legal == given and all(_is_exact(value) for value in hps.values())
        name = "/".join(legal) + ("" if is_exact else f"-{trial.id[:ID_CHARACTERS]}")
        config: dict[str, float | int | str] = {
            "sweep": self._expansion.spec.name,
            "trial_id": trial.id,
            "parameterization": table or "base",
            **({} if part.name is None else {"arm": part.name}),
            **({} if round is None else {"round": round}),
            "seed": trial.seed,
            **hps_table(trial.hps),
            **{_key(dim): size for dim, size in trial.shape.dims().items()},
            "batch_tokens": trial.setting.batch_tokens,
            "steps": trial.setting.steps,
        }
        return LoggedTrial(id=trial.id, name=name, config=config)

    def _part(self, trial: Trial) -> Expansion:
        """Return the part of the sweep to which a trial belongs: the first of several."""
        parts = self._expansion.parts
        return next((part for part in parts if is_of(self._expansion, part, trial)), parts[0])

    def _shown(self, part: Expansion, hps: HPs) -> list[str]:
        """Return the HPs that tell trials of a part apart: those that the search varies, and any other that differs
        from the part's base value.
        """
        base = base_hps(part.spec)
        names = (*SCALARS, *(name for name, _ in (*hps.multipliers, *base.multipliers)))
        others = [name for name in names if hps.get(name) != base.get(name)]
        return list(dict.fromkeys((*kind_of(part.spec).hps(part.spec), *others)))

    def _shape(self, shape: Shape) -> str:
        if shape == self._expansion.spec.base_shape:
            return "base"
        return self._scales.get(shape) or self._changed(shape)

    @cached_property
    def _scales(self) -> Mapping[Shape, str]:
        """Shape -> its scale, e.g. `width=128`, of those shapes whose scale is a dimension and names no other shape."""
        found: dict[str, Shape] = {}
        several: set[str] = set()
        for axis in self._expansion.axes:
            for point in axis.points:
                text = f"{axis.scale_name}={scale_text(point.scale)}"
                if axis.scale_name not in DIMENSIONS or found.setdefault(text, point.shape) != point.shape:
                    several.add(text)
        return {shape: text for text, shape in reversed(found.items()) if text not in several}

    def _changed(self, shape: Shape) -> str:
        """Return the dimensions in which a shape differs from the base, e.g. `width=128,depth=4`."""
        base = self._expansion.spec.base_shape
        sizes = ((dim, getattr(shape, dim)) for dim in DIMENSIONS)
        return ",".join(f"{dim}={size}" for dim, size in sizes if size != getattr(base, dim))


def hps_table(hps: HPs) -> dict[str, float]:
    """Return every HP by name."""
    return {**{name: hps.get(name) for name in SCALARS}, **dict(hps.multipliers)}


def _key(dim: str) -> str:
    return dim if dim in ("batch_tokens", "steps") else f"shape/{dim}"


def _text(value: float) -> str:
    return value_text(value) if value > 0 else f"{value:g}"


def _is_exact(value: float) -> bool:
    """Return whether no other value has the same text."""
    text = _text(value)
    return value == (2.0 ** float(text.removeprefix("2^")) if text.startswith("2^") else float(text))


def _legal(text: str) -> str:
    """Return a text as a name of a folder on every system."""
    out = _ILLEGAL.sub("_", text)[:MOST_CHARACTERS]
    return "_" + out if out.startswith(".") else out or "_"
