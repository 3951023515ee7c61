"""Goals: the rows of each table with what they should reach, in the order of the tables. The module needs no torch."""

from __future__ import annotations

from dataclasses import dataclass

from hpxfer.plan.speeds import Kind

# The size of a trial in every CPU row: two blocks, four experts of which one is active, 512 tokens per step, one
# thread.
WIDTHS = (32, 64, 128, 256)


@dataclass(frozen=True, kw_only=True)
class Goal:
    """One row of a table: what is measured, its goal, and what other codes reach.

    A row has either a `goal`, which is a lower bound, or `at_most`, which is an upper one, or none.
    """

    key: str
    bench: str
    device: Kind
    what: str
    unit: str
    goal: float | None = None
    at_most: float | None = None
    reference: str = ""  # what other codes reach


def _cpu_trainer() -> tuple[Goal, ...]:
    ratios = dict(zip(WIDTHS, (4.0, 3.0, 2.0, 1.5), strict=True))
    shares = {32: (0.41, "0.28: a plain prototype"), 128: (0.63, "0.53: a plain prototype")}
    return (
        *(
            Goal(
                key=f"machine-{width}",
                bench="trainer",
                device="cpu",
                what=f"width {width}: trials/s of all cores, stacks of 16 over the plain way",
                unit="x",
                goal=ratios[width],
            )
            for width in WIDTHS
        ),
        *(
            Goal(
                key=f"ratio-{width}",
                bench="trainer",
                device="cpu",
                what=f"width {width}: the same of one core, one thread each",
                unit="x",
                goal=ratios[width],
            )
            for width in WIDTHS
        ),
        *(
            Goal(
                key=f"share-{width}",
                bench="trainer",
                device="cpu",
                what=f"width {width}: model FLOP/s over the float32 matmul peak",
                unit="of peak",
                goal=shares.get(width, (None, ""))[0],
                reference=shares.get(width, (None, ""))[1],
            )
            for width in WIDTHS
        ),
    )


def _cuda_trainer(key: str, what: str, unit: str, goal: float | None, reference: str = "") -> Goal:
    return Goal(key=key, bench="trainer", device="cuda", what=what, unit=unit, goal=goal, reference=reference)


CUDA_TRAINER = (
    _cuda_trainer(
        "base-32k",
        "base trial (d 512, 8 layers, E4A1, vocabulary 50304, context 1024), 32k tokens a step",
        "M tokens/s",
        1.6,
        "1.67: dense 50M, vocabulary 8192, H100; 0.46: GPT-2 124M",
    ),
    _cuda_trainer("base-64k", "base trial, 64k tokens a step", "M tokens/s", 1.6, "as above"),
    _cuda_trainer(
        "twin-32k", "base over its dense twin of equal active FLOPs, 32k", "of tokens/s", 0.95, "0.76: nanochat"
    ),
    _cuda_trainer(
        "twin-64k", "base over its dense twin of equal active FLOPs, 64k", "of tokens/s", 0.95, "0.76: nanochat"
    ),
    _cuda_trainer("large-mfu", "d 2048, 16 layers, E4A1, 2.1B in all, 64k tokens a step", "MFU", 0.45),
    _cuda_trainer("large-twin", "the same over its dense twin of equal active FLOPs", "of tokens/s", 0.85),
    _cuda_trainer(
        "stack-64", "64 trials of d 128, 4 layers, 8k tokens: stacked over one at a time", "x trials/hour", 8.0
    ),
    _cuda_trainer("strict", "base trial, 32k: strict over fast", "of the speed", 0.9),
)


def _cpu_kernels() -> tuple[Goal, ...]:
    what = "experts forward and backward over a loop over experts, K = 16"
    return tuple(
        Goal(key=f"experts-{width}", bench="kernels", device="cpu", what=f"width {width}: {what}", unit="x")
        for width in WIDTHS
    )


def _cuda_kernels(key: str, what: str, unit: str, goal: float | None = None, reference: str = "") -> Goal:
    return Goal(key=key, bench="kernels", device="cuda", what=what, unit=unit, goal=goal, reference=reference)


CUDA_KERNELS = (
    _cuda_kernels("layer-512", "MoE layer forward and backward over F.grouped_mm, d = h = 512, 64k tokens", "x", 1.5),
    _cuda_kernels("layer-2048", "MoE layer forward and backward over F.grouped_mm, d = h = 2048, 64k tokens", "x", 1.5),
    _cuda_kernels("rate-2048", "the same at 2048", "TFLOP/s", 420.0, "413: pure Triton, H100"),
    _cuda_kernels("cross-entropy", "cross entropy and its gradient in place, 16k x 50304, bf16", "of copy bandwidth"),
    _cuda_kernels("adamw", "AdamW of 64 trials, 28 bytes a parameter", "of copy bandwidth"),
    _cuda_kernels("routing", "routing of 64k tokens to 4 experts", "us"),
)

SWEEPS = (
    Goal(
        key="sweep-cpu",
        bench="sweep",
        device="cpu",
        what="8 trials of width 32 and 200 steps: one persistent worker with stacks over cold processes one by one",
        unit="x",
    ),
    Goal(
        key="sweep-cpu-2000",
        bench="sweep",
        device="cpu",
        what="the same, extrapolated to 2,000 steps",
        unit="x",
    ),
    Goal(
        key="sweep-cuda",
        bench="sweep",
        device="cuda",
        what="8 base trials, 200 steps of 32k tokens: one persistent worker with stacks over cold processes one by one",
        unit="x",
        goal=1.5,
    ),
    Goal(
        key="sweep-cuda-2000",
        bench="sweep",
        device="cuda",
        what="the same, extrapolated to 2,000 steps",
        unit="x",
    ),
)

RAY = (
    Goal(
        key="ray-trial",
        bench="sweep",
        device="cpu",
        what="one of 2,000 trials that do nothing, a stack each, through our Ray executor, Ray's own start included",
        unit="ms",
        at_most=10.0,
    ),
    Goal(
        key="ray-tune",
        bench="sweep",
        device="cpu",
        what="one of 100 trials that do nothing through plain Ray Tune (reuse_actors) over the same, Ray being there",
        unit="x",
        goal=20.0,
    ),
)

STORES = tuple(
    Goal(key=key, bench="sweep", device="cpu", what=what, unit=unit, at_most=at_most)
    for key, what, unit, at_most in (
        ("store-load", "loading 20,010 trials and their curves of 256 points and more", "s", 2.0),
        ("store-rerun", "`hpxfer plan` of those 20,010, all done, start-up included", "s", 3.0),
        (
            "store-memory",
            "the driver's peak, 100,020 trials planned and 20,010 stored, over 120 planned",
            "MB",
            200.0,
        ),
    )
)

GOALS: tuple[Goal, ...] = (*_cpu_trainer(), *CUDA_TRAINER, *_cpu_kernels(), *CUDA_KERNELS, *SWEEPS, *RAY, *STORES)


def goals(bench: str, device: Kind) -> tuple[Goal, ...]:
    """Return the rows of one table, in order."""
    return tuple(goal for goal in GOALS if (goal.bench, goal.device) == (bench, device))


def goal_of(key: str) -> Goal:
    """Return the goal of this key."""
    return next(goal for goal in GOALS if goal.key == key)
