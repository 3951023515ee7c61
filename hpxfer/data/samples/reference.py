"""What planning needs to know about samples: identity, number, size and classes, and how their inputs are."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from hpxfer.data.samples import open_samples
from hpxfer.data.samples.facts import Facts, Samples
from hpxfer.data.samples.formats import cifar, idx
from hpxfer.errors import HpxferError
from hpxfer.host.files import folder_at
from hpxfer.spec.data_section import DataSpec, PointData
from hpxfer.spec.vocabulary import data_sizes
from hpxfer.trial import DataRef


def sample_ref(spec: DataSpec, points: Iterable[tuple[str, PointData]] = ()) -> DataRef:
    """Return the identity of the samples of a sweep. `points` are (key, data) of single points of the sweep.

    Where samples are not on this machine, the digest that `spec` gives is taken. Raise HpxferError if there are neither
    samples nor a digest, if they have another digest, or if they are not what `spec` says of them.
    """
    held_out = spec.validation and _digest("data.validation", "data.validation_digest", spec, spec.validation)
    return DataRef(
        digest=_digest("data.source", "data.digest", spec, spec.source),
        validation_digest=held_out,
        others=tuple(
            (own.source, _digest(f"{key}.source", f"{key}.digest", spec, own.source, own)) for key, own in points
        ),
        **data_sizes(spec),
    )


def _digest(key: str, digest_key: str, spec: DataSpec, name: str, own: PointData | None = None) -> str:
    given: str | None = (own or spec).digest if key != "data.validation" else spec.validation_digest
    samples = open_samples(name, spec.only or ())
    if samples is None:
        if given is None:
            raise missing(key, digest_key, name)
        return given
    _require_stated(key, name, samples.facts, spec)
    found = samples.digest()
    if samples.num_train is not None and not samples.num_train:
        raise HpxferError(f"{key}: must hold samples, got none at {name}; name other files")
    if given not in (None, found):
        raise HpxferError(
            f"{digest_key}: must be the digest of the samples of {name}, {found}, got {given}; name the data that has "
            "this digest, or remove the key to accept this data"
        )
    return found


def missing(key: str, digest_key: str, name: str) -> HpxferError:
    """Return the error of samples that are not on this machine."""
    return HpxferError(
        f"{key}: must name samples on this machine, got {name}, which names no file; correct the path (a relative one "
        f"in a sweep file starts at the file's folder), or give {digest_key}, data.inputs and data.classes or "
        "data.targets to plan without the data"
    )


def _require_stated(key: str, name: str, facts: Facts, spec: DataSpec) -> None:
    """Raise HpxferError unless samples are what the sweep says, e.g. have as many classes."""
    found = {"inputs": facts.num_inputs, "classes": facts.num_classes, "targets": facts.num_targets}
    # Keys that the sweep gives come first, so that "remove the key" names one that is there.
    for what, number in sorted(found.items(), key=lambda item: getattr(spec, item[0]) is None):
        given = getattr(spec, what) or 0
        if given == number:
            continue
        if key == "data.source":
            raise HpxferError(
                f"data.{what}: must be as in the samples of {name}, {number or 'none'}, got {given or 'none'}; remove "
                "the key, or name other samples"
            )
        raise HpxferError(
            f"{key}: must hold samples with {given or 'no'} {what} as those of data.source, got {number or 'none'} in "
            f"{name}; name other samples"
        )


def require_alike(key: str, name: str, samples: Samples, first: Samples) -> None:
    """Raise HpxferError unless samples have inputs and targets as those of `data.source`."""
    one, other = (_kind(each.facts) for each in (first, samples))
    if one != other:
        raise HpxferError(f"{key}: must hold samples as data.source, {one}, got {other} in {name}; name other samples")


def _kind(facts: Facts) -> str:
    return f"{facts.num_inputs} {'pixels' if facts.is_pixels else 'real inputs'} with {facts.targets}"


def num_kept(samples: Samples, held_out: Samples | None, validation_samples: int) -> int:
    """Return how many samples of the training split are kept for validation."""
    has_own = held_out is not None or samples.num_train is None or samples.num_test != 0
    return 0 if has_own else validation_samples


def require_samples(
    *,
    name: str,
    samples: Samples,
    held_out: Samples | None,
    steps: int,
    batch_samples: int,
    validation_samples: int,
    epochs: int,
    data_key: str = "data.source",
    steps_key: str = "training.steps",
    where: str = "",
) -> None:
    """Raise HpxferError unless a run fits into the epochs of the samples, and its validation into the held-out ones.

    `where` names the point of an axis whose run this is, and is empty for the base.
    """
    kept = num_kept(samples, held_out, validation_samples)
    of_held_out = _num_held_out(held_out or samples)
    if not kept and of_held_out is not None and of_held_out < validation_samples:
        key = "data.source: the test split" if held_out is None else "data.validation"
        most = of_held_out // batch_samples * batch_samples
        raise HpxferError(
            f"{key}: must hold at least {validation_samples} samples, got {of_held_out}"
            f"{f' at {name}' if held_out is None else ''}; lower training.validation_samples (at most {most} fit), or "
            "name more data"
        )
    if samples.num_train is None:
        return
    region = samples.num_train - kept
    if region > 0 and steps * batch_samples <= epochs * region:
        return
    needed = -(-steps * batch_samples // epochs) + kept
    most = max(0, region) * epochs // batch_samples
    runs = f"{steps} steps of {batch_samples}" + (f" in {epochs} epochs" if epochs > 1 else "")
    kept_text = f" and {kept} for validation" if kept else ""
    more = f", set data.epochs: {-(-steps * batch_samples // region)} to read it so often" if region > 0 else ""
    shorter = ", training.batch_samples or training.validation_samples" if kept else " or training.batch_samples"
    raise HpxferError(
        f"{data_key}: {f'at {where}: ' if where else ''}must hold at least {needed} training samples for "
        f"{runs}{kept_text}, got {samples.num_train} at {name}; add data{more}, or lower {steps_key} (at most {most} "
        f"fit){shorter}"
    )


def _num_held_out(samples: Samples) -> int | None:
    """Return the samples that can be held out: those of the test split, else of the training split."""
    return samples.num_train if samples.num_test == 0 else samples.num_test


_COUNTED = 10_000  # samples of a source without end, of which the classes are counted
_MOST_COUNTS = 20  # counts that are listed one by one


def sample_facts(name: str) -> dict[str, Any] | None:
    """Return what is known of a source, in words and numbers, or None if it is not on this machine.

    Raise HpxferError if its files are broken. All samples are read.
    """
    samples = open_samples(name)
    if samples is None:
        return None
    facts = samples.facts
    out: dict[str, Any] = {
        "training samples": _endless(samples.num_train),
        "test samples": "none, so some training samples are held out"
        if samples.num_test == 0
        else _endless(samples.num_test),
        "inputs": f"{facts.num_inputs} ({' x '.join(map(str, facts.shape))})",
        "normalization": "none, real inputs are read as they are",
    }
    if samples.normalization is not None:
        mean, std = samples.normalization
        out["normalization"] = f"(pixel - {mean:.6g}) / {std:.6g}"
    if facts.num_classes:
        out["classes"] = facts.num_classes
        out["training samples per class"] = _counts(samples)
    else:
        out["targets"] = f"{facts.num_targets} real"
    out["digest"] = samples.digest()
    return out


def _endless(number: int | None) -> int | str:
    return "without end" if number is None else number


def _counts(samples: Samples) -> str:
    """Return how many training samples each class has."""
    num = _COUNTED if samples.num_train is None else samples.num_train
    counts = np.bincount(samples.train(0, 0, num, 0)[1], minlength=samples.facts.num_classes).tolist()
    of = f" in the first {num} of seed 0" if samples.num_train is None else ""
    if len(counts) <= _MOST_COUNTS:
        return ", ".join(map(str, counts)) + of
    least, most = min(counts), max(counts)
    return (str(least) if least == most else f"{least} to {most}") + of


def guessed(path: str) -> str | None:
    """Return the source that a path most likely is, by the names of files alone, or None."""
    folder = folder_at(path)
    if folder is None:
        kinds = ("npz" * path.endswith(".npz"), "idx" * ("idx3-ubyte" in os.path.basename(path)))
        return next((f"{kind}:{path}" for kind in kinds if kind and os.path.isfile(path)), None)
    names = os.listdir(folder)
    if any(map(idx.is_images, names)):
        return f"idx:{path}"
    return f"cifar:{path}" if any(map(cifar.is_one, names)) else None
