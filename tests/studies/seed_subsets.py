"""Do few seeds of a real sweep contradict all of them? `python tests/studies/seed_subsets.py --output results/bench`.

Planted worlds are only as foreign as those who made them. So each published sweep with a verdict is judged again from
subsets of its seeds: a subset may leave the verdict open, but it must not say the opposite of all seeds.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from record import ROOT, head, keep, table

from hpxfer.analysis import transfer_report
from hpxfer.errors import HpxferError
from hpxfer.results import Results, load_results

PUBLISHED = ROOT / "results" / "published"
SIZES = 2, 3, 4  # with more seeds, subsets share most of their runs
MOST = 20  # subsets of one size
COLUMNS = ("sweep", "arm", "axis", "all seeds", "seeds of a subset", "subsets", "decided", "the opposite")
Line = tuple[str, str]  # an arm and an axis


def verdicts(results: Results, seeds: Sequence[int]) -> dict[Line, str]:
    """Return the verdict of every arm along every axis, judged from these seeds alone."""
    of_seeds = replace(results, spec=results.spec.model_copy(update={"seeds": tuple(seeds)}))
    report = transfer_report(of_seeds)
    return {(found.parameterization, found.axis): found.verdict for found in report.findings}


def rows_of(name: str, results: Results) -> Iterator[dict[str, Any]]:
    """Yield a row per decided line of a sweep and size of subset."""
    seeds = sorted(set(results.spec.seeds))
    whole = {line: verdict for line, verdict in verdicts(results, seeds).items() if verdict != "undecided"}
    for size in (size for size in SIZES if whole and size < len(seeds)):
        subsets = list(itertools.combinations(seeds, size))
        drawn = random.Random(0).sample(subsets, min(MOST, len(subsets)))
        found = [verdicts(results, subset) for subset in drawn]
        for line, verdict in whole.items():
            said = Counter(one[line] for one in found)
            decided = said["transfers"] + said["drifts"]
            values = (name, *line, verdict, size, len(found), decided, decided - said[verdict])
            yield dict(zip(COLUMNS, values, strict=True))


def measured() -> list[dict[str, Any]]:
    """Return the rows of all published sweeps that have trials and a line."""
    rows: list[dict[str, Any]] = []
    for folder in sorted(path.parent for path in PUBLISHED.glob("*/trials.parquet")):
        results = load_results(folder)
        try:
            rows += rows_of(folder.name, results)
        except HpxferError as error:  # e.g. a sweep that scans two HPs at once
            sys.stderr.write(f"{folder.name}: {error}\n")
    return rows


def summary(entry: dict[str, Any]) -> str:
    """Return a row per size of subset, and the command."""
    sizes = sorted({row[COLUMNS[4]] for row in entry["rows"]})
    sums = [
        [str(size), *(str(sum(row[name] for row in entry["rows"] if row[COLUMNS[4]] == size)) for name in COLUMNS[5:])]
        for size in sizes
    ]
    return table(COLUMNS[4:], sums) + f"\n\n{entry['date']}, hpxfer {entry['hpxfer']}: `{entry['command']}`."


def main(arguments: Sequence[str] | None = None) -> None:
    """Judge subsets of seeds and print the counts as Markdown. With a folder, append them to its seed_subsets.jsonl."""
    parser = argparse.ArgumentParser(prog="python tests/studies/seed_subsets.py", description=main.__doc__)
    parser.add_argument("--output", type=Path, help="folder")
    words = sys.argv[1:] if arguments is None else arguments
    given = parser.parse_args(words)
    entry = {**head("seed_subsets", words, "numpy", "scipy"), "rows": measured()}
    keep(entry, given.output, "seed_subsets")
    sys.stdout.write(summary(entry) + "\n")


if __name__ == "__main__":
    main()
