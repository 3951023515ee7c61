"""The memory of a stack, by a model: its state, and the tensors that the backward pass keeps."""

from __future__ import annotations

from hpxfer.kernels.head_limits import KEPT_BYTES, held_bytes
from hpxfer.model.cost import count_params
from hpxfer.registry import registry
from hpxfer.scaling.shape import Shape
from hpxfer.trial import Setting

FLOAT_BYTES = {"float32": 4, "bfloat16": 2}
# Peak memory of a stack over the memory that it holds for long. Measured on a CPU: 1.16, 1.28, 1.31 and 1.43 at widths
# 64 to 512 (depth 2, E4A1, stacks of 4 to 16, above an idle worker; AMD EPYC, torch 2.13, 2026-11). Unmeasured on a
# GPU.
PEAK = 1.5


def stack_bytes(shape: Shape, setting: Setting, num_trials: int, *, cuda: bool) -> int:
    """Return the bytes that a stack of `num_trials` needs.

    The estimate counts, per token and block, the norms, projections, hidden features and branches, and the logits that
    the head holds at once, all in the precision of the computation. It multiplies the sum by PEAK.
    """
    body, logits = _trial(shape, setting)
    return int(PEAK * (num_trials * body + held_bytes(num_trials * logits, cuda=cuda)))


def most_trials(shape: Shape, setting: Setting, room: float, *, cuda: bool) -> int:
    """Return how many trials a stack may have so that it and every smaller one needs at most `room` bytes."""
    body, logits = _trial(shape, setting)
    space = room / PEAK
    keeping, fitting = KEPT_BYTES // max(1, logits), int(space // (body + logits))
    if fitting < keeping:
        return max(0, fitting)
    # A larger stack computes its logits again. It holds a piece of them, whatever its size.
    return max(keeping, int((space - held_bytes(KEPT_BYTES + 1, cuda=cuda)) // body))


def _trial(shape: Shape, setting: Setting) -> tuple[int, int]:
    """Return the bytes of one trial before PEAK: those of its state and features, and those of its logits."""
    size = FLOAT_BYTES[setting.precision]
    # float32: the parameters, their gradient, the moments, and on a few steps a copy of the parameters to measure the
    # update.
    vectors = 3 + registry("optimizer").get(setting.optimizer).num_moments
    state = 4 * vectors + (size if size < 4 else 0)  # and a rounded copy of the parameters
    family = registry("family").get(setting.family)
    tokens = size * setting.batch_tokens
    body = state * count_params(shape, setting).total + tokens * family.features_per_token(shape, setting)
    return body, tokens * family.logits_per_token(shape, setting)
