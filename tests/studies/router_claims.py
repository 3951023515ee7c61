"""What Why Routers Freeze says of routers, and what is measured: `python tests/studies/router_claims.py`.

Each claim of `router_claim_list` is trained at four widths with several seeds. It is `seen` if the slope lies within
0.15 of what the paper says and half the width of its interval is at most that. It is `not seen` if the whole interval
lies farther away. Where only a fall is claimed, it is seen if width and size are ranked against each other.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from record import head, keep, table
from router_claim_list import Claim, claims
from scipy import stats

from hpxfer.coordinates.measure import MIN_SCALES, TOLERANCE, Observation, Slope, judge, slope_of
from hpxfer.coordinates.mlp.observe import of_trials
from hpxfer.coordinates.mlp.own import OwnData

WIDTHS, SEEDS = (64, 128, 256, 512), 8
SHORT, MORE = 2, 3  # a run of at most 2 steps has 3 times as many seeds: they scatter more under sp, and cost little
ALPHA = 0.05


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What is measured for a claim."""

    claim: Claim
    sizes: tuple[float, ...]  # RMS over seeds, by width
    slope: Slope | None
    dropped: int  # widths that are left out of the slope, because a seed has exactly zero there
    falls: bool | None  # whether Kendall's rank correlation of width and size is surely negative; None: open

    @property
    def verdict(self) -> str:
        """Return `seen`, `not seen` or `unclear`."""
        if self.claim.exponent is None:  # a size that falls to zero, at no stated rate
            return "unclear" if self.falls is None else "seen" if self.falls else "not seen"
        if self.slope is None:
            return "unclear"
        found = judge(self.slope, self.claim.exponent, TOLERANCE, self.claim.bound)
        return {"ok": "seen", "miss": "not seen"}.get(found, "unclear")

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        claim, slope = self.claim, self.slope
        return {
            "id": claim.id,
            "says": claim.says,
            "run": claim.run.label(),
            "role": claim.role,
            "quantity": claim.quantity,
            "step": claim.step,
            "exponent": claim.exponent,
            "bound": claim.bound,
            "slope": None if slope is None else [slope.value, slope.low, slope.high],
            "sizes": [size if math.isfinite(size) else None for size in self.sizes],
            "dropped": self.dropped,
            "verdict": self.verdict,
        }


def measured(asked: Iterable[Claim], widths: Sequence[int] = WIDTHS, seeds: int = SEEDS) -> list[Seen]:
    """Return what is seen of the claims. Every run is trained once."""
    out: list[Seen] = []
    for run, of_run in itertools.groupby(sorted(asked, key=lambda claim: repr(claim.run)), key=lambda claim: claim.run):
        data = OwnData(options=run.options)
        found: list[Observation] = []
        count = seeds * (MORE if run.steps <= SHORT else 1)
        for width in widths:
            found += of_trials(run.trials(width, count), scale=float(width), steps=run.steps, data=data)
        for claim in of_run:
            place = (claim.quantity, claim.role, claim.step)
            out.append(_seen(claim, [seen for seen in found if (seen.quantity, seen.role, seen.step) == place]))
    return out


def _seen(claim: Claim, found: Sequence[Observation]) -> Seen:
    assert found, f"nothing measures {claim.quantity} of {claim.role}"
    kept = [seen for seen in found if all(math.isfinite(value) and value > 0 for value in seen.values)]
    slope = None
    if len(kept) >= MIN_SCALES:
        slope = slope_of([seen.scale for seen in kept], [seen.values for seen in kept])
    return Seen(
        claim=claim,
        sizes=tuple(math.sqrt(sum(value**2 for value in seen.values) / len(seen.values)) for seen in found),
        slope=slope,
        dropped=len(found) - len(kept),
        falls=_falls(found),
    )


def _falls(found: Sequence[Observation]) -> bool | None:
    """Return whether sizes fall with the width, by ranks: sizes that span ten decades have no mean worth the name."""
    pairs = [(seen.scale, value) for seen in found for value in seen.values if math.isfinite(value)]
    tau = stats.kendalltau(*zip(*pairs, strict=True))
    return None if tau.pvalue > ALPHA or math.isnan(tau.pvalue) else bool(tau.statistic < 0)


def claims_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return what is seen as Markdown."""

    def cells(row: dict[str, Any]) -> tuple[str, ...]:
        slope, sizes = row["slope"], row["sizes"]
        shown = "-" if slope is None else "{:+.2f} [{:+.2f}, {:+.2f}]".format(*slope)
        said = "falls" if row["exponent"] is None else f"{row['exponent']:+g}"
        said = {"equal": "", "at least": ">= ", "at most": "<= "}[row["bound"]] + said
        if row["exponent"] is None:
            shown = "ranks"
        ends = ", ".join("not finite" if size is None else f"{size:.2g}" for size in (sizes[0], sizes[-1]))
        zeros = (
            f", {row['dropped']} widths with zeros left out" if row["dropped"] and row["exponent"] is not None else ""
        )
        return row["id"], row["says"], row["run"], str(row["step"]), said, shown + zeros, ends, row["verdict"]

    heads = ("id", "claim", "model", "step", "exponent", "slope of log width, 95%", "smallest, largest width", "")
    return table(heads, [cells(row) for row in rows])


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the claims and print them as Markdown. With a folder, append them to its router_claims.jsonl."""
    parser = argparse.ArgumentParser(prog="python tests/studies/router_claims.py", description=main.__doc__)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--output", type=Path, help="folder")
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    torch.set_num_threads(1)
    order = list(claims())
    rows = sorted(measured(order, seeds=given.seeds), key=lambda seen: order.index(seen.claim))
    entry = {
        **head("router_claims", words, "torch"),
        "widths": list(WIDTHS),
        "seeds": given.seeds,
        "claims": [seen.to_dict() for seen in rows],
    }
    keep(entry, given.output, "router_claims")
    sys.stdout.write(claims_table(entry["claims"]) + "\n")


if __name__ == "__main__":
    main()
