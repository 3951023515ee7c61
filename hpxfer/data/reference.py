"""Reference: the data that a sweep names. It is found, compared with what the sweep says of it, measured and opened.

Planning needs its digest, its length and its form, and never reads all tokens.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from functools import lru_cache

from hpxfer.data.batches import Data, SampleData, TokenData
from hpxfer.data.manifest import check_digest, check_tokenizers
from hpxfer.data.samples import Facts, Samples
from hpxfer.data.sources import load_corpus, opened, row_of, source_of
from hpxfer.data.tokens import Corpus, Dataset
from hpxfer.errors import HpxferError
from hpxfer.registry import rows_of
from hpxfer.spec import (
    AT_BASE,
    OWN_DATA,
    SAMPLES,
    DataSpec,
    KeyPath,
    PointData,
    SweepSpec,
    data_sizes,
    is_own,
    keyed_shapes,
    own_data,
    points_with_data,
    source_kind,
    spell,
    vocabulary,
)
from hpxfer.trial import DataRef, Setting

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
    named = list(_named(spec, points))
    check_tokenizers(spec.source, [(key, name) for key, _, name, _ in named[1:]])
    first, *others = [(name, _digest(key, of, name, given, spec)) for key, of, name, given in named]
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


def _digest_of(name: str, found: Dataset | Samples, vocab_size: int) -> str:
    """Return the digest of opened data. Raise HpxferError for an id that is not in the vocabulary."""
    if isinstance(found, Dataset):
        return found.digest(vocab_size if source_of(name).holds_ids else None)
    return found.digest()


def _digest(key: str, digest_key: str, name: str, given: str | None, spec: DataSpec) -> str:
    """Return the digest of the data that a key names."""
    found = opened(name, key, spec.only or ())
    if found is None:
        if given is None:
            raise _missing(key, digest_key, name)
        return given
    if not isinstance(found, Dataset):
        _require_stated(key, name, found.facts, spec)
    digest = _digest_of(name, found, vocabulary(spec)[1])
    if isinstance(found, Dataset):
        check_digest(key, name, found, digest)
    if given not in (None, digest):
        rule = f"must be the digest of the data at {name}, {digest}"
        raise HpxferError(f"{digest_key}: {rule}, got {given}; without the key this data is accepted")
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
        f"{key}: must name data on this machine, got {name}, which no file matches (a relative path in a sweep file "
        f"starts at the file's folder); or give {digest_key}{sizes} to plan without the data"
    )


def _require_stated(key: str, name: str, facts: Facts, spec: DataSpec) -> None:
    """Raise HpxferError unless samples are what the sweep says, e.g. have as many classes."""
    found = {"inputs": facts.num_inputs, "classes": facts.num_classes, "targets": facts.num_targets}
    # Keys that the sweep gives come first.
    for what, number in sorted(found.items(), key=lambda item: getattr(spec, item[0]) is None):
        given, got = getattr(spec, what) or "none", number or "none"
        if given != got and key == "data.source":
            raise HpxferError(f"data.{what}: must be as in the samples of {name}, {got}, got {given}")
        if given != got:
            raise HpxferError(f"{key}: must hold samples with {given} {what} as data.source, got {got} in {name}")


def _require_alike(key: str, name: str, found: Opened, first: Opened) -> None:
    """Raise HpxferError unless samples have inputs and targets as those of `data.source`."""
    one, other = _form(found), _form(first)
    if one != other:
        raise HpxferError(f"{key}: must hold samples as data.source, {other}, got {one} in {name}")


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
    only = data.only or ()
    first = opened(data.source, only=only)
    held_out = None if data.validation is None else opened(data.validation, "data.validation", only)
    if first is None or (data.validation is not None and held_out is None):
        return
    if held_out is not None:
        _require_alike("data.validation", str(data.validation), held_out, first)
    for at, shape in keyed_shapes(spec):
        name = own[shape].source if shape in own else data.source
        found = first if name == data.source else opened(name, only=only)
        if found is None:
            continue
        key, where = _point(at, has_data=shape in own)
        _require_alike(key, name, found, first)
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
        *_, own_train, own_test = _counts(held_out[1])
        of_held = own_train if own_test == 0 else own_test
    kept = validation + last if held_out is None and of_held == 0 and num_train is not None else 0
    if not kept and of_held is not None and of_held < validation + last:
        rule = f"must hold at least {validation + last} {unit} for validation"
        raise HpxferError(f"{key if held_out is None else 'data.validation'}: {rule}, got {of_held} at {held_name}")
    rows = -(-steps * batch // context // epochs)
    if num_train is None or (num_train - kept - last) // context >= max(rows, 1):
        return
    runs = f"{steps} steps of {batch}" + (f" in {epochs} epochs" if epochs > 1 else "")
    targets = "" if not last else " and 2 last targets" if kept else " and a last target"
    raise HpxferError(
        f"{key}: {where}must hold at least {rows * context + last + kept} {unit} for {runs}"
        f"{f', {validation} for validation' if kept else ''}{targets}, got {num_train} at {name}; see data.epochs"
    )


def _counts(found: Opened) -> tuple[str, int, int | None, int | None]:
    """Return (unit, last targets of a region, the size of the training split, that of the test split)."""
    if isinstance(found, Dataset | Corpus):
        return "tokens", 1, found.num_tokens, 0
    return "samples", 0, found.num_train, found.num_test


def open_data(setting: Setting) -> Data:
    """Return the data of a setting as its family reads it, opened once per process: samples where a sample has inputs,
    else tokens.

    Text and samples are read into memory, shards are memory-mapped. Raise HpxferError if the data is not on this
    machine, has another digest than the sweep's, or is shorter than the run.
    """
    known = setting.tokenizer, setting.vocab_size, setting.only_classes
    check = _checked if setting.num_inputs else _kept  # samples are kept as long as their files do not change
    found = check("data.source", setting.data_source, setting.data_digest, *known)
    held_out = None
    if setting.validation_digest is not None:
        assert setting.validation_source is not None, "a digest of held-out data comes with its name"
        held_out = check("data.validation", setting.validation_source, setting.validation_digest, *known)
        _require_alike("data.validation", setting.validation_source, held_out, found)
    require_length(
        setting.data_source,
        found,
        held_out=None if held_out is None else (str(setting.validation_source), held_out),
        steps=setting.steps,
        batch=setting.batch_tokens,
        validation=setting.validation_tokens,
        context=setting.context,
        epochs=setting.epochs,
    )
    size = {"batch_tokens": setting.batch_tokens, "validation_tokens": setting.validation_tokens}
    if isinstance(found, Corpus):
        assert held_out is None or isinstance(held_out, Corpus)
        data: Data = TokenData(corpus=found, held_out=held_out, context=setting.context, **size)
    else:
        assert not isinstance(held_out, Corpus)
        data = SampleData(samples=found, held_out=held_out, **size)
    read: Data = rows_of("family").get(setting.family).batches(setting, data)
    return read


def _checked(
    key: str, name: str, expected: str, tokenizer: str, vocab_size: int, only: tuple[int, ...]
) -> Corpus | Samples:
    """Return the tokens or samples of a sweep. Raise HpxferError if they are not here, or have another digest."""
    found = opened(name, key, only)
    if found is None:
        raise HpxferError(f"{key}: must be on every machine that trains, got {name}, which no file here matches")
    if (digest := _digest_of(name, found, vocab_size)) != expected:
        raise HpxferError(
            f"{key}: the data at {name} on this machine differs from the sweep's: its digest must be "
            f"{expected}, got {digest}; {row_of(name).mismatch_fix}"
        )
    return load_corpus(name, found, tokenizer, vocab_size) if isinstance(found, Dataset) else found


# Few, because text stays in memory as long as it is kept. A sweep has one data set, and at most one of held-out data.
_kept = lru_cache(maxsize=2)(_checked)
