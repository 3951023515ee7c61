"""Plans, stacks and snapshots that no run made, for tests of what is shown of runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tiny_trials import SETTING, trial

from hpxfer.plan.plan import Batch, Plan, ShapePlan
from hpxfer.progress.status import RunningStack, RunStatus, ShapeProgress
from hpxfer.scaling.shape import Shape
from hpxfer.trial.stack import Stack


@dataclass
class Clock:
    """A clock that moves when told."""

    now: float = 0.0

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def planned(counts: Mapping[Shape, tuple[int, int]]) -> Plan:
    """Return a plan of (trials, done) by shape; a trial takes a worker a second."""
    shapes = tuple(
        ShapePlan(
            shape=shape,
            num_trials=trials,
            num_done=done,
            num_stacks=trials - done,
            stack_size=1,
            stack_bytes=2**20,
            gpu_share=0.0,
            params_total=10,
            params_active=10,
            tokens=(trials - done) * 100,
            flops=1e6,
            trial_s=1.0,
            is_measured=False,
            batch=Batch(tokens=100, piece_tokens=100, lanes=1, micro_batch_tokens=100, recompute=False),
        )
        for shape, (trials, done) in counts.items()
    )
    return Plan(sweep="made", shapes=shapes, workers=2, rate_from="here")


def stack_of(shape: Shape, size: int, lr: float = 0.01) -> Stack:
    return Stack(trials=tuple(trial(SETTING, shape, seed=seed, lr=lr) for seed in range(size)))


NONE = dict.fromkeys(("num_stored", "finished", "diverged", "stopped", "failed", "running"), 0)
STACK = {"num_trials": 8, "host": "node-1", "pid": 123, "step": 30, "steps": 100, "running_s": 12.0}
STATUS = {"sweep": "made", "at_most": False, "elapsed_s": 60.0, "num_left": 10, "finished": 1, "diverged": 1}
STATUS |= {"stopped": 0, "failed": 1, "tokens": 6000, "tokens_per_s": 100.0, "eta_s": 8.0, "running": ()}


def shape_progress(label: str = "w16 d1", **changed: object) -> ShapeProgress:
    return ShapeProgress(**{"label": label, "num_trials": 10, **NONE, "best_loss": None, "best": "", **changed})


def running_stack(label: str = "w16 d1", **changed: object) -> RunningStack:
    return RunningStack(**{"id": label, "label": label, **STACK, "alive": 8, "loss_nats": 2.5, **changed})


def run_status(**changed: object) -> RunStatus:
    return RunStatus(**{**STATUS, "shapes": (shape_progress(),), **changed})
