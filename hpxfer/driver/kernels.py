"""Kernels of a run: refuse what cannot train before anything is written, and say what is for debugging only."""

from __future__ import annotations

import importlib.util

from hpxfer.errors import HpxferError
from hpxfer.kernels.usable import DEBUGGING_AID, NOT_INSTALLED, interpreted, refusal
from hpxfer.plan.packing import Device
from hpxfer.spec import SweepSpec


def kernels_caution(spec: SweepSpec, device: Device, address: str | None) -> str | None:
    """Return what a plan says about the kernels of a run on a device, or None."""
    if device.cuda and spec.resources.kernels == "torch" and spec.training.determinism != "strict":
        return f"resources.kernels: torch is {DEBUGGING_AID}; give auto to train"
    return _refusal(spec, device, address)


def require_kernels(spec: SweepSpec, device: Device, address: str | None) -> None:
    """Raise HpxferError if a device cannot have the kernels that the sweep asks for.

    What the nodes of the cluster at `address` have installed is unknown here. Their workers check it.
    """
    if text := _refusal(spec, device, address):
        raise HpxferError(text)


def _refusal(spec: SweepSpec, device: Device, address: str | None) -> str | None:
    strict = (spec.training.determinism or ("fast" if device.cuda else "strict")) == "strict"
    return refusal(spec.resources.kernels, cuda=device.cuda, strict=strict, missing=_missing(device, address))


def _missing(device: Device, address: str | None) -> str | None:
    if not device.cuda:
        return None if interpreted() else "the device is cpu"
    return NOT_INSTALLED if address is None and importlib.util.find_spec("triton") is None else None
