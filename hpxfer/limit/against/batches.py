"""What a seed's trials saw, alike at every width: the batches of every pass, the LRs, and the router's bias.

Pass t is the batch of the trainer's step t, counted from 0, after t updates. The pass after the last update reads the
held-out samples, as the trainer does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from hpxfer.data.samples.batches import SampleBatch, open_sample_data
from hpxfer.limit.given import Batch, Floats, Given
from hpxfer.model.mlp.layout import outputs_of, parameters
from hpxfer.spec.mlp import LEARNED
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


def seen_by(trials: Sequence[Trial], num_updates: int, *, has_bias: bool, data: Batches | None = None) -> list[Seen]:
    """Return what trials of one shape, one per seed, saw up to `num_updates`; seeds that saw the same stand together.

    `has_bias` asks for the router's bias of every expert, of which regime I has the same ones at every width. Samples
    of a batch are sorted, as no loss depends on their order: full-batch training has one limit for all seeds. `data`
    replaces the samples of the trials' setting. Raise HpxferError if those are not on this machine.
    """
    data = open_sample_data(trials[0].setting) if data is None else data
    groups: dict[bytes, tuple[list[int], Given]] = {}
    for trial in trials:
        found = given_of(trial, data, num_updates, has_bias=has_bias)
        groups.setdefault(_key(found), ([], found))[0].append(trial.seed)
    return [Seen(seeds=tuple(seeds), given=found) for seeds, found in groups.values()]


def given_of(trial: Trial, data: Batches, num_updates: int, *, has_bias: bool) -> Given:
    """Return what the trial saw up to `num_updates`. After all updates of its run, the last pass is held out."""
    setting = trial.setting
    whole = num_updates == setting.steps
    inputs, targets = data.train_batches(trial.seed, 0, num_updates if whole else num_updates + 1)
    known: dict[bytes, Batch] = {}
    batches = [_shared(batch_of(setting, (x, y)), known) for x, y in zip(inputs, targets, strict=True)]
    if whole:
        rows = list(data.validation_batches())
        joined = np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows])
        batches.append(_shared(batch_of(setting, joined), known))
    return Given(
        batches=tuple(batches),
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


def _shared(batch: Batch, known: dict[bytes, Batch]) -> Batch:
    """Return one object for equal batches."""
    return known.setdefault(batch.inputs.tobytes() + batch.targets.tobytes(), batch)


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


def _key(given: Given) -> bytes:
    """Return what tells two trainings apart."""
    names: dict[int, int] = {}
    parts = [b"" if given.router_bias is None else given.router_bias.tobytes()]
    for batch in given.batches:
        if id(batch) not in names:
            names[id(batch)] = len(names)
            parts += [batch.inputs.tobytes(), batch.targets.tobytes()]
        parts.append(str(names[id(batch)]).encode())
    return b"|".join(parts)
