"""Identity: what a trial's id is the hash of. It is the canonical JSON of everything that differs from its default.

A field that stands at its default is left out, so a new field with a default moves no id that was ever stored. The
price: the default of a field or of a convention never changes once a release has it. A field without a default, such
as the number of steps, is always spelled out.

Example, a trial at the base shape:
`{"hps":{"lr":0.01},"seed":0,"setting":{"batch_tokens":512,...},"shape":{"depth":2,...},"trainer_version":3}`
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import lru_cache
from typing import Any

from pydantic import BaseModel

from hpxfer.scaling.evaluate import Parameterization
from hpxfer.scaling.hps import HPs
from hpxfer.scaling.shape import Shape

# The fields of a setting that no identity holds: paths on one machine, for which digests stand, and a limit.
LOCAL = ("data_source", "validation_source", "epochs")


def canonical(value: Any) -> str:
    """Return the canonical JSON of a value, with sorted keys and without spaces. A section of a sweep is a mapping."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False, default=BaseModel.model_dump)


def digest_of(text: str) -> str:
    """Return the hash that serves as an id."""
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def identity(
    *,
    setting: Any,
    shape: Shape,
    base: Shape,
    choice: Parameterization | None,
    hps: Any,
    seed: Any,
    trainer_version: int,
    plugins: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return what determines a trial's numbers, as JSON-ready data.

    `hps` is what `hps_of` returns. `plugins` maps `kind:name` of what a plug-in registered, and the trial uses, to the
    plug-in's digest, e.g. `{"gate:top2": "9f..."}`.
    """
    out: dict[str, Any] = {
        "trainer_version": trainer_version,
        "setting": {name: value for name, value in non_defaults(setting).items() if name not in LOCAL},
        "shape": shape.dims(),
        "hps": hps,
        "seed": seed,
    }
    if choice is not None:
        chosen = {"name": choice.name, "base": base.dims()}
        conventions = choice.changed_conventions()
        out["parameterization"] = {**chosen, "conventions": conventions} if conventions else chosen
    if plugins:
        out["plugins"] = dict(plugins)
    return out


def non_defaults(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass or section that differ from their defaults, as JSON-ready data, recursively."""
    kind: Any = type(value)
    defaults = _defaults(kind)
    found = {name: _plain(getattr(value, name)) for name in defaults}
    return {name: each for name, each in found.items() if each != defaults[name]}


def hps_of(hps: HPs) -> dict[str, Any]:
    """Return the HPs that differ from their defaults. A stored HP is a float, so an identity holds floats too."""
    out = non_defaults(hps)
    multipliers = {name: float(value) for name, value in out.pop("multipliers", ()) if value != 1}
    scalars: dict[str, Any] = {name: float(value) for name, value in out.items()}
    return {**scalars, "multipliers": multipliers} if multipliers else scalars


@lru_cache(maxsize=64)
def _defaults(kind: Any) -> dict[str, Any]:
    """Return field -> its default, which is MISSING where there is none."""
    if issubclass(kind, BaseModel):
        return {name: field.default for name, field in kind.model_fields.items()}
    return {field.name: _plain(field.default) for field in fields(kind)}


def _plain(value: Any) -> Any:
    is_part = value is not MISSING and (is_dataclass(value) or isinstance(value, BaseModel))
    return non_defaults(value) if is_part else value
