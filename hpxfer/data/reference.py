"""What planning needs to know about the data: its digest and its length. It never reads all of the data."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass

from hpxfer.data.prepared import check_digest, check_tokenizers
from hpxfer.data.samples import open_samples
from hpxfer.data.samples.reference import missing, require_alike, require_samples, sample_ref
from hpxfer.data.sources import open_dataset, source_of
from hpxfer.data.sources.dataset import Dataset, check_ids, spans
from hpxfer.errors import HpxferError
from hpxfer.spec import SweepSpec
from hpxfer.spec.check_shapes import AT_BASE, keyed_shapes
from hpxfer.spec.data import own_data, points_with_data
from hpxfer.spec.data_section import OWN_DATA, DataSpec, PointData, is_own
from hpxfer.spec.source_kind import SAMPLES, source_kind
from hpxfer.spec.vocabulary import data_sizes, vocabulary
from hpxfer.spec.yaml_file import KeyPath, spell
from hpxfer.trial import DataRef


@dataclass(frozen=True, kw_only=True)
class Point:
    """A point of an axis as the messages name it: the keys of its data and of its steps, and the point itself."""

    data: str
    steps: str
    where: str


# The keys of a sweep that name data, with the keys of their digests.
KEYS = {"source": "digest", "validation": "validation_digest"}


def data_ref(spec: DataSpec, points: Iterable[tuple[str, PointData]] = ()) -> DataRef:
    """Return the identity of a sweep's data: digests (see `hpxfer.data.reference`), and what a token or a sample is.

    Where data is not on this machine, the digest that `spec` gives is taken. Raise HpxferError if there is neither data
    nor digest, or if the data has another digest. `points` are (key, data) of single points of the sweep.
    """
    points = tuple(points)
    if is_own(spec):  # the name says which data it is, and no byte of it is read here
        name = spec.source.removeprefix(OWN_DATA)
        return DataRef(digest=hashlib.blake2b(name.encode(), digest_size=16).hexdigest(), **data_sizes(spec))
    if source_kind(spec.source) == SAMPLES:
        return sample_ref(spec, points)
    tokenizer, vocab_size = vocabulary(spec)
    check_tokenizers(spec, points)
    held_out = spec.validation and _digest(
        "data.validation", "data.validation_digest", spec.validation, spec.validation_digest, vocab_size
    )
    return DataRef(
        digest=_digest("data.source", "data.digest", spec.source, spec.digest, vocab_size),
        tokenizer=tokenizer,
        vocab_size=vocab_size,
        validation_digest=held_out,
        others=tuple(
            (own.source, _digest(f"{key}.source", f"{key}.digest", own.source, own.digest, vocab_size))
            for key, own in points
        ),
    )


def point_keys(spec: SweepSpec) -> tuple[tuple[str, PointData], ...]:
    """Return (key, data) of the points of a sweep that have data of their own, e.g. `axes.long.shapes[0].data`."""
    return tuple((spell((*at, "data")), own) for at, _, own in points_with_data(spec))


def _digest(key: str, digest_key: str, name: str, given: str | None, vocab_size: int) -> str:
    """Return the digest of the data that a key names."""
    if given is None:
        _require(key, digest_key, name)
    dataset = open_dataset(name, key)
    found = given or ""
    if dataset is not None:
        found = digest(dataset, vocab_size if source_of(name).holds_ids else None)
        check_digest(key, name, dataset, found)
    if given not in (None, found):
        raise HpxferError(
            f"{digest_key}: must be the digest of the data at {name}, {found}, got {given}; name the data "
            f"that has this digest, or remove the key to accept this data"
        )
    return found


def require_data(spec: SweepSpec) -> None:
    """Raise HpxferError unless the data is on this machine. What a user's own trainer reads is not looked for."""
    if is_own(spec.data):
        return
    for key in KEYS:
        if (name := getattr(spec.data, key)) is not None:
            _require(f"data.{key}", f"data.{KEYS[key]}", name)
    for at, own in point_keys(spec):
        _require(f"{at}.source", f"{at}.digest", own.source)


def is_here(name: str, key: str = "data.source") -> bool:
    """Return whether the data of a source is on this machine. Raise HpxferError if it cannot be used.

    A user's own trainer finds its data by itself.
    """
    if name.startswith(OWN_DATA):
        return True
    if source_kind(name) == SAMPLES:
        return open_samples(name) is not None
    return open_dataset(name, key) is not None


def _require(key: str, digest_key: str, name: str) -> None:
    if is_here(name, key):
        return
    if source_kind(name) == SAMPLES:
        raise missing(key, digest_key, name)
    raise HpxferError(
        f"{key}: must name data on this machine, got {name}, which no file matches; correct the path "
        f"(a relative one in a sweep file starts at the file's folder), or give {digest_key} to plan without "
        "the data"
    )


def check_length(spec: SweepSpec) -> None:
    """Raise HpxferError if the data is shorter than a run of the sweep. Do nothing if it is not on this machine."""
    if is_own(spec.data):
        return
    if source_kind(spec.data.source) == SAMPLES:
        _check_samples(spec)
    else:
        _check_tokens(spec)


def _check_tokens(spec: SweepSpec) -> None:
    dataset = open_dataset(spec.data.source)
    held_out = spec.data.validation and open_dataset(spec.data.validation, "data.validation")
    if dataset is None or (spec.data.validation is not None and not held_out):
        return
    own = own_data(spec)
    for at, shape in keyed_shapes(spec):
        name = own[shape].source if shape in own else spec.data.source
        found = dataset if name == spec.data.source else open_dataset(name)
        if found is None:
            continue
        require_length(
            name=name,
            num_tokens=found.num_tokens,
            held_out=(str(spec.data.validation), held_out.num_tokens) if held_out else None,
            steps=shape.steps,
            batch_tokens=shape.batch_tokens,
            validation_tokens=spec.training.validation,
            context=spec.model.context or 1,
            epochs=spec.data.epochs,
            point=None if at == AT_BASE else _point(at, has_data=shape in own),
        )


def _check_samples(spec: SweepSpec) -> None:
    """Raise HpxferError if the samples are fewer than a run reads. Do nothing if they are not on this machine."""
    only, name = spec.data.only or (), spec.data.validation
    first = open_samples(spec.data.source, only)
    held_out = None if name is None else open_samples(name, only)
    if first is None or (name is not None and held_out is None):
        return
    if name is not None and held_out is not None:
        require_alike("data.validation", name, held_out, first)
    own = own_data(spec)
    for at, shape in keyed_shapes(spec):
        source = own[shape].source if shape in own else spec.data.source
        point = None if at == AT_BASE else _point(at, has_data=shape in own)
        samples = open_samples(source, only)
        if samples is None:
            continue
        require_alike(point.data if point else "data.source", source, samples, first)
        require_samples(
            name=source,
            samples=samples,
            held_out=held_out,
            steps=shape.steps,
            batch_samples=shape.batch_tokens,
            validation_samples=spec.training.validation,
            epochs=spec.data.epochs,
            **({} if point is None else {"data_key": point.data, "steps_key": point.steps, "where": point.where}),
        )


def _point(at: KeyPath, *, has_data: bool) -> Point:
    """Return the keys of a point of an axis, given whole or by a bare value."""
    axes, axis, form, index = at
    name = spell((axes, axis, index))  # as files in the short form have it
    return Point(
        data=spell((*at, "data", "source")) if has_data else "data.source",
        steps=f"{name}.steps" if form == "shapes" else name,
        where=name,
    )


def windows_of(num_tokens: int, validation_tokens: int, context: int, *, own_tail: bool) -> int:
    """Return the training windows in an epoch of the data, which keeps its tail for validation if `own_tail`."""
    return (num_tokens - (validation_tokens + 1 if own_tail else 0) - 1) // context


def require_length(
    *,
    name: str,
    num_tokens: int,
    held_out: tuple[str, int] | None,
    steps: int,
    batch_tokens: int,
    validation_tokens: int,
    context: int,
    epochs: int,
    point: Point | None = None,
) -> None:
    """Raise HpxferError unless a run fits into the epochs of `num_tokens`, and its validation into the held-out data.

    `held_out` is the name and the number of tokens of a data set of its own. Otherwise the tail is held out. The
    training region and the held-out tokens each need one more token, the last target. `point` is the point of an axis
    whose run this is, None for the base.
    """
    if held_out is not None and held_out[1] < validation_tokens + 1:
        most = max(0, (held_out[1] - 1) // batch_tokens * batch_tokens)
        raise HpxferError(
            f"data.validation: must hold at least {validation_tokens + 1} tokens, {validation_tokens} and a last "
            f"target, got {held_out[1]} at {held_out[0]}; lower training.validation_tokens (at most {most} fit), or "
            "name more data"
        )
    own_tail = held_out is None
    windows = windows_of(num_tokens, validation_tokens, context, own_tail=own_tail)
    rows = batch_tokens // context
    if windows > 0 and steps * rows <= epochs * windows:
        return
    most = max(0, windows) * epochs // rows
    needed = -(-steps * rows // epochs) * context + 1 + (validation_tokens + 1 if own_tail else 0)
    parts = f"{validation_tokens} for validation and 2 last targets" if own_tail else "a last target"
    runs = f"{steps} steps of {batch_tokens}" + (f" in {epochs} epochs" if epochs > 1 else "")
    enough = -(-steps * rows // windows) if windows > 0 else None
    fix = "add data" if enough is None else f"add data, set data.epochs: {enough} to read it so often"
    shorter = "training.batch_tokens or training.validation_tokens" if own_tail else "or training.batch_tokens"
    raise HpxferError(
        f"{'data.source' if point is None else point.data}: {'' if point is None else f'at {point.where}: '}"
        f"must hold at least {needed} tokens for {runs}, {parts}, got {num_tokens} at {name}; {fix}, or "
        f"lower {'training.steps' if point is None else point.steps} (at most {most} fit), {shorter}"
    )


NUM_BLOCKS = 64
BLOCK_BYTES = 64 * 1024


def blocks(num_tokens: int, token_bytes: int) -> list[tuple[int, int]]:
    """Return the ranges of tokens that the digest covers: all, or 64 blocks of 64 KiB spaced evenly over the data.

    The first block starts at the first token, and the last block ends at the last token.
    """
    block = BLOCK_BYTES // token_bytes
    if num_tokens <= NUM_BLOCKS * block:
        return [(0, num_tokens)]
    starts = [index * (num_tokens - block) // (NUM_BLOCKS - 1) for index in range(NUM_BLOCKS)]
    return [(start, start + block) for start in starts]


def digest(dataset: Dataset, vocab_size: int | None = None) -> str:
    """Return the digest of a data set, 32 hex digits. It reads at most 4 MiB of tokens.

    The digest is the 16-byte blake2b of these bytes, in this order:
    1. the format (`text` or `tokens`; built-in data is text), a space, the number of files in decimal, a newline;
    2. for each file, its number of tokens in decimal, a newline, and its header: 1024 bytes for a token shard, none
       for text;
    3. the tokens in the ranges of `blocks`, which index the tokens of all files in order.

    The digest covers the order of the files, not their paths. It does not cover the tokenizer, which is a separate part
    of a trial's identity. If `vocab_size` is given, raise HpxferError for a token read here that is not below it.
    """
    state = hashlib.blake2b(digest_size=16)
    state.update(f"{dataset.format} {len(dataset.parts)}\n".encode())
    for part in dataset.parts:
        state.update(f"{part.num_tokens}\n".encode() + part.header)
    for begin, end in blocks(dataset.num_tokens, dataset.token_bytes):
        for index, low, high in spans(dataset.starts, begin, end):
            part = dataset.parts[index]
            ids = part.read(low, high)
            if vocab_size is not None:
                check_ids(ids, vocab_size, part.path, low)
            state.update(ids.tobytes())
    return state.hexdigest()
