"""The cost of one verdict: what a search says of a sweep and spends on it, beside what the whole grid says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from verdict_cost_cases import Case
from verdict_cost_paths import Point

from hpxfer.search.protocol import Outcome
from hpxfer.search.verdict_doubts import doubts
from hpxfer.search.verdict_lines import all_flops
from hpxfer.search.verdict_rounds import Look, Rounds
from hpxfer.verdict.findings import Verdict
from hpxfer.verdict.rules import Rules

RULES = Rules(error=0.02)


@dataclass(frozen=True, kw_only=True)
class Cost:
    """One sweep: the verdicts on the judged line and on its control, from the grid and by the search."""

    name: str
    seed: int
    of_grid: tuple[Verdict, ...]
    of_search: tuple[Verdict | None, ...]  # None: not asked for
    share: float  # of the grid's FLOPs
    num_looks: int
    path: tuple[tuple[float, float], ...]  # (share of the grid's FLOPs, doubt about the judged line) at each look
    truly_transfers: bool | None = None  # the HP that the grid transfers; None if the truth is not known
    grid_is_wrong: bool | None = None  # about the judged line
    search_is_wrong: bool | None = None
    paths: dict[str, list[Point]] = field(default_factory=dict)  # of each kind of search, where they are asked for

    @property
    def decided(self) -> bool:
        """Whether the grid decides the judged line."""
        return self.of_grid[0] != "undecided"

    @property
    def same(self) -> bool:
        """Whether the search says of the judged line what the grid says."""
        return self.of_search[0] == self.of_grid[0]


def play(case: Case, rules: Rules = RULES) -> list[Look]:
    """Return the looks of a search that may train the whole grid."""
    rounds = Rounds(case.lines, budget=len(all_flops(case.lines)), rules=rules)
    played = rounds.play()
    looks = [next(played)]
    known: dict[str, Outcome] = {}
    while looks[-1].trials:
        known.update((trial.id, case.outcomes[trial.id]) for trial in looks[-1].trials)
        try:
            looks.append(played.send(known))
        except StopIteration as stop:
            looks.append(stop.value)
    return looks


def cost_of(case: Case, rules: Rules = RULES) -> Cost:
    """Return what a verdict on one sweep costs."""
    flops = all_flops(case.lines)
    total = sum(flops.values())
    whole = doubts([line.grid(case.outcomes, flops) for line in case.lines], rules)
    of_grid = tuple(doubt.verdict for doubt in whole)
    looks = play(case, rules)
    asked, path = 0.0, []
    for look in looks:
        path += [(asked / total, one.doubt.size) for one in look.lines if one.line is case.lines[0]]
        asked += sum(flops[trial.id] for trial in look.trials)
    found = {one.line: one for one in looks[-1].lines}
    last = [found.get(line) for line in case.lines]
    of_search = tuple(None if one is None else one.doubt.verdict if one.decided else "undecided" for one in last)
    findings = (whole[0].finding, None if last[0] is None else last[0].doubt.finding)
    wrong = [
        _is_wrong(verdict, case.truly_transfers(finding)) if finding else None
        for verdict, finding in zip((of_grid[0], of_search[0]), findings, strict=True)
    ]
    return Cost(
        truly_transfers=case.truly_transfers(whole[0].finding),
        name=case.name,
        seed=case.seed,
        of_grid=of_grid,
        of_search=of_search,
        share=asked / total,
        num_looks=len(path),
        path=tuple(path),
        grid_is_wrong=wrong[0],
        search_is_wrong=wrong[1],
    )


def _is_wrong(verdict: Verdict | None, truly_transfers: bool | None) -> bool | None:
    return None if truly_transfers is None else verdict == ("drifts" if truly_transfers else "transfers")


def row_of(costs: Sequence[Cost]) -> dict[str, Any]:
    """Return the numbers that the table shows. A share of nothing is None."""
    decided, rest = ([cost for cost in costs if cost.decided is said] for said in (True, False))
    controls = [cost for cost in costs if cost.of_search[1] is not None and cost.of_grid[1] != "undecided"]
    known = [cost for cost in costs if cost.truly_transfers is not None]
    out: dict[str, Any] = {"sweeps": len(costs), "decided_by_grid": len(decided)}
    out["same_verdict"] = _share([cost.same for cost in decided])
    out["other_verdict"] = _share([not cost.same and cost.of_search[0] != "undecided" for cost in decided])
    out["same_control"] = _share([cost.of_search[1] == cost.of_grid[1] for cost in controls])
    out["decided_by_search"] = sum(cost.of_search[0] not in (None, "undecided") for cost in costs)
    for name, found in (("decided", decided), ("undecided", rest)):
        shares = [cost.share for cost in found]
        for at, quantile in (("median", 0.5), ("p90", 0.9), ("largest", 1.0)):
            out[f"{name}_{at}"] = round(float(np.quantile(shares, quantile)), 4) if shares else None
    for name, truly in (("false_transfers", False), ("false_drifts", True)):
        of_truth = [cost for cost in known if cost.truly_transfers is truly]
        out[f"{name}_grid"] = _share([bool(cost.grid_is_wrong) for cost in of_truth])
        out[f"{name}_search"] = _share([bool(cost.search_is_wrong) for cost in of_truth])
    out["looks"] = round(float(np.mean([cost.num_looks for cost in costs])), 2)
    return out


def _share(found: Sequence[bool]) -> float | None:
    return round(sum(found) / len(found), 4) if found else None
