"""What a seed's trials saw, alike at every width: the batches of every pass, the LRs, and the router's bias.

Pass t is the batch of the trainer's step t, counted from 0, after t updates. The pass after the last update reads the
held-out samples, as the trainer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpxfer.data import Batch as SampleBatch
from hpxfer.data import open_data
from hpxfer.limit.network import Batch, Floats, Given
from hpxfer.limit.solved import Limit
from hpxfer.model.mlp.layout import outputs_of, parameters
from hpxfer.spec import LEARNED
from hpxfer.train.schedules import lr_factor
from hpxfer.trial import Setting, Trial


class Batches(Protocol):
    """What a trainer reads: `SampleData`, or samples that are made up."""

    def train_batches(self, seed: int, first_step: int, num_steps: int) -> SampleBatch: ...

    def validation_batches(self) -> Iterator[SampleBatch]: ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Seen:
    """What the trials of some seeds saw, which all of them saw alike."""

    seeds: tuple[int, ...]
    given: Given


@dataclass(frozen=True, kw_only=True, eq=False)
class SeedLimits:
    """The limits of some seeds. Seeds that saw the same samples share one. Letters: S seeds, T passes."""

    limits: Sequence[tuple[Seen, Limit]]
    seeds: tuple[int, ...]

    def series(self, name: str, passes: Sequence[int]) -> Floats:
        """Return a number of SERIES at some passes, [S, T]."""
        rows = {seed: limit.series[name].mean for seen, limit in self.limits for seed in seen.seeds}
        return np.stack([rows[seed][list(passes)] for seed in self.seeds])

    def error(self, name: str, passes: Sequence[int]) -> Floats:
        """Return the standard error [T] of the mean over seeds, as if the draws of all limits were the same.

        An error of few draws may be small by chance at one pass, and errors grow with training. So each pass has the
        largest error up to it.
        """
        found = [limit.series[name].error for _, limit in self.limits]
        known = [each for each in found if each is not None]
        assert len(known) == len(found), "limits are solved with several seeds"
        largest: Floats = np.maximum.accumulate(np.max(known, axis=0))
        return largest[list(passes)]

    @property
    def error_seeds(self) -> int:
        """Over how many draws of the solver an error is estimated; 0 where all limits are exact."""
        return min(0 if limit.is_exact else limit.num_seeds for _, limit in self.limits)

    @property
    def is_exact(self) -> bool:
        """Whether nothing was sampled."""
        return all(limit.is_exact for _, limit in self.limits)

    @property
    def cautions(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(caution for _, limit in self.limits for caution in limit.cautions))


def seen_by(trials: Sequence[Trial], num_updates: int, *, has_bias: bool, data: Batches | None = None) -> list[Seen]:
    """Return what trials of one shape, one per seed, saw up to `num_updates`; seeds that saw the same stand together.

    `has_bias` asks for the router's bias of every expert, of which regime I has the same ones at every width. Samples
    of a batch are sorted, as no loss depends on their order: full-batch training has one limit for all seeds. `data`
    replaces the samples of the trials' setting. Raise HpxferError if those are not on this machine.
    """
    data = open_data(trials[0].setting) if data is None else data
    groups: dict[tuple[bytes, ...], tuple[list[int], Given]] = {}
    for trial in trials:
        found = given_of(trial, data, num_updates, has_bias=has_bias)
        bias = b"" if found.router_bias is None else found.router_bias.tobytes()
        groups.setdefault((bias, *map(_bytes, found.batches)), ([], found))[0].append(trial.seed)
    return [Seen(seeds=tuple(seeds), given=found) for seeds, found in groups.values()]


def given_of(trial: Trial, data: Batches, num_updates: int, *, has_bias: bool) -> Given:
    """Return what the trial saw up to `num_updates`. After all updates of its run, the last pass is held out."""
    setting = trial.setting
    whole = num_updates == setting.steps
    inputs, targets = data.train_batches(trial.seed, 0, num_updates if whole else num_updates + 1)
    rows = list(zip(inputs, targets, strict=True))
    if whole:
        held_out = zip(*data.validation_batches(), strict=True)
        rows.append(tuple(np.concatenate(part) for part in held_out))  # type: ignore[arg-type]
    known: dict[bytes, Batch] = {}  # equal batches are one object
    batches = (batch_of(setting, each) for each in rows)
    shared = tuple(known.setdefault(_bytes(batch), batch) for batch in batches)
    return Given(
        batches=shared,
        lrs=tuple(trial.hps.lr * lr_factor(setting, step) for step in range(num_updates)),
        loss=setting.mlp.loss,
        num_classes=outputs_of(setting) if setting.mlp.loss == "cross_entropy" else 0,
        router_bias=_router_bias(trial, num_updates) if has_bias else None,
    )


def batch_of(setting: Setting, rows: SampleBatch) -> Batch:
    """Return a batch with its samples sorted, so that batches of the same samples are equal."""
    inputs, targets = rows[0].astype(np.float64), _targets(setting, rows[1])
    order = np.lexsort([*targets.reshape(len(targets), -1).T, *inputs.T])
    return Batch(inputs=inputs[order], targets=targets[order])


def _bytes(batch: Batch) -> bytes:
    """Return what tells a batch from others."""
    return batch.inputs.tobytes() + b"|" + batch.targets.tobytes()


def _targets(setting: Setting, targets: np.ndarray) -> np.ndarray:
    """Return targets as the loss of the family reads them: classes, or what the outputs should be."""
    if setting.mlp.loss == "cross_entropy":
        return targets.astype(np.int64)
    if targets.dtype.kind == "f":
        return targets.astype(np.float64)
    outputs = outputs_of(setting)
    if outputs == 1:  # of two classes the first has 1 and the second -1
        return (1.0 - 2.0 * targets)[:, None]
    return np.asarray(np.eye(outputs)[targets])


def _router_bias(trial: Trial, num_updates: int) -> Floats | None:
    """Return the bias of every pass, [T + 1, M], which a seed draws alike at every width. None if there is none."""
    # The draws are those of torch's generator, so there is no way without it.
    from hpxfer.model.draws import draw, untrained_bias
    from hpxfer.model.flat import FlatLayout

    out = np.zeros((num_updates + 1, trial.shape.num_experts))
    drawn = [untrained_bias(trial, [0], step) for step in range(num_updates + 1)]
    options = trial.setting.mlp
    if options.router_bias not in LEARNED and drawn[0] is None:
        return None
    for row, bias in zip(out, drawn, strict=True):
        if bias is not None:
            row += bias[0].numpy()
    if options.router_bias in LEARNED:
        own = tuple(each for each in parameters(trial.shape, trial.setting) if each.role == "router_bias")
        layout = FlatLayout(parameters=own, num_trials=1)
        stds = [{"router_bias": options.router_bias_std}]
        out += draw(layout, [trial.seed], stds, method=trial.setting.init_draw).numpy()
    return out
