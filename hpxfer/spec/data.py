"""Data: the rules of the section `data`, where its paths start, and what a prepared folder states about itself."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from hpxfer.errors import HpxferError, shown
from hpxfer.host.files import folder_at
from hpxfer.registry import registry, rows_of
from hpxfer.scaling.shape import Shape
from hpxfer.spec.axes import entries, shape_at
from hpxfer.spec.data_section import OWN_DATA, DataSpec, PointData, is_own
from hpxfer.spec.fields import Problem
from hpxfer.spec.manifest import read_manifest
from hpxfer.spec.sample_rules import sample_problems, stated_by_samples, token_problems
from hpxfer.spec.source_kind import KIND_OF, SAMPLES, TOKENS, source_kind, source_row
from hpxfer.spec.sweep import ShapeChange, SweepSpec
from hpxfer.spec.vocabulary import vocabulary
from hpxfer.spec.yaml_file import KeyPath
from hpxfer.storage.uri import is_uri


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
    if reads == "samples":
        yield from () if broken else sample_problems(data, family)
    else:
        yield from token_problems(data, family)
        yield from () if broken else _id_problems(data)
        yield from _document_problems(data)
    for at, _, own in points_with_data(spec):
        yield from _source_problems((*at, "data", "source"), own.source, family, reads)
        if data.validation is None:
            rule = f"needs data.validation, so that the losses of all shapes are those of the same {reads}, got none"
            yield (*at, "data"), rule
        if (own.digest is None) != (data.digest is None):
            yield (*at, "data", "digest"), "must be given with data.digest: all digests stand in for data, or none does"
    if data.validation is None and data.validation_digest is not None:
        yield ("data", "validation_digest"), "goes with data.validation, got none"
    if (data.digest is None) != (data.validation_digest is None) and data.validation is not None:
        missing = "validation_digest" if data.validation_digest is None else "digest"
        yield ("data", missing), "must be given with the other digest: both stand in for data, or none does"


def _id_problems(data: DataSpec) -> Iterator[Problem]:
    broken = list(_vocabulary_problems(data))
    yield from broken
    if not broken and data.eos_id is not None and data.eos_id >= (num_ids := vocabulary(data)[1]):
        yield ("data", "eos_id"), f"must be an id of the vocabulary, at most {num_ids - 1}, got {data.eos_id}"


def _document_problems(data: DataSpec) -> Iterator[Problem]:
    if data.documents == "masked" and data.eos_id is None:
        yield (
            ("data", "eos_id"),
            "must be given with documents: masked, because a document ends with this token; a folder that "
            "`hpxfer data prepare` made states it",
        )
    elif data.documents == "joined" and data.eos_id is not None:
        yield ("data", "eos_id"), "goes with documents: masked, got joined; take one of the two out"


def _source_problems(at: KeyPath, name: str, family: str, reads: str) -> Iterator[Problem]:
    sources = registry(KIND_OF[reads])
    kind, colon, rest = name.partition(":")
    of_other = rest and (found := source_kind(name)) != KIND_OF[reads] and kind in registry(found)
    # A name that no kind knows, e.g. builtin:shape, is a slip in one of the family's own kind.
    if of_other and (kind not in sources or registry(found).get(kind).problem(rest) is None):
        *usages, last = (source.usage for source in sources.rows())
        legal = f"{', '.join(usages)} or {last}"
        yield at, f"must name {reads}, which the family {family} reads, got {shown(name)}; legal: {legal}"
    elif kind not in sources or not colon:
        *usages, last = (source.usage for source in sources.rows())
        yield at, f"must be {', '.join(usages)} or {last}, got {shown(name)}"
    elif not rest:
        yield at, f"must name a path after {kind}:, got {shown(name)}"
    elif (why := sources.get(kind).problem(rest)) is not None:
        yield at, why


def _vocabulary_problems(data: DataSpec) -> Iterator[Problem]:
    sources = registry("data source")
    kind = data.source.partition(":")[0]
    source = sources.get(kind)
    if data.vocab_size is not None and source.max_vocab_size is None:
        *names, last = [f"{row.name}:" for row in sources.rows() if row.max_vocab_size is not None]
        of_ids = " and ".join(filter(None, (", ".join(names), last)))
        yield ("data", "vocab_size"), f"only for {of_ids} data; {kind}: data has the vocabulary of its tokenizer"
    elif data.vocab_size is not None and data.tokenizer is not None:
        yield ("data", "vocab_size"), "must give one of tokenizer and vocab_size, got both"
    elif data.tokenizer is not None and data.tokenizer not in source.tokenizers:
        legal = ", ".join(sorted(source.tokenizers)) + (", or vocab_size" if source.max_vocab_size else "")
        fix = f"legal: {legal}" if source.tokenizers else "give vocab_size instead"
        yield ("data", "tokenizer"), f"{kind}: data has no tokenizer {shown(data.tokenizer)}; {fix}"
    elif data.vocab_size is not None and data.vocab_size > source.max_vocab_size:
        limit = f"{kind}: data holds ids below {source.max_vocab_size}"
        yield ("data", "vocab_size"), f"{limit}, so it must be at most that, got {data.vocab_size}"
    elif data.vocab_size is None and not source.tokenizers:
        rule = f"must be given: {kind}: data does not say with which vocabulary it was written"
        yield ("data", "vocab_size"), f"{rule}; give the number of ids of its tokenizer, e.g. 50304 for GPT-2's"
    elif data.validation is not None:
        of_ids = sources.get(data.validation.partition(":")[0]).holds_ids
        if of_ids != source.holds_ids:
            yield (
                ("data", "validation"),
                f"must hold {'token ids' if source.holds_ids else 'text'}, as source does, got {data.validation}",
            )


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
    """Return what samples, or the manifest of a prepared folder, state of the keys that are not given.

    A relative source starts at `folder`. The result is empty if the source is something else, or not on this machine.
    """
    if is_own(data):
        return {}
    if source_kind(data.source) == SAMPLES:
        return stated_by_samples(data, folder)
    kind, _, rest = data.source.partition(":")
    root = folder_at(str(folder / rest)) if kind == "tokens" and rest and "\0" not in rest else None
    manifest = None if root is None else read_manifest(root)
    if root is None or manifest is None:
        return {}
    out: dict[str, Any] = {}
    if data.vocab_size is None and data.tokenizer is None:
        out["vocab_size"] = manifest.padded_vocab_size
    if data.validation is None and "val" in manifest.splits:
        out["validation"] = f"tokens:{glob.escape(os.path.abspath(root))}/val-*.bin"
    if data.documents == "masked" and data.eos_id is None and manifest.tokenizer.eos_id is not None:
        out["eos_id"] = manifest.tokenizer.eos_id
    return out
