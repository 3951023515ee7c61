"""Data: the rules of the section `data`, where its paths start, and what data on this machine states about itself."""

from __future__ import annotations

import glob
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import entries, shape_at
from hpxfer.spec.data_section import (
    KIND_OF,
    OWN_DATA,
    SAMPLES,
    TOKENS,
    DataSpec,
    PointData,
    is_own,
    source_kind,
    source_row,
    vocabulary,
)
from hpxfer.spec.fields import Problem
from hpxfer.spec.sweep import ShapeChange, SweepSpec
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.storage.uri import is_uri

# What a family reads -> the keys of data of the other kind.
_OF_OTHERS = {"tokens": ("inputs", "classes", "targets", "only"), "samples": ("tokenizer", "vocab_size", "eos_id")}
_DIGESTS = "must be given with the other digest: both stand in for data, or none does"


def data_problems(spec: SweepSpec) -> Iterator[Problem]:
    """Yield every broken rule of the section. No rule touches the data. A user's own trainer has only a name for it."""
    if spec.trainer is not None:
        # A stored sweep has the digest of that name.
        if spec.data.model_copy(update={"digest": None}) != DataSpec(source=f"{OWN_DATA}{spec.trainer.data}"):
            yield ("data",), "is read by the built-in trainer; give the name of your trainer's data as trainer.data"
        return
    data, family = spec.data, spec.model.family
    reads = rows_of("family").get(family).data
    broken = list(_source_problems(("data", "source"), data.source, family, reads))
    if data.validation is not None:
        broken += _source_problems(("data", "validation"), data.validation, family, reads)
    yield from broken
    other = "tokens" if reads == "samples" else "samples"
    for key in _OF_OTHERS[reads]:
        if getattr(data, key) is not None:
            yield ("data", key), f"goes with {other}, and the family {family} reads {reads}"
    if reads == "tokens":
        yield from () if broken else _token_problems(data)
        if data.documents == "masked" and data.eos_id is None:
            yield ("data", "eos_id"), "must be given with documents: masked, because a document ends with this token"
        elif data.documents == "joined" and data.eos_id is not None:
            yield ("data", "eos_id"), "goes with documents: masked, got joined"
    else:
        yield from () if broken else _sample_problems(data)
        if data.documents != "joined":
            yield ("data", "documents"), f"goes with tokens, and the family {family} reads samples"
    for at, _, own in points_with_data(spec):
        yield from _source_problems((*at, "data", "source"), own.source, family, reads)
        if data.validation is None:
            rule = f"needs data.validation, so that the losses of all shapes are those of the same {reads}, got none"
            yield (*at, "data"), rule
        if (own.digest is None) != (data.digest is None):
            yield (*at, "data", "digest"), "must be given with data.digest: all digests stand in for data, or none does"
    if data.validation is None and data.validation_digest is not None:
        yield ("data", "validation_digest"), "goes with data.validation, got none"
    elif data.validation is not None and (data.digest is None) != (data.validation_digest is None):
        yield ("data", "digest" if data.digest is None else "validation_digest"), _DIGESTS


def _source_problems(at: KeyPath, name: str, family: str, reads: str) -> Iterator[Problem]:
    sources = registry(KIND_OF[reads])
    kind, colon, rest = name.partition(":")
    *usages, last = (source.usage for source in sources.rows())
    legal = f"{', '.join(usages)} or {last}"
    of_other = rest and (found := source_kind(name)) != KIND_OF[reads] and kind in registry(found)
    # A name that no kind knows, e.g. builtin:shape, is a slip in one of the family's own kind.
    if of_other and (kind not in sources or registry(found).get(kind).problem(rest) is None):
        yield at, f"must name {reads}, which the family {family} reads, got {shown(name)}; legal: {legal}"
    elif kind not in sources or not colon:
        yield at, f"must be {legal}, got {shown(name)}"
    elif not rest:
        yield at, f"must name a path after {kind}:, got {shown(name)}"
    elif (why := sources.get(kind).problem(rest)) is not None:
        yield at, why


def _token_problems(data: DataSpec) -> Iterator[Problem]:
    """Yield the broken rules of the vocabulary and of the ids."""
    sources, kind = registry("data source"), data.source.partition(":")[0]
    source, at = sources.get(kind), ("data", "vocab_size")
    if data.vocab_size is not None and source.max_vocab_size is None:
        of_ids = ", ".join(f"{row.name}:" for row in sources.rows() if row.max_vocab_size is not None)
        yield at, f"only for data of {of_ids}; {kind}: data has the vocabulary of its tokenizer"
    elif data.vocab_size is not None and data.tokenizer is not None:
        yield at, "must give one of tokenizer and vocab_size, got both"
    elif data.tokenizer is not None and data.tokenizer not in source.tokenizers:
        legal = [*sorted(source.tokenizers), *(["vocab_size"] if source.max_vocab_size else [])]
        yield ("data", "tokenizer"), f"{kind}: data has no tokenizer {shown(data.tokenizer)}; legal: {', '.join(legal)}"
    elif data.vocab_size is not None and data.vocab_size > source.max_vocab_size:
        yield at, f"must be at most {source.max_vocab_size}, the ids of {kind}: data, got {data.vocab_size}"
    elif data.vocab_size is None and not source.tokenizers:
        yield at, f"must be given: {kind}: data does not say with which vocabulary it was written"
    elif data.validation is not None and sources.get(data.validation.partition(":")[0]).holds_ids != source.holds_ids:
        held = "token ids" if source.holds_ids else "text"
        yield ("data", "validation"), f"must hold {held}, as source does, got {data.validation}"
    elif data.eos_id is not None and data.eos_id >= (num_ids := vocabulary(data)[1]):
        yield ("data", "eos_id"), f"must be an id of the vocabulary, at most {num_ids - 1}, got {data.eos_id}"


def _sample_problems(data: DataSpec) -> Iterator[Problem]:
    """Yield the broken rules of the keys that say what a sample is."""
    only, classes = data.only, data.classes
    # Classes that are filled in are those of data.only, so a broken data.only is the one thing to mend.
    if only is not None and (len(only) < 2 or len(set(only)) < len(only)):
        yield ("data", "only"), f"must name at least two different classes, got {list(only)}"
    elif only is not None and data.targets is not None:
        yield ("data", "only"), "chooses classes, but these samples have real targets"
    elif only is not None and classes not in (None, len(only)):
        yield ("data", "classes"), f"must be the {len(only)} classes of data.only, got {classes}"
    elif data.inputs is None:
        yield ("data", "inputs"), f"must be given where the samples are not on this machine, got {data.source}"
    elif (classes is None) == (data.targets is None):
        got = "neither" if classes is None else "both"
        yield ("data", "classes"), f"a sample has either one of several classes or real targets, got {got}"
    elif classes is not None and classes < 2:
        yield ("data", "classes"), f"must be at least 2, got {classes}"


def points_with_data(spec: SweepSpec) -> Iterator[tuple[KeyPath, str, PointData]]:
    """Yield (key path, axis, data) of the points that have data of their own."""
    for name, axis in spec.axes.items():
        for below, entry in entries(axis):
            if isinstance(entry, ShapeChange) and entry.data is not None:
                yield ("axes", name, *below), name, entry.data


def own_data(spec: SweepSpec) -> dict[Shape, PointData]:
    """Return the shapes whose points have data of their own, with it. Points without a shape are left out."""
    out = {}
    for name, axis in spec.axes.items():
        for _, entry in entries(axis):
            if isinstance(entry, ShapeChange) and entry.data is not None:
                with suppress(HpxferError):
                    out[shape_at(spec, name, axis, entry)] = entry.data
    return out


def with_point_data(spec: SweepSpec, change: Callable[[PointData], PointData]) -> SweepSpec:
    """Return the sweep with the data of its points changed."""
    if next(points_with_data(spec), None) is None:
        return spec

    def changed(entry: ShapeChange) -> ShapeChange:
        return entry if entry.data is None else entry.model_copy(update={"data": change(entry.data)})

    axes = {
        name: axis if axis.shapes is None else axis.model_copy(update={"shapes": tuple(map(changed, axis.shapes))})
        for name, axis in spec.axes.items()
    }
    return spec.model_copy(update={"axes": axes})


def absolute(spec: SweepSpec, folder: Path) -> SweepSpec:
    """Return the sweep with paths to data that start at the root instead of at `folder`, that of the sweep file."""
    if is_own(spec.data):
        return spec
    names = {"source": spec.data.source, "validation": spec.data.validation}
    changed = {key: from_folder(name, folder) for key, name in names.items() if name is not None}
    spec = spec.model_copy(update={"data": spec.data.model_copy(update=changed)})
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
    if source_kind(data.source) == SAMPLES:
        has_targets = data.classes is not None or data.targets is not None
        samples = None if has_targets and data.inputs is not None else row.open(path)
        if samples is None:
            return {}
        facts = samples.facts
        found = {"inputs": facts.num_inputs}
        if not has_targets:  # beside those that are given, the others would only look like a second choice
            classes = len(data.only) if data.only and facts.num_classes else facts.num_classes
            found |= {"classes": classes, "targets": facts.num_targets}
        return {key: number for key, number in found.items() if number and getattr(data, key) is None}
    found = dict(row.stated(path))
    if data.tokenizer is not None:
        found.pop("vocab_size", None)
    if data.documents != "masked":
        found.pop("eos_id", None)
    return {key: value for key, value in found.items() if value is not None and getattr(data, key) is None}
