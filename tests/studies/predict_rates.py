"""How often the loss lies within the predicted interval, on planted laws and on published results.

`python tests/studies/predict_rates.py` plants laws that no part of the prediction knows (`predict_worlds`), and holds
out the largest size of every published axis. Two simpler methods answer the same questions: a constant gain per
doubling, and a single power law above a floor.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from predict_worlds import Planted, planted
from record import ROOT, head, keep, table
from scipy import stats

from hpxfer.analysis.statistics.scaling_fit import fit_power, pooled_noise
from hpxfer.prediction import loss_at
from hpxfer.results import load_results
from hpxfer.search.verdict_rules import judged_by, rules_of
from hpxfer.verdict.loss_grid import ShapeLosses
from hpxfer.verdict.report import judge_line
from hpxfer.verdict.thresholds import PREDICT_SHAPES, PREDICTED

OURS, CONSTANT, POWER = "hpxfer", "constant gain per doubling", "one power law above a floor"
LAWS, DRAW = 200, 7
PUBLISHED = ROOT / "results" / "published"
Interval = tuple[float, float]
Method = Callable[[Sequence[ShapeLosses], float, float], Interval | None]  # sizes, HP, scale -> interval of one run


def ours(rows: Sequence[ShapeLosses], value: float, scale: float) -> Interval | None:
    """Return the interval of `hpxfer recipe predict`; None if it says that the loss cannot be said."""
    found = loss_at(rows, "lr", value, scale).forecast
    return None if found is None else (found.low, found.high)


def constant_gain(rows: Sequence[ShapeLosses], value: float, scale: float) -> Interval | None:
    """Return the interval of a straight line over log2 scale, by the noise of seeds alone."""
    x, y, noise, num = _sizes(rows, value)
    dx, at = x - x.mean(), math.log2(scale) - x.mean()
    predicted = y.mean() + float(dx @ y) / float(dx @ dx) * at
    lever = 1 + (1 / x.size + at**2 / float(dx @ dx)) / num
    half = float(stats.norm.ppf((1 + PREDICTED) / 2)) * noise * math.sqrt(lever)
    return predicted - half, predicted + half


def one_power(rows: Sequence[ShapeLosses], value: float, scale: float) -> Interval | None:
    """Return the interval of the law that reports fit, floor + height * scale^-exponent, by its bootstrap; or None."""
    x, y, noise, num = _sizes(rows, value)
    freedom = sum(len(row.cells[0].losses) - 1 for row in rows)
    fit = fit_power(x, y, np.full(x.size, noise / math.sqrt(num)), freedom)
    if fit.at_end:
        return None  # as in a report: there is no such law
    draws = fit.loss(math.log2(scale))[1:]
    draws = draws + noise * fit.widened * np.random.default_rng(1).standard_t(fit.freedom, draws.size)
    low, high = np.quantile(draws, [(1 - PREDICTED) / 2, (1 + PREDICTED) / 2])
    return float(low), float(high)


METHODS: Mapping[str, Method] = {OURS: ours, CONSTANT: constant_gain, POWER: one_power}


def _sizes(rows: Sequence[ShapeLosses], value: float) -> tuple[Any, Any, float, int]:
    cells = [row.cell(value) for row in rows]
    losses = [cell.losses for cell in cells if cell is not None]
    noise, _ = pooled_noise(losses)
    assert noise is not None
    x = np.log2([row.scale for row in rows])
    return x, np.array([np.mean(of_size) for of_size in losses]), noise, len(losses[0])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """One question and the answer of one method. Losses in nats."""

    group: str
    truth: float | None  # the noise-free loss; None if it is not known
    runs: tuple[float, ...]  # the losses of the runs at the target
    gain: float  # of the last measured doubling
    interval: Interval | None

    def inside(self, loss: float) -> bool:
        return self.interval is not None and self.interval[0] <= loss <= self.interval[1]


def rates(found: Sequence[Asked]) -> dict[str, Any]:
    """Return how many laws and runs lie inside, and the median width in nats and in gains of the last doubling."""
    said = [asked for asked in found if asked.interval is not None]
    widths = [asked.interval[1] - asked.interval[0] for asked in said if asked.interval]
    truths = [asked for asked in said if asked.truth is not None]
    return {
        "asked": len(found),
        "said": len(said),
        "laws": len(truths),
        "laws_inside": sum(bool(asked.inside(asked.truth)) for asked in truths if asked.truth is not None),
        "runs": sum(len(asked.runs) for asked in said),
        "runs_inside": sum(bool(asked.inside(run)) for asked in said for run in asked.runs),
        "width_nats": float(np.median(widths)) if widths else None,
        "width_gains": float(np.median([w / abs(a.gain) for w, a in zip(widths, said, strict=True)]))
        if widths
        else None,
    }


def of_laws(laws: Iterable[Planted], method: Method) -> list[Asked]:
    """Return the answers of a method to planted laws."""
    return [
        Asked(
            group="beyond" if law.beyond > 1 else "between",
            truth=law.truth,
            runs=(law.run,),
            gain=law.gain,
            interval=method(law.rows, law.value, law.target),
        )
        for law in laws
    ]


@dataclass(frozen=True, kw_only=True)
class HeldOutSize:
    """The largest size of a published axis, and the others."""

    name: str
    rows: tuple[ShapeLosses, ...]  # without it
    value: float  # the HP that the others transfer
    scale: float
    losses: tuple[float, ...]
    verdict: str  # of the others


def held_out_sizes(folder: Path = PUBLISHED) -> Iterator[HeldOutSize]:
    """Yield every axis of published results with at least four sizes, the largest held out and the rest judged anew."""
    for path in sorted(folder.iterdir()):
        if not (path / "sweep.yaml").exists():
            continue
        results = load_results(path)
        if all(len(axis.points) < 4 for axis in results.expansion.axes):
            continue  # known before its cells are, of which a search of several HPs has thousands
        line = results.line()
        for (axis, label), of_axis in line.groupby(["axis", "parameterization"]):
            scales = sorted(set(of_axis["scale"]))
            if len(scales) < 4:
                continue
            kept, hp = of_axis[of_axis["scale"] < scales[-1]], results.spec.judged_hp
            judged = judge_line(kept, sweep="", hp=hp, loss=judged_by(results.spec), rules=rules_of(results.spec))
            (finding,) = judged.report.findings
            value = finding.base_value
            held = of_axis[(of_axis["scale"] == scales[-1]) & (of_axis["value"] == value)]
            assert value is not None
            yield HeldOutSize(
                name=f"{path.name}: {axis}, {label}",
                rows=judged.estimates[0].grid.rows,
                value=value,
                scale=scales[-1],
                losses=tuple(held["loss"].dropna()),
                verdict=finding.verdict,
            )


def of_published(sizes: Iterable[HeldOutSize], method: Method) -> list[Asked]:
    """Return the answers of a method to held-out sizes. hpxfer says nothing where the HP drifts, nor do the others.

    Where a run diverged nothing is said, and there is no gain to compare with.
    """
    out = []
    for size in sizes:
        last, before = (np.mean(row.cell(size.value).losses) for row in (size.rows[-1], size.rows[-2]))  # type: ignore[union-attr]
        told = size.verdict != "drifts" and np.isfinite(last) and np.isfinite(before)
        interval = method(size.rows, size.value, size.scale) if told else None
        gain = float(before - last) / math.log2(size.rows[-1].scale / size.rows[-2].scale) if told else math.nan
        out.append(Asked(group="published", truth=None, runs=size.losses, gain=gain, interval=interval))
    return out


def measured(laws: int = LAWS, draw: int = DRAW) -> dict[str, dict[str, Any]]:
    """Return group -> method -> rates."""
    planted_laws = [planted(seed, draw) for seed in range(laws)]
    sizes = list(held_out_sizes())
    out: dict[str, dict[str, Any]] = {}
    for name, method in METHODS.items():
        found = of_laws(planted_laws, method)
        groups = {
            "planted laws": found,
            "planted, beyond the measured shapes": [asked for asked in found if asked.group == "beyond"],
            "planted, between them": [asked for asked in found if asked.group == "between"],
            "planted, three shapes": [
                asked for law, asked in zip(planted_laws, found, strict=True) if len(law.rows) == PREDICT_SHAPES
            ],
            "published, the largest shape held out": of_published(sizes, method),
        }
        for group, of_group in groups.items():
            out.setdefault(group, {})[name] = rates(of_group)
    return out


def rates_table(entry: Mapping[str, Any]) -> str:
    """Return a record as Markdown."""

    def share(part: int, whole: int) -> str:
        return f"{part} of {whole} ({part / whole:.0%})" if whole else "-"

    rows = [
        (
            group,
            name,
            share(found["laws_inside"], found["laws"]),
            share(found["runs_inside"], found["runs"]),
            "-" if found["width_nats"] is None else f"{found['width_nats']:.3f}",
            "-" if found["width_gains"] is None else f"{found['width_gains']:.2f}",
            str(found["asked"] - found["said"]),
        )
        for group, methods in entry["groups"].items()
        for name, found in methods.items()
    ]
    heads = ("targets", "method", "laws inside", "runs inside", "width, nats", "width, gains", "cannot be said")
    return table(heads, rows) + f"\n\n{entry['date']}, hpxfer {entry['hpxfer']}: `{entry['command']}`."


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the rates and print them as Markdown. With a folder, append them to its predict_rates.jsonl."""
    parser = argparse.ArgumentParser(prog="python tests/studies/predict_rates.py", description=main.__doc__)
    parser.add_argument("--laws", type=int, default=LAWS, help="planted laws")
    parser.add_argument("--draw", type=int, default=DRAW, help="another number draws other laws")
    parser.add_argument("--output", type=Path, help="folder")
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    entry = {**head("predict_rates", words, "numpy", "scipy"), "groups": measured(given.laws, given.draw)}
    keep(entry, given.output, "predict_rates")
    sys.stdout.write(rates_table(entry) + "\n")


if __name__ == "__main__":
    main()
