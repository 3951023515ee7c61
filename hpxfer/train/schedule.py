"""The LR schedule: a pure function of the step, a factor on every group's peak LR (ratios between groups stay)."""

from __future__ import annotations

import math

from hpxfer.trial import Setting


def lr_factor(setting: Setting, step: int) -> float:
    """Return the factor on the peak LR at `step` (from 0): linear warm-up, then the setting's decay.

    `cosine` and `linear` fall from the end of the warm-up to `final_fraction` at the last step; `wsd` stays at the
    peak and falls linearly over the last `decay_steps`.
    """
    if step < setting.warmup_steps:
        return (step + 1) / setting.warmup_steps
    if setting.decay == "constant":
        return 1.0
    start = setting.steps - setting.decay_steps if setting.decay == "wsd" else setting.warmup_steps
    if step < start:
        return 1.0
    done = (step - start + 1) / (setting.steps - start)
    fall = 0.5 * (1 + math.cos(math.pi * done)) if setting.decay == "cosine" else 1.0 - done
    return setting.final_fraction + (1.0 - setting.final_fraction) * fall
