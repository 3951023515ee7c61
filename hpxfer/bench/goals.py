"""Goals: the rows of each table with what they should reach, in the order of the tables. The module needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hpxfer.bench.moe_sizes import sizes
from hpxfer.plan.speeds import Kind, Row

# The size of a trial in every CPU row: two blocks, four experts of which one is active, 512 tokens per step, one
# thread.
WIDTHS = (32, 64, 128, 256)


@dataclass(frozen=True)
class Goal:
    """One row of a table: what is measured, its goal, and what other codes reach.

    A row has either a `goal`, which is a lower bound, or `at_most`, which is an upper one, or none.
    """

    key: str
    what: str
    unit: str
    goal: float | None = None
    at_most: float | None = None
    reference: str = ""  # what other codes reach


_RATIOS = dict(zip(WIDTHS, (4.0, 3.0, 2.0, 1.5), strict=True))
_SHARES = {32: (0.41, None, "0.28: a plain prototype"), 128: (0.63, None, "0.53: a plain prototype")}
_TWIN = "base over its dense twin of equal active FLOPs"
_MOE = "MoE layer forward and backward over F.grouped_mm"
_EXPERTS = "experts forward and backward over a loop over experts, K = 16"
_STACK, _STACKED = "64 trials of d 128, 4 layers", "stacked over one at a time"
_SAMPLES = "its stack of 16 over a plain way with batched experts"
_WORKER = "one persistent worker with stacks over cold processes one by one"

CUDA_TRAINER = (
    Goal(
        "base-32k",
        "base trial (d 512, 8 layers, E4A1, vocabulary 50304, context 1024), 32k tokens a step",
        "M tokens/s",
        1.6,
        reference="1.67: dense 50M, vocabulary 8192, H100; 0.46: GPT-2 124M; predicted: 1.46, tied 1.53",
    ),
    Goal("base-64k", "base trial, 64k tokens a step", "M tokens/s", 1.6, reference="as above"),
    Goal("twin-32k", f"{_TWIN}, 32k", "of tokens/s", 0.95, reference="0.76: nanochat; predicted: 0.94"),
    Goal("twin-64k", f"{_TWIN}, 64k", "of tokens/s", 0.95, reference="0.76: nanochat"),
    Goal("large-mfu", "d 2048, 16 layers, E4A1, 2.1B in all, 64k tokens a step", "MFU", 0.45),
    Goal("large-twin", "the same over its dense twin of equal active FLOPs", "of tokens/s", 0.85),
    Goal("stack-64", f"{_STACK}, 8k tokens a step: {_STACKED}", "x trials/hour", 4.5, reference="predicted: 3 to 4.5"),
    Goal("stack-64-2k", f"{_STACK}, 2k tokens a step: {_STACKED}", "x trials/hour", 8.0, reference="predicted: 8"),
    Goal("strict", "base trial, 32k: strict over fast", "of the speed", 0.9, reference="predicted: 0.6 to 0.7"),
)
CUDA_KERNELS = (
    Goal("layer-512", f"{_MOE}, d = h = 512, 64k tokens", "x", 1.5, reference="predicted: 1.6 to 2.0"),
    Goal("layer-1024", f"{_MOE}, d = h = 1024, 64k tokens", "x", 1.2),
    Goal("layer-2048", f"{_MOE}, d = h = 2048, 64k tokens", "x", 1.2, reference="predicted: 1.05 to 1.2"),
    Goal("rate-2048", "the same at 2048", "TFLOP/s", 500.0, reference="413: pure Triton, H100; predicted: 450 to 500"),
    Goal("cross-entropy", "cross entropy and its gradient in place, 16k x 50304, bf16", "of copy bandwidth"),
    Goal("adamw", "AdamW of 64 trials, 28 bytes a parameter", "of copy bandwidth"),
    Goal("routing", "routing of 64k tokens to 4 experts", "us"),
)
# Of Sonic DCMoE on an H100, over a dense SwiGLU FFN of 81.0 ms (2605.23893, Fig. 7).
_FIG_7 = {"cuda-capacity-8": 1.08, "cuda-capacity-256": 1.20, "cuda-granularity-2": 1.04, "cuda-granularity-64": 1.67}


def _moe(device: Kind) -> tuple[Goal, ...]:
    """Return the rows of the latency of a MoE layer. None has a goal."""
    return tuple(
        Goal(size.key, size.what, "x", reference=f"{_FIG_7[size.key]}: Sonic DCMoE, H100" if size.key in _FIG_7 else "")
        for size in sizes(device)
    )


_TABLES: Mapping[tuple[str, Kind], tuple[Goal, ...]] = {
    ("trainer", "cpu"): (
        *(
            Goal(f"machine-{w}", f"width {w}: trials/s of all cores, stacks of 16 over the plain way", "x", _RATIOS[w])
            for w in WIDTHS
        ),
        *(Goal(f"ratio-{w}", f"width {w}: the same of one core, one thread each", "x", _RATIOS[w]) for w in WIDTHS),
        *(
            Goal(f"share-{w}", f"width {w}: model FLOP/s over the float32 matmul peak", "of peak", *_SHARES.get(w, ()))
            for w in WIDTHS
        ),
        *(Goal(f"mixtral-{w}", f"width {w}: a small Mixtral, its stack of 16 over its plain way", "x") for w in WIDTHS),
        Goal("samples-32", f"MLP mixture, width 32: {_SAMPLES}", "x", 4.5),
        Goal("samples-128", f"MLP mixture, width 128: {_SAMPLES}", "x", 2.2),
        Goal("samples-list-128", "the same over a loop over the experts", "x", 5.0),
        Goal("samples-share-128", "the same: model FLOP/s over the float32 matmul peak", "of peak", 0.5),
    ),
    ("trainer", "cuda"): CUDA_TRAINER,
    ("kernels", "cpu"): tuple(Goal(f"experts-{w}", f"width {w}: {_EXPERTS}", "x") for w in WIDTHS),
    ("kernels", "cuda"): CUDA_KERNELS,
    ("moe", "cpu"): _moe("cpu"),
    ("moe", "cuda"): _moe("cuda"),
    ("sweep", "cpu"): (
        Goal("sweep-cpu", f"8 trials of width 32 and 200 steps: {_WORKER}", "x"),
        Goal("sweep-cpu-2000", "the same, extrapolated to 2,000 steps", "x"),
        Goal(
            "ray-trial",
            "one of 2,000 trials that do nothing, a stack each, through our Ray executor, Ray's own start included",
            "ms",
            at_most=10.0,
        ),
        Goal(
            "ray-tune",
            "one of 100 trials that do nothing through plain Ray Tune (reuse_actors) over the same, Ray being there",
            "x",
            20.0,
        ),
        Goal("store-load", "loading 20,010 trials and their curves of 256 points and more", "s", at_most=2.0),
        Goal("store-rerun", "`hpxfer plan` of those 20,010, all done, start-up included", "s", at_most=3.0),
        Goal(
            "store-memory",
            "the driver's peak, 100,020 trials planned and 20,010 stored, over 120 planned",
            "MB",
            at_most=200.0,
        ),
    ),
    ("sweep", "cuda"): (
        Goal("sweep-cuda", f"8 base trials, 200 steps of 32k tokens: {_WORKER}", "x", 1.5),
        Goal("sweep-cuda-2000", "the same, extrapolated to 2,000 steps", "x"),
    ),
}
GOALS = {goal.key: goal for table in _TABLES.values() for goal in table}


def goals(bench: str, device: Kind) -> tuple[Goal, ...]:
    """Return the rows of one table, in order."""
    return _TABLES[bench, device]


def measured(key: str, value: float, *, note: str = "", numbers: Mapping[str, float] | None = None) -> Row:
    """Return the measured row of the goal with this key."""
    goal = GOALS[key]
    return Row(key=key, what=goal.what, value=value, unit=goal.unit, note=note, numbers=numbers or {})
