"""Accept a GPU: prove the kernels on it and measure it, in slices of a budget, for `hpxfer bench accept`."""

from __future__ import annotations

import datetime
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeGuard

import torch

from hpxfer.bench.accept_items import Acceptance, runnable
from hpxfer.bench.accept_runner import Ended, State, run_items, states_of
from hpxfer.bench.goals import GOALS
from hpxfer.bench.machine import machine_of, versions_of
from hpxfer.errors import HpxferError
from hpxfer.host.json_lines import append_line, json_lines, require_appendable
from hpxfer.host.output import aligned
from hpxfer.plan.step_tokens import ACCEPT_FILE

# Exit codes. Bad input is 2.
PASSED, FAILED, UNFINISHED = 0, 1, 3
_PACKAGES = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, kw_only=True)
class Accepted:
    """What became of the chosen items."""

    ended: tuple[Ended, ...]
    numbers: tuple[dict[str, Any], ...]  # every line with a measured number, those of earlier runs too

    @property
    def code(self) -> int:
        """PASSED if all have passed, FAILED if one failed, UNFINISHED if none failed but some were skipped."""
        states = {one.state for one in self.ended}
        return FAILED if "failed" in states else UNFINISHED if "skipped" in states else PASSED


def accept(
    items: Sequence[Acceptance],
    *,
    budget_s: float,
    done: Sequence[Path],
    output: Path,
    untested: bool,
    tell: Callable[[str], None],
) -> Accepted:
    """Run the items on this machine's GPU and append each number to `output`. `tell` gets a line per item."""
    stamp = {"machine": machine_of(torch.device("cuda")), "versions": versions_of(torch.device("cuda"))}
    lines = earlier(done, output, stamp)
    require_appendable(output)
    kept: list[dict[str, Any]] = []

    def keep(line: dict[str, Any]) -> None:
        kept.append({**line, "date": _now(), **stamp})
        append_line(output, kept[-1])

    ended = []
    for one in run_items(
        [runnable(item) for item in items],
        budget_s=budget_s,
        before=states_of(lines),
        keep=keep,
        environment=child_environment(os.environ),
        untested=untested,
    ):
        ended.append(one)
        tell(f"{one.name}: {one.state} in {one.seconds:.0f} s" + (f": {one.reason}" if one.reason else ""))
    numbers = [line for line in [*lines, *kept] if "of" in line]
    return Accepted(ended=tuple(ended), numbers=tuple(numbers))


def earlier(done: Sequence[Path], output: Path, stamp: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the lines of earlier runs: of the `done` files, and of `output` where it was made on this machine's GPU
    with these versions. Raise HpxferError for a file that holds other lines.
    """
    lines: list[dict[str, Any]] = []
    for path in dict.fromkeys([*done, *([output] if output.exists() else [])]):
        for number, line in json_lines(path):
            if not isinstance(line, dict) or not ({"item", "of"} & set(line)):
                raise HpxferError(
                    f"{path}:{number}: must be a line of an acceptance, with `item` or `of`; name a file that "
                    "hpxfer bench accept wrote"
                )
            if path in done or all(line.get(key, value) == value for key, value in stamp.items()):
                lines.append(line)
    return lines


def child_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of an item: compiled kernels, deterministic cuBLAS, and this hpxfer."""
    path = os.pathsep.join(filter(None, (str(_PACKAGES), environment.get("PYTHONPATH", ""))))
    fixed = {"CUBLAS_WORKSPACE_CONFIG": ":4096:8", "TRITON_INTERPRET": "0", "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
    return {**environment, **fixed}


def output_file(output: Path) -> Path:
    """Return the file that `--output` names, itself or as its folder."""
    return output if output.suffix == ".jsonl" and not output.is_dir() else output / ACCEPT_FILE


def require_place(file: Path) -> None:
    """Raise HpxferError if the file could not be written. Nothing is made."""
    if file.exists():
        fits = file.is_file() and os.access(file, os.W_OK)
    else:
        folder = next(parent for parent in file.absolute().parents if parent.exists())
        fits = folder.is_dir() and os.access(folder, os.W_OK)
    if not fits:
        raise HpxferError(f"--output: {file}: cannot be written; name a .jsonl file or a folder that you may write")


def require_budget(seconds: float) -> float:
    """Return the budget. Raise HpxferError unless it is a positive number."""
    if not seconds > 0:
        raise HpxferError(f"--budget: must be a number of seconds above 0, got {seconds:g}; e.g. --budget 560")
    return seconds


def dry_text(items: Sequence[Acceptance]) -> str:
    """Return the items as a table: what each would need."""
    heads = ("item", "plan", "seconds", "GPU GiB", "depends on", "what")
    rows = [
        (item.name, item.plan, f"{item.usual_s:.0f}", f"{item.gib:g}", ", ".join(item.needs) or "-", _what(item))
        for item in items
    ]
    total = sum(item.usual_s for item in items)
    head = f"{len(items)} items, {total:.0f} s in all; seconds and memory are predicted from an NVIDIA H200"
    return "\n".join([head, *aligned([heads, *rows])])


def _what(item: Acceptance) -> str:
    """Return what an item does, with the reason if it cannot run here."""
    missing = runnable(item).missing
    tests = f"; pytest {' '.join(item.tests)}" if item.tests else ""
    return item.what + tests + (f" (skipped: {missing})" if missing else "")


def dry_rows(items: Sequence[Acceptance]) -> list[dict[str, Any]]:
    """Return the items for a program to read."""
    return [{**asdict(item), "missing": runnable(item).missing} for item in items]


def summary(accepted: Accepted) -> str:
    """Return a table of how the items ended, and one of the numbers that have a goal."""
    rows = [(one.name, one.state, f"{one.seconds:.0f} s", one.reason) for one in accepted.ended]
    counts: dict[State, int] = {"passed": 0, "failed": 0, "skipped": 0}
    for one in accepted.ended:
        counts[one.state] += 1
    parts = ["\n".join(aligned([("item", "state", "took", "why"), *rows]))]
    if found := list(goal_rows(accepted.numbers)):
        parts.append("\n".join(aligned([("what", "measured", "goal"), *found])))
    if speeds := list(speed_rows(accepted.numbers)):
        parts.append("\n".join(aligned([("item", "measured", "peak memory", "planned"), *speeds])))
    parts.append(", ".join(f"{count} {state}" for state, count in counts.items()))
    return "\n\n".join(parts)


def goal_rows(numbers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str]]:
    """Yield (what, measured, goal) of each goal of the GPU tables that the numbers reach to."""
    values = goal_values(numbers)
    for key, goal in GOALS.items():
        if key in values:
            aim = "" if goal.goal is None else f"{goal.goal:g}"
            yield f"{goal.what} ({goal.unit})", f"{values[key]:.3g}", aim


def speed_rows(numbers: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str]]:
    """Yield (item, tokens/s, peak memory, memory by the plan's model) of each rate and each peak."""
    last = {line["key"]: line for line in numbers if isinstance(line.get("key"), str)}
    for key, line in last.items():
        speed, peak, planned = (line.get(name) for name in ("tokens_per_s", "peak_gib", "planned_gib"))
        peak = line.get("allocated_gib", peak)
        if _finite(speed) or _finite(planned):
            yield (
                key,
                f"{speed / 1e6:.3g} M tokens/s" if _finite(speed) else "",
                *(f"{gib:.3g} GiB" if _finite(gib) else "" for gib in (peak, planned)),
            )


def goal_values(numbers: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return goal -> value. The last number of a key counts. Ratios are of rates from processes of their own."""
    last = {line["key"]: line for line in numbers if isinstance(line.get("key"), str)}
    found = {key: line["value"] for key, line in last.items() if key in GOALS and _finite(line.get("value"))}

    def rate(key: str, of: str = "tokens_per_s") -> float:
        value = last.get(key, {}).get(of)
        return float(value) if _finite(value) and value > 0 else math.nan

    made = {
        "base-32k": rate("r-base-32k") / 1e6,
        "base-64k": rate("r-base-64k") / 1e6,
        "twin-32k": rate("r-base-32k") / rate("r-base-32k-dense"),
        "strict": rate("r-strict-32k") / rate("r-base-32k"),
        "large-mfu": rate("r-large", "tflops") / rate("peak", "tflops"),
        "large-twin": rate("r-large") / rate("r-large-dense"),
        "stack-64": rate("r-stack-64") / rate("r-alone"),
    }
    return found | {key: value for key, value in made.items() if math.isfinite(value)}


def _finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and math.isfinite(value)


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
