"""What planning needs to know about the data: its digest, its length and its form. It never reads all tokens."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator

from hpxfer.data.prepared import check_digest, check_tokenizers
from hpxfer.data.samples import Facts, Samples
from hpxfer.data.sources import Dataset, opened, source_of
from hpxfer.data.tokens import Corpus
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.spec.check_shapes import AT_BASE, keyed_shapes
from hpxfer.spec.data import own_data, points_with_data
from hpxfer.spec.data_section import OWN_DATA, SAMPLES, DataSpec, PointData, data_sizes, is_own, source_kind, vocabulary
from hpxfer.spec.yaml_file import KeyPath, spell
from hpxfer.trial import DataRef

Opened = Dataset | Corpus | Samples
Points = Iterable[tuple[str, PointData]]


def data_ref(spec: DataSpec, points: Points = ()) -> DataRef:
    """Return the identity of a sweep's data: digests (see `Dataset.digest`), and what a token or a sample is.

    Where data is not on this machine, the digest that `spec` gives is taken. Raise HpxferError if there is neither data
    nor digest, if the data has another digest, or if it is not what `spec` says of it. `points` are (key, data) of
    single points of the sweep.
    """
    if is_own(spec):  # the name says which data it is, and no byte of it is read here
        name = spec.source.removeprefix(OWN_DATA)
        return DataRef(digest=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(), **data_sizes(spec))
    points = tuple(points)
    check_tokenizers(spec, points)
    first, *others = [(named[2], _digest(*named, spec)) for named in _named(spec, points)]
    held_out = None if spec.validation is None else others.pop(0)[1]
    return DataRef(digest=first[1], validation_digest=held_out, others=tuple(others), **data_sizes(spec))


def _named(spec: DataSpec, points: Points) -> Iterator[tuple[str, str, str, str | None]]:
    """Yield (key, key of the digest, name, given digest) of all data of a sweep."""
    yield "data.source", "data.digest", spec.source, spec.digest
    if spec.validation is not None:
        yield "data.validation", "data.validation_digest", spec.validation, spec.validation_digest
    for key, own in points:
        yield f"{key}.source", f"{key}.digest", own.source, own.digest


def point_keys(spec: SweepSpec) -> tuple[tuple[str, PointData], ...]:
    """Return (key, data) of the points of a sweep that have data of their own, e.g. `axes.long.shapes[0].data`."""
    return tuple((spell((*at, "data")), own) for at, _, own in points_with_data(spec))


def is_ids(name: str) -> bool:
    """Return whether a source of tokens holds ids, which must be below the vocabulary."""
    return source_of(name).holds_ids


def _digest(key: str, digest_key: str, name: str, given: str | None, spec: DataSpec) -> str:
    """Return the digest of the data that a key names."""
    found = opened(name, key, spec.only or ())
    if found is None:
        if given is None:
            raise _missing(key, digest_key, name)
        return given
    if isinstance(found, Dataset):
        digest = found.digest(vocabulary(spec)[1] if is_ids(name) else None)
        check_digest(key, name, found, digest)
    else:
        _require_stated(key, name, found.facts, spec)
        digest = found.digest()
        if found.num_train == 0:
            raise HpxferError(f"{key}: must hold samples, got none at {name}")
    if given not in (None, digest):
        raise HpxferError(
            f"{digest_key}: must be the digest of the data at {name}, {digest}, got {given}; name the data that has "
            "this digest, or remove the key to accept this data"
        )
    return digest


def require_data(spec: SweepSpec) -> None:
    """Raise HpxferError unless the data is on this machine. What a user's own trainer reads is not looked for."""
    for key, digest_key, name, _ in _named(spec.data, point_keys(spec)):
        if not is_here(name, key):
            raise _missing(key, digest_key, name)


def is_here(name: str, key: str = "data.source") -> bool:
    """Return whether the data of a source is on this machine. Raise HpxferError if it cannot be used.

    A user's own trainer finds its data by itself.
    """
    return name.startswith(OWN_DATA) or opened(name, key) is not None


def _missing(key: str, digest_key: str, name: str) -> HpxferError:
    sizes = ", data.inputs and data.classes or data.targets" if source_kind(name) == SAMPLES else ""
    return HpxferError(
        f"{key}: must name data on this machine, got {name}, which no file matches; correct the path (a relative one "
        f"in a sweep file starts at the file's folder), or give {digest_key}{sizes} to plan without the data"
    )


def _require_stated(key: str, name: str, facts: Facts, spec: DataSpec) -> None:
    """Raise HpxferError unless samples are what the sweep says, e.g. have as many classes."""
    found = {"inputs": facts.num_inputs, "classes": facts.num_classes, "targets": facts.num_targets}
    # Keys that the sweep gives come first, so that "remove the key" names one that is there.
    for what, number in sorted(found.items(), key=lambda item: getattr(spec, item[0]) is None):
        given, got = getattr(spec, what) or "none", number or "none"
        if given != got and key == "data.source":
            raise HpxferError(f"data.{what}: must be as in the samples of {name}, {got}, got {given}; remove the key")
        if given != got:
            raise HpxferError(f"{key}: must hold samples with {given} {what} as data.source, got {got} in {name}")


def require_alike(key: str, name: str, found: Opened, first: Opened) -> None:
    """Raise HpxferError unless samples have inputs and targets as those of `data.source`."""
    one, other = (_form(each) for each in (first, found))
    if one != other:
        raise HpxferError(f"{key}: must hold samples as data.source, {one}, got {other} in {name}")


def _form(found: Opened) -> str:
    if isinstance(found, Dataset | Corpus):
        return "tokens"
    facts = found.facts
    return f"{facts.num_inputs} {'pixels' if facts.is_pixels else 'real inputs'} with {facts.targets}"


def check_length(spec: SweepSpec) -> None:
    """Raise HpxferError if the data is shorter than a run of the sweep. Do nothing if it is not on this machine."""
    data, own = spec.data, own_data(spec)
    if is_own(data):
        return
    first = opened(data.source, only=data.only or ())
    held_out = None if data.validation is None else opened(data.validation, "data.validation", data.only or ())
    if first is None or (data.validation is not None and held_out is None):
        return
    if held_out is not None:
        require_alike("data.validation", str(data.validation), held_out, first)
    for at, shape in keyed_shapes(spec):
        name = own[shape].source if shape in own else data.source
        found = first if name == data.source else opened(name, only=data.only or ())
        if found is None:
            continue
        key, where = _point(at, has_data=shape in own)
        require_alike(key, name, found, first)
        require_length(
            name,
            found,
            held_out=None if held_out is None else (str(data.validation), held_out),
            steps=shape.steps,
            batch=shape.batch_tokens,
            validation=spec.training.validation,
            context=spec.model.context or 1,
            epochs=data.epochs,
            key=key,
            where=where,
        )


def _point(at: KeyPath, *, has_data: bool) -> tuple[str, str]:
    """Return the key of the data of a point, and the words for a point of an axis, given whole or by a bare value."""
    if at == AT_BASE:
        return "data.source", ""
    axes, axis, _, index = at
    # Files in the short form name a point without the key `shapes` or `values`.
    return spell((*at, "data", "source")) if has_data else "data.source", f"at {spell((axes, axis, index))}: "


def require_length(
    name: str,
    found: Opened,
    *,
    held_out: tuple[str, Opened] | None,
    steps: int,
    batch: int,
    validation: int,
    context: int,
    epochs: int,
    key: str = "data.source",
    where: str = "",
) -> None:
    """Raise HpxferError unless a run fits into the epochs of the data, and its validation into the held-out data.

    Sizes are in tokens or in samples. Without `held_out`, (name, data), and without a test split, the end of the data
    is held out. Tokens that are trained on or held out each need one more token, the last target.
    """
    unit, last, num_train, num_test = _counts(found)
    held_name, of_held = (f"{name}, its test split", num_test) if held_out is None else (held_out[0], 0)
    if held_out is not None:
        of_own = _counts(held_out[1])
        of_held = of_own[2] if of_own[3] == 0 else of_own[3]  # the test split, else the training split
    kept = validation + last if held_out is None and of_held == 0 and num_train is not None else 0
    if not kept and of_held is not None and of_held < validation + last:
        raise HpxferError(
            f"{key if held_out is None else 'data.validation'}: must hold at least {validation + last} {unit} for "
            f"validation, got {of_held} at {held_name}"
        )
    rows = -(-steps * batch // context // epochs)
    if num_train is None or (num_train - kept - last) // context >= max(rows, 1):
        return
    runs = f"{steps} steps of {batch}" + (f" in {epochs} epochs" if epochs > 1 else "")
    targets = "" if not last else " and 2 last targets" if kept else " and a last target"
    raise HpxferError(
        f"{key}: {where}must hold at least {rows * context + last + kept} {unit} for {runs}"
        f"{f', {validation} for validation' if kept else ''}{targets}, got {num_train} at {name}; "
        "add data, raise data.epochs, or train for fewer steps"
    )


def _counts(found: Opened) -> tuple[str, int, int | None, int | None]:
    """Return (unit, last targets of a region, the size of the training split, that of the test split)."""
    if isinstance(found, Dataset | Corpus):
        return "tokens", 1, found.num_tokens, 0
    return "samples", 0, found.num_train, found.num_test
