"""What the stored trials of a sweep measured along its axes, the regime of a path, and what a seed's trials saw."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Protocol

import numpy as np
import pandas as pd

from hpxfer.data import Batch as SampleBatch
from hpxfer.data import open_data
from hpxfer.errors import HpxferError, nearest, shown
from hpxfer.limit.network import Batch, Floats, Given, Regime
from hpxfer.model.mlp.layout import outputs_of, parameters
from hpxfer.results import Results
from hpxfer.scaling.shape import Shape
from hpxfer.search import cells_of
from hpxfer.spec import LEARNED
from hpxfer.train.schedules import lr_factor
from hpxfer.trial import Setting, Trial

# What a seed's trials saw, alike at every width: the batches of every pass, the LRs, and the router's bias.
#
# Pass t is the batch of the trainer's step t, counted from 0, after t updates. The pass after the last update reads the
# held-out samples, as the trainer does.


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
    data = open_data(trials[0].setting) if data is None else data
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


LOSS_CURVE = "train_loss_nats"
SPREAD_CURVE = "router_logit_spread"


@dataclass(frozen=True, kw_only=True, eq=False)
class Line:
    """The trials of one arm along one axis at one value of the judged HP, which may be stored or not."""

    axis: str
    parameterization: str
    hp: str
    value: float
    trials: Mapping[tuple[float, int], Trial]  # (width, seed) -> trial
    shapes: Mapping[float, str]  # width -> the shape's name on the axis
    statuses: Mapping[str, str]  # id -> status

    @property
    def widths(self) -> tuple[float, ...]:
        return tuple(sorted(self.shapes))

    @cached_property
    def seeds(self) -> tuple[int, ...]:
        """The seeds whose trials finished at every width."""
        every = sorted({seed for _, seed in self.trials})
        return tuple(seed for seed in every if all(self._status(width, seed) == "finished" for width in self.widths))

    def without(self, seeds: Collection[int]) -> Line:
        """Return the line without these seeds."""
        return replace(self, trials={key: trial for key, trial in self.trials.items() if key[1] not in seeds})

    def left_out(self) -> Iterator[str]:
        """Yield what is missing at each width, in words."""
        for width in self.widths:
            counts: dict[str, int] = {}
            for seed in sorted({seed for _, seed in self.trials}):
                status = self._status(width, seed)
                if status != "finished":
                    counts[status] = counts.get(status, 0) + 1
            for status, count in counts.items():
                yield f"{count} {status} at width {width:g}"

    def of_seeds(self) -> list[Trial]:
        """Return the trials of the smallest shape, one per seed."""
        return [self.trials[self.widths[0], seed] for seed in self.seeds]

    def of_widths(self) -> list[Trial]:
        """Return one trial per shape."""
        first = dict(sorted(self.trials, reverse=True))
        return [self.trials[width, first[width]] for width in self.widths]

    def _status(self, width: float, seed: int) -> str:
        trial = self.trials.get((width, seed))
        return "missing" if trial is None else self.statuses[trial.id]


def lines_of(
    results: Results, *, axis: str | None = None, arm: str | None = None, value: float | None = None
) -> list[Line]:
    """Return the lines of a sweep: of every arm along every axis, or of those that are named.

    Without a `value`, a line is taken at the value of the judged HP whose mean loss is lowest at its smallest shape:
    the value that would be transferred. Raise HpxferError if the sweep has no such line.
    """
    hp = results.spec.judged_hp
    if (why := results.why_no_line(hp)) is not None:
        raise HpxferError(f"{results.folder}: no line of {hp} can be compared with a limit: {why}")
    table = results.line(hp)
    table = _only(table, "axis", axis, results)
    table = _only(table, "parameterization", arm, results)
    known = {cell.trial.id: cell.trial for cell in cells_of(results.expansion, results.trials)}
    return [
        _line(results, hp, own, known, value)
        for _, own in table.groupby(["axis", "parameterization"], sort=False, observed=True)
    ]


def _only(table: pd.DataFrame, column: str, given: str | None, results: Results) -> pd.DataFrame:
    if given is None:
        return table
    names = list(dict.fromkeys(table[column]))
    if given not in names:
        raise HpxferError(f"{results.folder}: {column}: the sweep has no {shown(given)}; {nearest(given, names)}")
    return table[table[column] == given]


def _line(results: Results, hp: str, table: pd.DataFrame, known: Mapping[str, Trial], value: float | None) -> Line:
    values = sorted(set(table["value"]))
    axis, arm = str(table["axis"].iloc[0]), str(table["parameterization"].iloc[0])
    chosen = _value(results, table, hp, values, value)
    own = table[table["value"] == chosen]
    trials = {}
    for row in own.itertuples():
        trial = known[str(row.trial_id)]
        trials[float(trial.shape.width), trial.seed] = trial
    shapes = {known[str(trial_id)].shape for trial_id in own["trial_id"]}
    if len(shapes) > len({shape.width for shape in shapes}):
        got = ", ".join(shape.label() for shape in sorted(shapes))
        raise HpxferError(
            f"{results.folder}: {arm} along {axis}: the width must grow from shape to shape, as a limit is that of an "
            f"infinite width, got {got}; name another axis"
        )
    return Line(
        axis=axis,
        parameterization=arm,
        hp=hp,
        value=chosen,
        trials=trials,
        shapes={float(known[str(row.trial_id)].shape.width): str(row.shape) for row in own.itertuples()},
        statuses={str(row.trial_id): str(row.status) for row in own.itertuples()},
    )


def _value(results: Results, table: pd.DataFrame, hp: str, values: Sequence[float], given: float | None) -> float:
    if given is not None:
        near = [value for value in values if np.isclose(value, given, rtol=1e-9, atol=0)]
        if not near:
            legal = ", ".join(f"{value:g}" for value in values)
            raise HpxferError(
                f"{results.folder}: {hp}: must be a value that the sweep scans, got {given:g}; legal: {legal}"
            )
        return near[0]
    if len(values) == 1:
        return float(values[0])
    smallest = table[table["scale"] == table["scale"].min()]
    losses = smallest.groupby("value")["loss"].agg(["mean", "count"])
    whole = losses[losses["count"] == losses["count"].max()]["mean"].dropna()
    if whole.empty:
        raise HpxferError(
            f"{results.folder}: {hp}: no trial of the smallest shape has a loss yet, by which the value to compare is "
            "chosen; run the sweep, or name a value"
        )
    return float(whole.idxmin())


def curve_of(results: Results, line: Line, metric: str, passes: Sequence[int]) -> tuple[tuple[int, ...], Floats, int]:
    """Return the passes of `passes` that every trial of the line has logged, the values [J, S, passes], and how many
    passes only some of the trials have logged.

    A value that is not finite counts as not logged.
    """
    places = itertools.product(enumerate(line.widths), enumerate(line.seeds))
    ids = {line.trials[width, seed].id: (j, s) for (j, width), (s, seed) in places}
    curves = results.curves
    own = curves[(curves["metric"] == metric) & curves["trial_id"].isin(ids) & curves["step"].isin(passes)]
    own = own[np.isfinite(own["value"])]
    steps, counts = np.unique(own["step"].to_numpy(int), return_counts=True)
    whole = steps[counts == len(ids)].tolist()
    place = {step: t for t, step in enumerate(whole)}
    out = np.full((len(line.widths), len(line.seeds), len(whole)), np.nan)
    for trial, step, number in zip(own["trial_id"], own["step"], own["value"], strict=True):
        if step in place:
            out[(*ids[trial], place[step])] = number
    return tuple(whole), out, len(steps) - len(whole)


def held_out_of(results: Results, line: Line) -> Floats:
    """Return the loss on the held-out samples after the last update, [J, S]."""
    losses = results.trials.set_index("trial_id")["validation_loss_nats"]
    rows = [[losses[line.trials[width, seed].id] for seed in line.seeds] for width in line.widths]
    return np.array(rows, float)


# (do the experts grow, does the expert width grow) -> the regime
GROWING: dict[tuple[bool, bool], Regime] = {(False, True): "I", (True, False): "II", (True, True): "III"}
DIMS = ("num_experts", "num_active", "expert_width")


def regime_of(shapes: Sequence[Shape], where: str) -> Regime:
    """Return the regime that shapes follow: I, II or III. Raise HpxferError if they follow none.

    In a regime every dimension stays or grows by the factor of the width (MSSP, Table 1). The active experts grow with
    the experts.
    """
    path = sorted(set(shapes), key=lambda shape: shape.width)
    if len({shape.width for shape in path}) < 2:
        widths = ", ".join(f"{shape.width}" for shape in path)
        raise HpxferError(
            f"{where}: a limit needs shapes of at least two widths, got {widths}; add larger ones to the axis"
        )
    for name in ("depth", "batch_tokens", "steps"):
        if len(values := {getattr(shape, name) for shape in path}) > 1:
            got = ", ".join(map(str, sorted(values)))
            raise HpxferError(f"{where}: {name} must be the same at every shape of the axis, got {got}; {_OTHER}")
    grows = {name: _grows(path, name, where) for name in DIMS}
    if grows["num_experts"] != grows["num_active"]:
        got = ", ".join(f"{shape.num_active} of {shape.num_experts}" for shape in path)
        raise HpxferError(f"{where}: the share of active experts must stay along the axis, got {got}; {_OTHER}")
    found = GROWING.get((grows["num_experts"], grows["expert_width"]))
    if found is None:
        raise HpxferError(
            f"{where}: the axis must follow regime I, II or III, got one along which neither experts nor expert width "
            f"grow with the width; {_OTHER}"
        )
    return found


_OTHER = "take another axis, or a sweep along one regime"


def _grows(path: Sequence[Shape], name: str, where: str) -> bool:
    """Return whether a dimension grows as the width does; False if it stays."""
    first = path[0]
    values = [getattr(shape, name) for shape in path]
    if all(value == values[0] for value in values):
        return False
    if all(value * first.width == values[0] * shape.width for value, shape in zip(values, path, strict=True)):
        return True
    got = ", ".join(f"{value} at width {shape.width}" for value, shape in zip(values, path, strict=True))
    raise HpxferError(f"{where}: {name} must stay or grow by the factor of the width, got {got}; {_OTHER}")
