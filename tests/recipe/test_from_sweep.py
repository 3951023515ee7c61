"""From results to a recipe: planted losses in, the base optimum, the fitted range and the provenance out."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from refusals import refused

import hpxfer
from hpxfer.analysis import transfer_report
from hpxfer.errors import HpxferError
from hpxfer.recipe import Recipe, recipe_from_results, recipe_of
from hpxfer.results import Results
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import parse_sweep
from hpxfer.spec.arms import ParameterizationSpec
from hpxfer.spec.sweep import PluginSpec
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.store.rows import trials_table
from hpxfer.trial import Cell, DataRef, Expansion, base_hps
from hpxfer.trial.result import TrialResult

GRID = tuple(2.0**exponent for exponent in (-9, -8, -7, -6, -5))
ZERO_ROUTER = {"table": "completep-moe", "conventions": {"router_init_exponent": "inf"}}
Loss = Callable[[Cell], float | None]


def basin(cell: Cell) -> float:
    """Return a loss with its optimum at 2^-6.8, all over the grid; NaN would be a divergence, None no trial."""
    return 3.0 + 0.04 * (math.log2(cell.trial.hps.lr) + 6.8) ** 2 + 0.001 * cell.trial.seed


SWEEP: dict[str, Any] = {
    "name": "planted",
    "model": {
        "family": "gpt",
        "base": {"width": 32, "depth": 2, "num_experts": 4, "num_active": 1, "expert_ratio": 1.0, "head_dim": 16},
        "context": 64,
        "gate": "softmax",
        "norm_gains": False,
        "embedding_std": 0.5,
    },
    "data": {"source": "builtin:stdlib", "digest": "abc"},
    "training": {
        "batch_tokens": 128,
        "tokens": 12800,
        "validation_tokens": 128,
        "betas": [0.8, 0.9],
        "weight_decay": 0.1,
        "gradient_clip": 1.0,
    },
    "parameterizations": ["completep-moe"],
    "axes": {"width": [64, 128], "free": [{"depth": 4, "num_experts": 8}]},
    "hps": {"residual_scale": 0.7, "multipliers": {"router.lr_mult": 0.25}},
    "grid": {"lr": list(GRID)},
    "seeds": [3, 5],
}


def results(loss: Loss = basin, **changes: Any) -> Results:
    """Return results of a sweep with these losses."""
    spec = parse_sweep(write_yaml({**SWEEP, **changes}))
    data = DataRef(digest="abc", tokenizer="ascii", vocab_size=128)
    cells = {cell.trial.id: cell for cell in Expansion(spec, data).cells()}
    pairs = [(cell.trial, _result(cell, value)) for cell in cells.values() if (value := loss(cell)) is not None]
    trials = trials_table(pairs).to_pandas()
    return Results(folder=Path("results/planted"), spec=spec, trials=trials, problems=())


def _result(cell: Cell, loss: float) -> TrialResult:
    diverged = math.isnan(loss)
    return TrialResult(
        trial_id=cell.trial.id,
        status="diverged" if diverged else "finished",
        validation_loss_nats=None if diverged else loss,
        final_window_loss_nats=None if diverged else loss,
        diverged_step=7 if diverged else None,
        wall_s=1.0,
        tokens_per_s=1000.0,
        stack_size=1,
        device="cpu",
        versions=json.dumps({"hpxfer": "0.1.0", "torch": "2.12.0" if cell.trial.seed == 3 else "2.13.0"}),
        finished_at=f"2026-11-{20 + (cell.trial.seed == 5)}T10:00:00.000+00:00",
    )


@pytest.fixture(scope="module")
def made() -> Recipe:
    """The recipe of the planted basin."""
    return build(results())


def build(outcome: Results, name: str | None = None, **judged: str) -> Recipe:
    return recipe_from_results(outcome, transfer_report(outcome, **judged), name)


def test_the_judged_hp_is_the_best_measured_one_and_the_others_and_the_base_are_those_of_the_sweep(
    made: Recipe,
) -> None:
    spec = parse_sweep(write_yaml(SWEEP))
    assert made.hps == base_hps(spec).with_value("lr", 2.0**-7)
    assert (made.hps.beta1, made.hps.weight_decay, made.hps.residual_scale) == (0.8, 0.1, 0.7)
    assert made.base_shape == spec.base_shape
    assert made.init == spec.model.base_init()
    fitted = made.file.fitted
    assert (fitted.hp, fitted.value, fitted.loss, fitted.open_because) == ("lr", 2.0**-7, "validation", None)
    assert math.log2(fitted.optimum or 0.0) == pytest.approx(-6.8, abs=0.02)
    assert fitted.optimum_of_seeds == pytest.approx((2.0**-6.8, 2.0**-6.8))
    assert fitted.loss_nats == pytest.approx(3.0 + 0.04 * 0.2**2 + 0.004)
    file = made.file
    assert (file.model.gate, file.model.norm_gains, file.model.context) == ("softmax", False, 64)
    assert (file.training.steps, file.training.batch_tokens, file.training.gradient_clip) == (100, 128, 1.0)
    provenance = file.provenance
    assert (provenance.sweep, provenance.data_digest) == ("planted", "abc")
    assert (provenance.tokenizer, provenance.vocab_size) == ("ascii", 128)
    assert provenance.seeds == (3, 5)
    assert provenance.measured == "2026-11-21"
    assert provenance.hpxfer == hpxfer.__version__
    assert provenance.versions == {"hpxfer": ("0.1.0",), "torch": ("2.12.0", "2.13.0")}
    assert provenance.num_trials == len(GRID) * 2 * (1 + 3)  # the base and three shapes


def test_the_recipe_from_a_larger_base_keeps_the_shape_that_hps_are_relative_to() -> None:
    """The best HP of width 64 is one octave above that of width 32, in units of width 32 as all of the recipe is."""

    def moves_once(cell: Cell) -> float:
        moved = 0.08 * (math.log2(cell.trial.hps.lr) + 6.3)
        return basin(cell) - (0.0 if cell.trial.shape.width == 32 else moved)

    outcome = results(moves_once)
    smallest, larger = recipe_of(outcome), recipe_of(outcome.from_base("w64"))
    assert (smallest.hps.lr, larger.hps.lr) == (2.0**-7, 2.0**-6)
    assert larger.base_shape == smallest.base_shape == outcome.spec.base_shape
    fitted = larger.file.fitted
    assert {name: part.range for name, part in fitted.axes.items()} == {"width": (64.0, 128.0)}
    assert math.log2(fitted.optimum or 0.0) == pytest.approx(-5.8, abs=0.1)


def test_trials_that_the_sweep_no_longer_has_are_not_counted() -> None:
    outcome = results()
    stale = outcome.trials.iloc[:3].assign(trial_id=["x", "y", "z"], finished_at="2027-01-01T00:00:00.000+00:00")
    failed = outcome.trials.iloc[3:4].index
    outcome.trials.loc[failed, "status"] = "failed"
    more = Results(folder=outcome.folder, spec=outcome.spec, trials=pd.concat([outcome.trials, stale]), problems=())
    provenance = build(more).file.provenance
    assert (provenance.num_trials, provenance.measured) == (len(outcome.trials) - 1, "2026-11-21")


def test_the_noise_is_without_the_level_of_a_seed_and_a_range_without_shapes_that_have_no_result(made: Recipe) -> None:
    def wobble(cell: Cell) -> float:
        return basin(cell) + 0.001 * cell.trial.seed * (-1) ** round(math.log2(cell.trial.hps.lr))

    width, level = (made.file.fitted.axes["width"] for made in (build(results(wobble)), made))
    squares = 5 * 0.002**2 - (0.002**2) / 5  # of the differences of two seeds at five HPs, about their mean
    assert width.noise_nats == pytest.approx(math.sqrt(squares / 4 / 2), rel=0.05)
    assert (level.noise_nats or 0.0) < 1e-5  # a level that a seed adds to all of its trials is no noise
    axes = made.file.fitted.axes
    width = axes["width"]
    assert (width.scale_name, width.range, width.verdict) == ("width", (32.0, 128.0), "transfers")
    moved = {"depth": (2.0, 4.0), "num_experts": (4.0, 8.0), "num_active": (1.0, 2.0)}
    assert (axes["free"].scale_name, axes["free"].dims) == ("hidden weights", moved)
    made = build(results(lambda cell: None if cell.trial.shape.width == 128 else basin(cell)))
    width = made.file.fitted.axes["width"]
    assert (width.range, width.dims, width.verdict) == ((32.0, 64.0), {"width": (32.0, 64.0)}, "undecided")


def test_divergence_and_an_optimum_on_the_edge_are_spelled_out_and_the_file_loads() -> None:
    def loss(cell: Cell) -> float:
        far = cell.trial.shape.width == 128 and cell.trial.hps.lr > 2.0**-8
        return math.nan if far else basin(cell)

    made = build(results(loss))
    width = made.file.fitted.axes["width"]
    assert (width.largest_regret_nats, width.verdict, width.range) == ("diverges", "drifts", (32.0, 128.0))
    assert Recipe.parse(made.dump()) == made
    fitted = build(results(lambda cell: 3.0 - math.log2(cell.trial.hps.lr))).file.fitted
    assert (fitted.value, fitted.optimum) == (GRID[-1], None)
    assert fitted.open_because == "the optimum is on the upper edge of the grid"
    assert {axis.verdict for axis in fitted.axes.values()} == {"undecided"}


@pytest.mark.parametrize(
    ("loss", "count"),
    [
        (lambda cell: None if cell.trial.shape == cell.trial.base else basin(cell), 0),
        (lambda cell: math.nan if cell.trial.hps.lr > 2.0**-8 else basin(cell), 2),
    ],
)
def test_no_base_optimum_is_no_recipe(loss: Loss, count: int) -> None:
    says = "results/planted: no recipe for completep-moe: lr must have an optimum at the base, got none"
    with pytest.raises(
        HpxferError, match=f"^{says}.*{count} HP values have a finite loss(.|\n)* more values in grid.lr$"
    ):
        build(results(loss))


@pytest.mark.slow
def test_the_parameterization_is_the_first_or_the_named_one_that_one_alone_has() -> None:
    outcome = results(parameterizations=["completep-moe", "sp", ZERO_ROUTER])
    label = "completep-moe[router_init_exponent=inf]"
    for name, found in ((None, "completep-moe"), ("sp", "sp"), (label, label)):
        assert build(outcome, name).parameterization.label() == found
    halved = {"table": "completep-moe", "conventions": {"router_init_exponent": 0.5}}
    outcome = results(parameterizations=[ZERO_ROUTER, halved])
    refused(r"give completep-moe\[.*inf\] or completep-moe\[.*0\.5\]", build, outcome, "completep-moe")
    refused("must be one of the sweep's, got 'sp'", build, outcome, "sp")


def test_another_hp_and_loss_may_be_judged() -> None:
    def loss(cell: Cell) -> float:
        return 3.0 + math.log2(cell.trial.hps.init_scale / 2) ** 2 + 0.001 * cell.trial.seed

    outcome = results(loss, hps={"lr": 0.01}, grid={"lr": list(GRID[:2]), "init_scale": [0.5, 1.0, 2.0, 4.0]})
    made = build(outcome, hp="init_scale", loss="final_window")
    assert (made.hps.lr, made.hps.init_scale) == (0.01, 2.0)
    assert (made.file.fitted.hp, made.file.fitted.loss) == ("init_scale", "final_window")


def test_a_sweep_of_a_plug_in_has_its_recipe_without_the_code_of_the_plug_in() -> None:
    """The recipe names the plug-in. Using the recipe needs the plug-in, and the message says so."""
    mine = replace(PARAMETERIZATIONS.get("completep-moe"), name="mine")
    with PARAMETERIZATIONS.registered(mine):
        outcome = results(parameterizations=["mine"])
        registered = build(outcome)
        conventions = registered.parameterization.conventions  # a run spells them out in the stored sweep
    plugin = PluginSpec(name="mine.py", registers={"parameterization": ("mine",)})
    chosen = (ParameterizationSpec(table="mine", conventions=dict(conventions)),)
    spec = outcome.spec.model_copy(update={"plugins": (plugin,), "parameterizations": chosen})
    made = recipe_of(replace(outcome, spec=spec)).dump()
    refused(r"unknown parameterization 'mine'.*import the plug-in of the sweep first: m", Recipe.parse, made)
    with PARAMETERIZATIONS.registered(mine):
        read = Recipe.parse(made)
        assert read.file.provenance.plugins == ("mine.py",)
        assert (read.hps, read.base_shape, read.init) == (registered.hps, registered.base_shape, registered.init)
        assert read.parameterization == registered.parameterization


def test_a_sweep_of_muon_gives_both_lrs_whichever_was_fitted() -> None:
    training = {**SWEEP["training"], "optimizer": "muon[router=adamw,scale=original]"}
    made = recipe_of(results(training=training, hps={**SWEEP["hps"], "adamw_lr": 0.004}))
    assert (made.optimizer, made.hps.momentum) == ("muon[scale=original]", 0.95)
    assert (made.hps.lr, made.hps.adamw_lr, made.file.fitted.hp) == (2.0**-7, 0.004, "lr")
    assert Recipe.parse(made.dump()) == made

    def of_adamw_lr(cell: Cell) -> float:
        return 3.0 + 0.04 * (math.log2(cell.trial.hps.adamw_lr) + 6.8) ** 2 + 0.001 * cell.trial.seed

    grid, judge = {"adamw_lr": list(GRID)}, {"hp": "adamw_lr"}
    hps = {**SWEEP["hps"], "lr": 0.02, "adamw_lr": 0.004}
    made = recipe_of(results(of_adamw_lr, training=training, hps=hps, grid=grid, judge=judge))
    assert (made.hps.lr, made.hps.adamw_lr, made.file.fitted.hp) == (0.02, 2.0**-7, "adamw_lr")
