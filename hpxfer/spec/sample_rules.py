"""Sample rules: the section `data` of a family that reads samples, and what the samples state about themselves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hpxfer.registry import registry
from hpxfer.spec.data_section import DataSpec
from hpxfer.spec.fields import Problem
from hpxfer.spec.source_kind import SAMPLES, source_kind

SAMPLE_KEYS = ("inputs", "classes", "targets", "only")
_TOKEN_KEYS = ("tokenizer", "vocab_size", "eos_id")


def sample_problems(data: DataSpec, family: str) -> Iterator[Problem]:
    """Yield the broken rules of the keys that say what a sample is. No rule touches the data."""
    for key in _TOKEN_KEYS:
        if (given := getattr(data, key)) is not None:
            yield ("data", key), f"goes with tokens, and the family {family} reads samples, got {given}; take it out"
    if data.documents != "joined":
        yield ("data", "documents"), f"goes with tokens, and the family {family} reads samples; take it out"
    # Classes that are filled in are those of data.only, so a broken data.only is the one thing to mend.
    if broken := list(_only_problems(data)):
        yield from broken
    elif data.inputs is None:
        yield (
            ("data", "inputs"),
            f"must be given where the samples are not on this machine, and {data.source} names none here; correct the "
            "path, or give inputs, and classes or targets",
        )
    elif (data.classes is None) == (data.targets is None):
        got = "neither" if data.classes is None else "both"
        yield ("data", "classes"), f"a sample has either one of several classes or real targets, got {got}; give one"
    elif data.classes is not None and data.classes < 2:
        yield ("data", "classes"), f"must be at least 2, got {data.classes}; name samples of several classes"


def _only_problems(data: DataSpec) -> Iterator[Problem]:
    if data.only is None:
        return
    at = ("data", "only")
    if len(data.only) < 2 or len(set(data.only)) < len(data.only):
        yield at, f"must name at least two different classes, got {list(data.only)}"
    elif data.targets is not None:
        yield at, "chooses classes, but these samples have real targets; take it out"
    elif data.classes is not None and data.classes != len(data.only):
        yield (
            ("data", "classes"),
            f"must be the {len(data.only)} classes of data.only, got {data.classes}; remove the key",
        )


def token_problems(data: DataSpec, family: str) -> Iterator[Problem]:
    """Yield the keys of samples that are given for a family that reads tokens."""
    for key in SAMPLE_KEYS:
        if getattr(data, key) is not None:
            yield ("data", key), f"goes with samples, and the family {family} reads tokens; take it out"


def stated_by_samples(data: DataSpec, folder: Path) -> dict[str, Any]:
    """Return what the samples that are the source state, of the keys that are not given.

    A relative source starts at `folder`. The result is empty if the source names no samples on this machine. Raise
    HpxferError if their files cannot be read.
    """
    has_targets = data.classes is not None or data.targets is not None
    if source_kind(data.source) != SAMPLES or (data.inputs is not None and has_targets):
        return {}
    prefix, _, rest = data.source.partition(":")
    row = registry(SAMPLES).get(prefix)
    if not rest or "\0" in rest or row.problem(rest) is not None:
        return {}
    samples = row.open(str(folder / rest) if row.is_path else rest)
    if samples is None:
        return {}
    facts = samples.facts
    found = {"inputs": facts.num_inputs}
    if not has_targets:  # beside those that are given, the others would only look like a second choice
        classes = len(data.only) if data.only and facts.num_classes else facts.num_classes
        found |= {"classes": classes, "targets": facts.num_targets}
    return {key: number for key, number in found.items() if number and getattr(data, key) is None}
