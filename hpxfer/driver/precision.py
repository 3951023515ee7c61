"""Which precision the trials of a sweep have: what its results folder began with, else what the device chooses.

`prepare` asks here before it makes any trial. Nothing after it sees `auto`: neither ids, workers nor the stored sweep.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from hpxfer.errors import HpxferError
from hpxfer.plan.packing import Device
from hpxfer.plan.precision import Precision
from hpxfer.spec import SweepSpec
from hpxfer.spec.precision import AUTO, precision_on
from hpxfer.store import Store
from hpxfer.store.location import ResultsLocation
from hpxfer.store.sweep_file import stored_sweep


def precision_of(spec: SweepSpec, device: Device, location: ResultsLocation, address: str | None) -> Precision:
    """Return the precision of a sweep's trials, which the device at `address` will train into `location`."""
    chosen = precision_on(cuda=device.cuda)
    began = begun_with(location.folder) if spec.precision == AUTO else None
    return Precision(
        asked=spec.precision,
        value=(began or chosen) if spec.precision == AUTO else spec.precision,
        on_device=chosen,
        device=_spelled(device, address),
        began=began,
        folder=location.where,
    )


def begun_with(folder: Path) -> str | None:
    """Return the precision that a results folder began with, or None if nothing has begun there.

    Its sweep.yaml says it, which a run writes before it trains. If that file is damaged, the stored trials say it.
    """
    stored = stored_sweep(folder)
    if stored is not None and stored.precision != AUTO:
        return stored.precision
    rows = Store.open(folder, write=False).read_trials(["precision"])
    counts = Counter(value for value in rows["precision"].to_pylist() if value is not None)
    return max(counts, key=lambda value: counts[value], default=None)


def require_same(precision: Precision, folder: Path) -> None:
    """Raise HpxferError if another run has begun in the folder with another precision since this one was prepared."""
    began = begun_with(folder) if precision.is_auto else None
    if began not in (None, precision.value):
        raise HpxferError(
            f"precision: {precision.folder} has begun with {began} in the meantime, and this run was planned in "
            f"{precision.value}; give the same command again to go on with {began}"
        )


def _spelled(device: Device, address: str | None) -> str:
    what = (device.name or "CUDA") if device.cuda else "CPU"
    if address is None:
        return what
    return f"{what} of the Ray cluster" + ("" if address == "auto" else f" at {address}")
