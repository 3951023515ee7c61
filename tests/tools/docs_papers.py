"""docs/papers.md: every figure and table of the four papers, from sweeps/papers/figures.yaml, with the cost of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from docs_markdown import anchor, table

from hpxfer.data import data_ref
from hpxfer.plan import Plan, hardware_named, make_plan
from hpxfer.spec.load import load_sweep
from hpxfer.trial import Expansion

FIGURES = "sweeps/papers/figures.yaml"
PRICE = 3.0  # dollars per hour of an H200; what a cloud asks differs
FOUND = {
    "agrees": "agrees",
    "sign": "same sign",
    "mixed": "mixed",
    "unseen": "not seen",
    "contradicts": "contradicts",
    "cannot": "cannot be asked",
}
KEYS = {"figure", "claim", "found", "text", "sweep", "command", "results", "picture", "full"}


def papers(root: Path) -> list[dict[str, Any]]:
    """Return the papers with their rows."""
    found: list[dict[str, Any]] = yaml.safe_load((root / FIGURES).read_text(encoding="utf-8"))
    return found


def papers_markdown(root: Path) -> str:
    """Return a summary of all papers, then a section with a table per paper."""
    every = papers(root)
    rows = []
    for paper in every:
        counts = Counter(row["found"] for row in paper["rows"])
        link = f"[{paper['title']}](#{anchor(paper['title'])})"
        rows.append((link, str(counts.total()), *(str(counts[key]) for key in FOUND)))
    return "\n\n".join([table(("paper", "rows", *FOUND.values()), rows), *(section(root, paper) for paper in every)])


def section(root: Path, paper: Mapping[str, Any]) -> str:
    """Return the heading, the source, a link to each row, and the table of one paper."""
    named = [(anchor(f"{paper['title']} {row['figure']}"), row) for row in paper["rows"]]
    jumps = ", ".join(f"[{row['figure']}](#{name})" for name, row in named)
    rows = [
        (f'<a id="{name}"></a>{paper["title"]}, {row["figure"]}', *_row(root, paper["paper"], row))
        for name, row in named
    ]
    headings = ("figure", "the paper's claim", "found", "run it, and at the paper's size")
    return f"## {paper['title']}\n\n{paper['source']}.\n\n{jumps}.\n\n{table(headings, rows)}"


def _row(root: Path, paper: str, row: Mapping[str, str]) -> tuple[str, ...]:
    """Return the cells of a row beside its name."""
    found = f"**{FOUND[row['found']]}**. {row['text']}"
    if "results" in row:
        found += f" `results/published/{row['results']}`"
    if "picture" in row:  # below the text, as a column of its own would be too narrow to see anything
        picture = f"images/papers/{row['picture']}"
        found += f'<br><a href="{picture}"><img src="{picture}" width="360"></a>'
    sweep = _toy(root / f"sweeps/{row['sweep']}.yaml", root) if "sweep" in row else ""
    run = f"`{row['command']}`" if "command" in row else sweep
    full = [_full(root, paper, row["full"])] if "full" in row else []
    return row["claim"], found, "<br><br>".join([run, *full])


def _toy(file: Path, root: Path) -> str:
    spec = load_sweep(file)
    counts = (f"{len(spec.seeds)} seed{'s' if len(spec.seeds) > 1 else ''}", f"{spec.training.steps:,} steps")
    return f"`{file.relative_to(root)}`: {', '.join(counts)}"


def _full(root: Path, paper: str, name: str) -> str:
    hours = plan_of(root / "sweeps/papers" / paper / f"{name}.yaml", "h200").gpu_hours
    cost = f"{hours:,.0f} GPU-hours, ${hours * PRICE:,.0f}" if hours >= 1 else "under a GPU-hour"
    return f"`sweeps/papers/{paper}/{name}.yaml`: {cost}"


def plan_of(file: Path, hardware: str) -> Plan:
    """Return the plan of a sweep on some hardware."""
    spec = load_sweep(file)
    expansion = Expansion(spec, data_ref(spec.data))
    return make_plan(expansion, (), hardware=hardware_named(hardware))
