"""Goals: the rows of each table with what they should reach and what other codes reach, in the order of the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpxfer.bench.clock import Times, median
from hpxfer.bench.rates import CPU_WIDTHS
from hpxfer.host.output import aligned
from hpxfer.plan.speeds import Record, Row, latest

UNMEASURED = "unmeasured"
HEADINGS = ("what", "measured", "goal", "elsewhere")


@dataclass(frozen=True)
class Goal:
    """One row of a table: what is measured, its goal, which is a lower bound, and what other codes reach."""

    key: str
    what: str
    unit: str
    goal: float | None = None
    reference: str = ""
    at_most: bool = False  # the goal is an upper bound


_SAMPLES = "its stack of 16 over a plain way with batched experts"
_TWIN = "over its dense twin of equal active FLOPs"
_MOE = "MoE layer forward and backward over F.grouped_mm"
_STACK = "64 trials of d 128, 4 layers, 8k tokens a step: stacked over one at a time"
_RAY = "of {} trials that do nothing"


def _widths(key: str, what: str, goals: Sequence[Any] = (None,) * 4, unit: str = "x") -> list[Goal]:
    given = ((w, goal if isinstance(goal, tuple) else (goal,)) for w, goal in zip(CPU_WIDTHS, goals, strict=True))
    return [Goal(f"{key}-{w}", f"width {w}: {what}", unit, *goal) for w, goal in given]


# A token's active width stays 8 x 128 = 1024 at width 256. Along capacity the experts become more. Along granularity
# they become more and smaller, and a token uses more of them: key -> (axis, experts, active).
MOE_SIZES = {f"cpu-capacity-{count}": ("capacity", count, 8) for count in (8, 16, 32, 64, 128)} | {
    f"cpu-granularity-{active}": ("granularity", 8 * active, active) for active in (2, 4, 8, 16, 32)
}
_MOE_WHAT = "{}: E{}A{} h{} over a dense SwiGLU FFN of width 1024, forward and backward"
_TRAINER = [
    *_widths("machine", "trials/s of all cores, stacks of 16 over the plain way", (4.0, 3.0, 2.0, 1.5)),
    *_widths("ratio", "the same of one core, one thread each", (4.0, 3.0, 2.0, 1.5)),
    *_widths(
        *("share", "model FLOP/s over the float32 matmul peak"),
        ((0.41, "0.28: a plain prototype"), None, (0.63, "0.53: a plain prototype"), None),
        "of peak",
    ),
    *_widths("mixtral", "a small Mixtral, its stack of 16 over its plain way"),
    Goal("samples-32", f"MLP mixture, width 32: {_SAMPLES}", "x", 4.5),
    Goal("samples-128", f"MLP mixture, width 128: {_SAMPLES}", "x", 2.2),
    Goal("samples-list-128", "the same over a loop over the experts", "x", 5.0),
    Goal("samples-share-128", "the same: model FLOP/s over the float32 matmul peak", "of peak", 0.5),
]
_SWEEP = [
    Goal(
        "sweep-cpu",
        "8 trials of width 32 and 200 steps: one persistent worker with stacks over cold processes one by one",
        "x",
    ),
    Goal("sweep-cpu-2000", "the same, extrapolated to 2,000 steps", "x"),
    Goal(
        "ray-trial",
        f"one {_RAY.format('2,000')}, a stack each, through our Ray executor, Ray's own start included",
        *("ms", 10.0, "", True),
    ),
    Goal(
        "ray-tune",
        f"one {_RAY.format('100')} through plain Ray Tune (reuse_actors) over the same, Ray being there",
        *("x", 20.0),
    ),
    Goal("store-load", "loading 20,010 trials and their curves of 256 points and more", "s", 2.0, at_most=True),
    Goal("store-rerun", "`hpxfer plan` of those 20,010, all done, start-up included", "s", 3.0, at_most=True),
    Goal(
        "store-memory",
        "the driver's peak, 100,020 trials planned and 20,010 stored, over 120 planned",
        *("MB", 200.0, "", True),
    ),
]
TABLES = {
    "trainer": ("The trainer on a CPU", _TRAINER),
    "kernels": (
        "Kernels on a CPU",
        _widths("experts", "experts forward and backward over a loop over experts, K = 16"),
    ),
    "moe": (
        "A MoE layer on a CPU",
        [Goal(key, _MOE_WHAT.format(axis, n, a, 1024 // a), "x") for key, (axis, n, a) in MOE_SIZES.items()],
    ),
    "sweep": ("A sweep on a CPU", _SWEEP),
}
GPU = (
    Goal(
        "base-32k",
        "base trial (d 512, 8 layers, E4A1, vocabulary 50304, context 1024), 32k tokens a step",
        *("M tokens/s", 1.6),
        "1.67: dense 50M, vocabulary 8192, H100; 0.46: GPT-2 124M; predicted: 1.46, tied 1.53",
    ),
    Goal("base-64k", "base trial, 64k tokens a step", "M tokens/s", 1.6, "as above"),
    Goal("twin-32k", f"base {_TWIN}, 32k", "of tokens/s", 0.95, "0.76: nanochat; predicted: 0.94"),
    Goal("large-mfu", "d 2048, 16 layers, E4A1, 2.1B in all, 64k tokens a step", "MFU", 0.45),
    Goal("large-twin", f"the same {_TWIN}", "of tokens/s", 0.85),
    Goal("stack-64", _STACK, "x trials/hour", 4.5, "predicted: 3 to 4.5"),
    Goal("strict", "base trial, 32k: strict over fast", "of the speed", 0.9, "predicted: 0.6 to 0.7"),
    Goal("layer-512", f"{_MOE}, d = h = 512, 64k tokens", "x", 1.5, "predicted: 1.6 to 2.0"),
    Goal("layer-1024", f"{_MOE}, d = h = 1024, 64k tokens", "x", 1.2),
    Goal("layer-2048", f"{_MOE}, d = h = 2048, 64k tokens", "x", 1.2, "predicted: 1.05 to 1.2"),
    Goal("rate-2048", "the same at 2048", "TFLOP/s", 500.0, "413: pure Triton, H100; predicted: 450 to 500"),
    Goal("cross-entropy", "cross entropy and its gradient in place, 16k x 50304, bf16", "of copy bandwidth"),
    Goal("adamw", "AdamW of 64 trials, 28 bytes a parameter", "of copy bandwidth"),
    Goal("routing", "routing of 64k tokens to 4 experts", "us"),
)
_GOALS = {goal.key: goal for goals in (*(rows for _, rows in TABLES.values()), GPU) for goal in goals}


def ms_of(times: Times, *names: str) -> dict[str, float]:
    """Return NAME_ms -> the median milliseconds of these jobs, or of all."""
    return {f"{name}_ms": 1000 * median(times, name) for name in names or times}


def measured(key: str, value: float, *, note: str = "", numbers: Mapping[str, float] | None = None) -> Row:
    """Return the measured row of the goal with this key."""
    goal = _GOALS[key]
    return Row(key=key, what=goal.what, value=value, unit=goal.unit, note=note, numbers=numbers or {})


def table_text(bench: str, record: Record) -> str:
    """Return one table for a terminal, then notes on what bounds its rows."""
    title, goals = TABLES[bench]
    cells = aligned([HEADINGS, *_cells(goals, record.rows)])
    return "\n".join([f"{title}: {record.provenance()}", *cells, *(f"  {note}" for note in _notes(record.rows))])


def bench_markdown(folder: Path) -> str:
    """Return the tables of the latest run of every benchmark in `folder`, that of a GPU at the end."""
    parts = []
    for bench, (title, goals) in TABLES.items():
        record = latest(folder, bench, "cpu")
        rows = () if record is None else record.rows
        notes = "".join(f"- {note}.\n" for note in _notes(rows))
        by = f"{record.provenance()}." if record else f"{UNMEASURED}: `python tests/bench/run_bench.py {bench}`."
        parts += [_markdown(title, _cells(goals, rows)), *([notes.rstrip()] if notes else []), by]
    path = folder / "accept.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
    gpus = sorted({str(line["machine"]["gpu"]) for line in lines})
    found = [measured(key, value) for key, value in goal_values(lines).items()]
    gpu = f"The last of {', '.join(gpus) or 'no GPU'}; the others: `python tests/bench/accept.py`."
    return "\n\n".join([*parts, _markdown("On a GPU", _cells(GPU, found)), gpu])


def goal_values(numbers: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return goal -> value of the lines of an acceptance. The last number of a key counts. Ratios are of rates from
    processes of their own.
    """
    last = {line["key"]: line for line in numbers if isinstance(line.get("key"), str)}
    found = {key: line["value"] for key, line in last.items() if key in _GOALS and finite(line.get("value"))}

    def rate(key: str, of: str = "tokens_per_s") -> float:
        value = last.get(key, {}).get(of)
        return float(value) if finite(value) and value > 0 else math.nan

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


def finite(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def gpu_rows(numbers: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the lines of the table of the goals that the numbers of an acceptance reach to."""
    found = goal_values(numbers)
    rows = [measured(key, value) for key, value in found.items()]
    return list(aligned([HEADINGS, *_cells([goal for goal in GPU if goal.key in found], rows)]))


def _markdown(title: str, cells: Iterable[Sequence[str]]) -> str:
    lines = [f"| {' | '.join(row)} |" for row in (HEADINGS, ["---"] * len(HEADINGS), *cells)]
    return "\n".join([f"**{title}**", "", *lines])


def _cells(goals: Sequence[Goal], found: Sequence[Row]) -> Iterator[tuple[str, str, str, str]]:
    """Yield the cells of every goal of a table, then those of the measured rows that have no goal."""
    rows = {row.key: row for row in found}
    for goal in goals:
        row = rows.pop(goal.key, None)
        aim = "" if goal.goal is None else ("at most " if goal.at_most else "") + _value(goal.goal, goal.unit)
        yield goal.what, UNMEASURED if row is None else _value(row.value, row.unit), aim, goal.reference
    for row in rows.values():
        yield row.what, _value(row.value, row.unit), "", ""


def _notes(rows: Iterable[Row]) -> Iterator[str]:
    """Yield the note of each row, or, if it has none, the numbers that it was computed from."""
    for row in rows:
        numbers = (f"{name.replace('_', ' ')} {_number(value)}" for name, value in row.numbers.items())
        if detail := row.note or ", ".join(numbers):
            yield f"{row.what}: {detail}"


def _value(value: float, unit: str) -> str:
    return f"{_number(value)}{'' if unit.startswith('x') else ' '}{unit}"


def _number(value: float) -> str:
    """Return three digits, without an exponent below a million."""
    return f"{value:.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"
