"""The estimate of an optimum against two other fits, on planted sweeps: `python tests/tools/estimators.py`.

Prints the root mean square error in octaves, and the bias towards large HPs, of the parabola with a shared cubic part
(the estimate), of the Akima spline, and of the fit with one curvature for all shapes. Only shapes whose optimum the
estimate puts inside the grid count, so that all three answer for the same ones.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Iterator, Sequence

import numpy as np
from other_fits import compared_optima
from planted_sweeps import Planted, plant

from hpxfer.verdict.estimate import estimate_all

SWEEPS = 200
NAMES = ("estimate", "Akima", "one curvature")
SCENARIOS = {
    "parabola": Planted(noise=0.003),
    "parabola, noise 0.01": Planted(noise=0.01),
    "asymmetric, 0.15 an octave": Planted(noise=0.003, asymmetry=0.15),
    "asymmetric, noise 0.01": Planted(noise=0.01, asymmetry=0.15),
    "curvature differs by 50%": Planted(noise=0.003, curvature_spread=0.4),
    "both": Planted(noise=0.003, curvature_spread=0.4, asymmetry=0.15),
    "a seed's luck is smooth": Planted(noise=0.003, luck=0.02, luck_slope=0.006),
    "coarse grid: 4 points at factor 4": Planted(noise=0.003, num_points=4, step=2.0),
    "all seeds diverge 1.5 octaves above": Planted(noise=0.003, cliff=1.5),
}


def errors(kind: Planted, sweeps: int) -> Iterator[tuple[float, float, float]]:
    """Yield the error of each fit, in octaves, at every shape of planted sweeps where all three have an answer."""
    for seed in range(sweeps):
        planted = plant(kind, seed)
        (estimates,) = estimate_all([planted.grid()])
        for shape in compared_optima(estimates):
            if shape.shared is not None:
                true = float(planted.optimum_I[shape.i])
                yield shape.estimate - true, shape.akima - true, shape.shared - true


def markdown(scenarios: dict[str, Planted], sweeps: int) -> str:
    """Return a table with a row per scenario: root mean square error and bias of each fit, in octaves."""
    lines = [
        "| planted | " + " | ".join(f"{name}: error (bias)" for name in NAMES) + " | shapes |",
        "| --- " * (len(NAMES) + 2) + "|",
    ]
    for name, kind in scenarios.items():
        found = np.array(list(errors(kind, sweeps)))
        cells = [f"{math.sqrt(float(np.mean(fit**2))):.3f} ({float(fit.mean()):+.3f})" for fit in found.T]
        lines.append(f"| {name} | " + " | ".join(cells) + f" | {len(found)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the errors of all scenarios as Markdown."""
    parser = argparse.ArgumentParser(prog="python tests/tools/estimators.py", description=main.__doc__)
    parser.add_argument("--sweeps", type=int, default=SWEEPS, help="planted sweeps per scenario")
    given = parser.parse_args(arguments)
    sys.stdout.write(markdown(SCENARIOS, given.sweeps) + "\n")


if __name__ == "__main__":
    main()
