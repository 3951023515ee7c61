"""How far a limit is from finite networks, in standard errors.

Extrapolation to infinite width (finite_net.py) is fair where what is left, d / n^2, is small at the widths used. It is
not near the edge of stability, nor for muP in regime III with a large down projection, whose widths below 256 are far
from the limit. The cases of the tests were chosen to avoid both.
"""

from __future__ import annotations

import fcntl
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from hashlib import sha256
from typing import Any

import numpy as np
from finite_net import Estimate, estimates, extrapolated
from recorded import RECORDING, RECORDS, digest_of

from hpxfer.limit import Given, Network
from hpxfer.limit.layers import SERIES, Pass
from hpxfer.limit.network import ROLES

Passes = Callable[..., list[Pass]]
Estimates = dict[str, Estimate]
# Differences below are rounding, of numbers of order one that 10 million additions made.
ROUNDING = 1e-9
RECORD = RECORDS / "finite_networks.json"


def limit_of(passes: Passes, network: Network, given: Given, *, sites: int = 8192, seeds: int = 4) -> Estimates:
    """Return the solver's series, mean over its seeds."""
    solves = [passes(network, given, sites=sites, seed=seed) for seed in range(seeds)]
    return estimates({name: np.array([[each.numbers[name] for each in solve] for solve in solves]) for name in SERIES})


def finite(
    network: Network, given: Given, widths: Sequence[int], seeds: int, frozen: tuple[str, ...] = ()
) -> Estimates:
    """Return what networks of two widths say of the limit: recorded, as they share no code with the solver.

    They are trained again where the question, finite_net.py, torch or numpy is another one than in the record, and
    `HPXFER_RECORD=1` records that.
    """
    constants = {role: (network.std(role), network.rate(role)) for role in ROLES}
    asked = [asdict(network), constants, asdict(given), list(widths), seeds, frozen]
    question = json.dumps(asked, default=np.ndarray.tolist)
    key, inputs = sha256(question.encode()).hexdigest()[:16], digest_of(("tests/limit/finite_net.py",), [question])
    known = records().get(key, {"inputs": ""})
    if known["inputs"] == inputs:
        return {name: Estimate(*map(np.array, series)) for name, series in known["series"].items()}
    found = extrapolated(network, given, widths, seeds, frozen)
    if RECORDING:
        series = {name: [each.mean.tolist(), each.error.tolist()] for name, each in found.items()}
        records({key: {"inputs": inputs, "series": series}})
    return found


def records(new: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the record, after adding to it. Processes of tests may do so at once."""
    with RECORD.open("a+" if RECORDING else "r") as file:
        fcntl.flock(file, fcntl.LOCK_EX if RECORDING else fcntl.LOCK_SH)
        file.seek(0)
        known: dict[str, Any] = json.loads(file.read() or "{}")
        if new:
            file.truncate(0)
            lines = (f'"{key}": {json.dumps(each)}' for key, each in sorted({**known, **new}.items()))
            file.write("{\n" + ",\n".join(lines) + "\n}\n")
        return known


def deviations(limit: Estimates, truth: Estimates) -> dict[str, np.ndarray]:
    """Return z of every series and pass: 0 where both are the same number."""
    out = {}
    for name, one in limit.items():
        error = np.hypot(np.hypot(truth[name].error, one.error), ROUNDING)
        out[name] = (truth[name].mean - one.mean) / error
    return out


def worst(z: dict[str, np.ndarray]) -> float:
    """Return the largest |z|. A number that is not finite agrees with nothing."""
    return max(float(np.abs(np.nan_to_num(values, nan=np.inf)).max()) for values in z.values())
