"""Samples: images and vectors with a class or real targets each, for families that read samples instead of tokens.

To add a source, write one file that holds a `SampleSource` and add its line here, or call `register_sample_source` in a
plug-in. `hpxfer.testing.sample_sources.SampleSourceSuite` holds a source to the rules.
"""

from __future__ import annotations

from hpxfer.data.samples.facts import Facts, Samples
from hpxfer.data.samples.row import SampleSource
from hpxfer.errors import HpxferError
from hpxfer.registry import Registry

SAMPLE_SOURCES: Registry[SampleSource] = Registry(
    "sample source",
    {
        "builtin": "hpxfer.data.samples.builtin:BUILTIN",
        "idx": "hpxfer.data.samples.formats.idx:IDX",
        "cifar": "hpxfer.data.samples.formats.cifar:CIFAR",
        "npz": "hpxfer.data.samples.formats.npz:NPZ",
        "images": "hpxfer.data.samples.formats.images:IMAGES",
    },
)
register_sample_source = SAMPLE_SOURCES.register


def sample_source_of(name: str) -> SampleSource:
    """Return the sample source of a name such as `npz:FILE`. Raise HpxferError if its prefix is unknown."""
    return SAMPLE_SOURCES.get(name.partition(":")[0], "data.source")


def open_samples(name: str, only: tuple[int, ...] = ()) -> Samples | None:
    """Return the samples that a sweep names, of the classes in `only`, or None if they are not on this machine.

    Raise HpxferError if their files exist and cannot be used.
    """
    found = sample_source_of(name).open(name.partition(":")[2])
    if found is None or not only:
        return found
    if max(only) >= found.facts.num_classes:
        got = f"{max(only)} of {found.facts.targets} in {name}"
        raise HpxferError(
            f"data.only: must name classes from 0 to the number of classes less one, got {got}; correct it"
        )
    return found.only(only)


__all__ = [
    "SAMPLE_SOURCES",
    "Facts",
    "SampleSource",
    "Samples",
    "open_samples",
    "register_sample_source",
    "sample_source_of",
]
