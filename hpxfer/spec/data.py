"""Data: the points with data of their own, where paths to data start, and what data on this machine states."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hpxfer.host import is_uri
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import changes, own_at
from hpxfer.spec.data_section import SAMPLES, TOKENS, DataSpec, PointData, is_own, source_kind, source_row
from hpxfer.spec.sweep import ShapeChange, SweepSpec
from hpxfer.spec.yaml_file import KeyPath


def points_with_data(spec: SweepSpec) -> Iterator[tuple[KeyPath, str, PointData]]:
    """Yield (key path, axis, data) of the points that have data of their own."""
    yield from ((at, name, change.data) for at, name, change in changes(spec) if change.data is not None)


def own_data(spec: SweepSpec) -> dict[Shape, PointData]:
    """Return the shapes whose points have data of their own, with it. Points without a shape are left out."""
    return own_at(spec, "data")


def with_point_data(spec: SweepSpec, change: Callable[[PointData], PointData]) -> SweepSpec:
    """Return the sweep with the data of its points changed."""

    def changed(entry: ShapeChange) -> ShapeChange:
        return entry if entry.data is None else entry.model_copy(update={"data": change(entry.data)})

    of_data = {name for _, name, _ in points_with_data(spec)}
    shapes = {name: tuple(map(changed, spec.axes[name].shapes or ())) for name in of_data}
    axes = {name: spec.axes[name].model_copy(update={"shapes": of_axis}) for name, of_axis in shapes.items()}
    return spec.model_copy(update={"axes": {**spec.axes, **axes}}) if axes else spec


def absolute(spec: SweepSpec, folder: Path) -> SweepSpec:
    """Return the sweep with paths to data that start at the root instead of at `folder`, that of the sweep file."""
    if is_own(spec.data):
        return spec
    named = [key for key in ("source", "validation") if getattr(spec.data, key) is not None]
    data = spec.data.model_copy(update={key: from_folder(getattr(spec.data, key), folder) for key in named})
    spec = spec.model_copy(update={"data": data})
    return with_point_data(spec, lambda own: own.model_copy(update={"source": from_folder(own.source, folder)}))


def from_folder(name: str, folder: Path) -> str:
    """Return a source whose relative path starts at `folder`. A source that is no path, and a URI, stay."""
    kind, _, rest = name.partition(":")
    row = source_row(name)
    if row is None or not row.is_path or Path(rest).is_absolute() or is_uri(rest):
        return name
    is_glob = source_kind(name) == TOKENS  # a path of samples is no glob
    return f"{kind}:{Path(glob.escape(str(folder)) if is_glob else folder) / rest}"


def stated(data: DataSpec, folder: Path) -> dict[str, Any]:
    """Return what data on this machine states of the keys that are not given. A relative source starts at `folder`.

    Raise HpxferError if it cannot be read.
    """
    row, rest = source_row(data.source), data.source.partition(":")[2]
    if is_own(data) or row is None or not rest or "\0" in rest or row.problem(rest) is not None:
        return {}
    path = str(folder / rest) if row.is_path else rest
    found: dict[str, Any] = {}
    if source_kind(data.source) == SAMPLES:
        has_targets = data.classes is not None or data.targets is not None
        samples = None if has_targets and data.inputs is not None else row.open(path)
        if samples is not None:
            facts = samples.facts
            found = {"inputs": facts.num_inputs}
            if not has_targets:  # beside those that are given, the others would only look like a second choice
                found["classes"] = (len(data.only) if data.only and facts.num_classes else facts.num_classes) or None
                found["targets"] = facts.num_targets or None
    else:
        found = dict(row.stated(path))
        if data.tokenizer is not None:
            found.pop("vocab_size", None)
        if data.documents != "masked":
            found.pop("eos_id", None)
    return {key: value for key, value in found.items() if value is not None and getattr(data, key) is None}
