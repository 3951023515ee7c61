"""Kernels of a run: refuse what cannot train before anything is written, and say what is for debugging only."""

from __future__ import annotations

import importlib.util
import itertools

from hpxfer.errors import HpxferError
from hpxfer.kernels.size_limits import has_pipeline
from hpxfer.kernels.usable import DEBUGGING_AID, NOT_INSTALLED, interpreted, refusal
from hpxfer.plan.footprint import FLOAT_BYTES
from hpxfer.plan.packing import Device
from hpxfer.spec import SweepSpec


def kernels_caution(spec: SweepSpec, device: Device, vocab_size: int, address: str | None) -> str | None:
    """Return what a plan says about the kernels of a run on a device, or None. The precision must be decided."""
    if device.cuda and spec.resources.kernels == "torch" and spec.training.determinism != "strict":
        return f"resources.kernels: torch is {DEBUGGING_AID}; give auto to train"
    return _refusal(spec, device, address) or _of_vocabulary(spec, device, vocab_size)


def require_kernels(spec: SweepSpec, device: Device, address: str | None) -> None:
    """Raise HpxferError if a device cannot have the kernels that the sweep asks for.

    What the nodes of the cluster at `address` have installed is unknown here. Their workers check it.
    """
    if text := _refusal(spec, device, address):
        raise HpxferError(text)


def _of_vocabulary(spec: SweepSpec, device: Device, vocab_size: int) -> str | None:
    """Return the caution about a vocabulary whose readout is slow in the strict kernels of a GPU, or None."""
    size = FLOAT_BYTES[spec.precision]
    if not device.cuda or spec.training.determinism != "strict" or has_pipeline(vocab_size, size):
        return None
    larger = next(number for number in itertools.count(vocab_size) if has_pipeline(number, size))
    return (
        f"data: the readout of a vocabulary of {vocab_size} is slow with determinism: strict in {spec.precision} on a "
        f"GPU: its rows are no whole 8-byte copies; pad the vocabulary to {larger}, or give determinism: fast"
    )


def _refusal(spec: SweepSpec, device: Device, address: str | None) -> str | None:
    strict = (spec.training.determinism or ("fast" if device.cuda else "strict")) == "strict"
    return refusal(spec.resources.kernels, cuda=device.cuda, strict=strict, missing=_missing(device, address))


def _missing(device: Device, address: str | None) -> str | None:
    if not device.cuda:
        return None if interpreted() else "the device is cpu"
    return NOT_INSTALLED if address is None and importlib.util.find_spec("triton") is None else None
