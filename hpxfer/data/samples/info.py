"""Info on samples: how many there are, of which size and of which classes, and how their inputs are normalized."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from hpxfer.data.samples import open_samples
from hpxfer.data.samples.facts import Samples
from hpxfer.data.samples.formats import cifar, idx
from hpxfer.host.files import folder_at

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
