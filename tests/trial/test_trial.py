"""Trials: what an id depends on and what it does not, and the lazy expansion of a sweep."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from strategies import sweeps
from sweep_text import SWEEP, edited, with_keys

from hpxfer.scaling.hps import HPs
from hpxfer.spec import SweepSpec, parse_sweep
from hpxfer.spec.resources_section import ResourcesSpec
from hpxfer.spec.yaml_file import write_yaml
from hpxfer.trial import TRAINER_VERSION, Cell, DataRef, Expansion, base_hps, hp_points
from hpxfer.trial import expansion as trial_module
from hpxfer.trial.identity import hps_of

DATA = DataRef(digest="d1", tokenizer="ascii", vocab_size=128)
# One trial at the base and one above it, for each of two parameterizations.
ONE_SEED = ("seeds: 2", "seeds: [0]")
Edit = tuple[str, str]


def expand(text: str, data: DataRef = DATA) -> Expansion:
    return Expansion(parse_sweep(text), data)


def ids(expansion: Expansion) -> set[str]:
    return {trial.id for trial in expansion.trials()}


def cells_at(width: int, *edits: Edit, data: DataRef = DATA) -> list[Cell]:
    return [cell for cell in expand(edited(*edits), data).cells() if cell.trial.shape.width == width]


@given(sweeps(), st.integers(1, 9))
def test_names_resources_and_determinism_are_no_part_of_an_id(spec: SweepSpec, workers: int) -> None:
    resources = ResourcesSpec(executor="local", workers=workers, device="cpu", kernels="triton")
    training = spec.training.model_copy(update={"determinism": "fast"})
    data = spec.data.model_copy(update={"source": "text:/another/machine"})
    other = spec.model_copy(update={"name": "other", "resources": resources, "training": training, "data": data})
    assert ids(Expansion(spec, DATA)) == ids(Expansion(other, DATA))


@given(sweeps())
def test_the_order_of_keys_and_comments_are_no_part_of_an_id(spec: SweepSpec) -> None:
    def backwards(data: object) -> object:
        if isinstance(data, dict):
            return {key: backwards(data[key]) for key in reversed(data)}
        return [backwards(ref) for ref in data] if isinstance(data, list) else data

    data = backwards(spec.model_dump(mode="json", exclude_none=True))
    text = "# a comment\n" + write_yaml(data) + "\n# another\n"
    assert ids(Expansion(parse_sweep(text), DATA)) == ids(Expansion(spec, DATA))


@given(sweeps())
def test_an_id_is_the_hash_of_what_determines_the_numbers(spec: SweepSpec) -> None:
    expansion = Expansion(spec, DATA)
    for trial in itertools.islice(expansion.trials(), 20):
        identity = expansion.identity(trial.parameterization, trial.shape, hps_of(trial.hps), trial.seed)
        text = json.dumps(identity, sort_keys=True, separators=(",", ":"))
        assert trial.id == hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


# Keys whose value decides numbers, but for seeds and the grid, which have laws of their own.
DECIDE = """
training.steps: 201 | training.batch_tokens: 256 | training.betas: [0.9, 0.96] | training.betas: [0.8, 0.95]
training.eps: 1e-8 | training.weight_decay: 0.1 | training.gradient_clip: 1.0 | training.final_window_steps: 30
training.schedule: {decay: constant, warmup: 21} | training.schedule: {decay: cosine, warmup: 20}
training.schedule: {decay: cosine, warmup: 20, final_fraction: 0.5} | training.validation_tokens: 512
training.schedule: {decay: wsd, warmup: 20, decay_length: 9} | model.context: 32 | model.gate: softmax
model.gate: normalized_sigmoid | model.ffn: swiglu | model.attention_scale: 1/sqrt(d_head) | model.biases: true
model.tied_embeddings: false | model.norm_gains: false | model.init: constant | model.embedding_std: 0.5
model.position_std: 0.5 | model.init_draw: counter | hps.router_bias_lr: 0.02 | hps.init_scale: 2
hps.residual_scale: 2 | hps.multipliers: {router.lr_mult: 0.5} | hps.multipliers: {attn_v.init_mult: 0.5}
precision: bfloat16 | model.base.head_dim: 16 | model.base.depth: 3 | model.base.expert_ratio: 2 | grid.lr: [0.02]
seeds: [1]
"""


@pytest.mark.parametrize("change", [change for line in DECIDE.split("\n") for change in line.split(" | ") if change])
def test_whatever_determines_the_numbers_changes_every_id(change: str) -> None:
    start = with_keys(SWEEP, "seeds: [0]", "parameterizations: [complete-mue, sp]")
    assert ids(expand(start)).isdisjoint(ids(expand(with_keys(start, change))))


@pytest.mark.parametrize("change", [{"digest": "d2"}, {"tokenizer": "bytes"}, {"vocab_size": 256}])
def test_the_data_change_every_id(change: dict[str, object]) -> None:
    other = dataclasses.replace(DATA, **change)
    assert ids(expand(SWEEP)).isdisjoint(ids(expand(SWEEP, other)))


SAME = """
name: other | training.final_window_steps: 20 | training.eps: 1e-12 | model.gate: sigmoid | grid.lr: [1e-2]
model.matrix_std: 0.5 | hps.multipliers: {router.lr_mult: 1} | seeds: [1, 0] | judge: {loss: final_window}
resources: {executor: local, workers: 3, stack_size: 2} | axes.width: {values: [64]} | axes: {anything: [{width: 64}]}
training.schedule: {decay: constant, warmup: 20, final_fraction: 0.5} | training.schedule: {warmup: {fraction: 0.1}}
training.schedule: {warmup: {tokens: 10240}}
parameterizations: [sp, {table: completep-moe, conventions: {depth_alpha: 1}}]
"""


@pytest.mark.parametrize("change", [change for line in SAME.split("\n") for change in line.split(" | ") if change])
def test_other_ways_to_say_the_same_change_no_id(change: str) -> None:
    """What no run reads either: final_fraction without a decay, matrix_std without init: constant."""
    assert ids(expand(SWEEP)) == ids(expand(with_keys(SWEEP, change)))


def test_tokens_and_an_expert_width_that_come_to_the_same_change_no_id() -> None:
    same = ("-training.steps", "training.tokens: 102400", "-model.base.expert_ratio", "model.base.expert_width: 32")
    assert ids(expand(SWEEP)) == ids(expand(with_keys(SWEEP, *same)))


def test_the_base_shape_is_shared_by_parameterizations_that_agree_there() -> None:
    first, second = cells_at(32, ONE_SEED)
    assert (first.parameterization, second.parameterization) == ("completep-moe", "sp")
    assert first.trial == second.trial
    assert first.trial.parameterization is None
    above, below = cells_at(64, ONE_SEED)
    assert above.trial.id != below.trial.id
    assert above.trial.parameterization is not None


def test_a_zero_router_is_not_shared() -> None:
    zero = "[{table: completep-moe, conventions: {router_init_exponent: inf}}, sp]"
    first, second = cells_at(32, ONE_SEED, ("[completep-moe, sp]", zero))
    assert first.trial.id != second.trial.id
    assert first.trial.parameterization is not None
    assert first.trial.resolved()["router"].init_std == 0 < second.trial.resolved()["router"].init_std


@pytest.mark.parametrize("convention", ["depth_alpha: 0.5", "router_init_exponent: 0.5"])
def test_a_convention_changes_the_ids_above_the_base_and_only_those(convention: str) -> None:
    other = ("[completep-moe, sp]", f"[{{table: completep-moe, conventions: {{{convention}}}}}, sp]")
    for width, shared in ((32, True), (64, False)):
        plain, changed = cells_at(width, ONE_SEED)[0], cells_at(width, ONE_SEED, other)[0]
        assert (plain.trial.id == changed.trial.id) is shared


@pytest.mark.parametrize(
    ("table", "shared"),
    [
        ("mup-moe", True),
        ("{table: mup-moe, conventions: {router_init: zero}}", False),
        ("{table: mup-moe, conventions: {readout_init: zero}}", False),
        ("{table: mup-moe, conventions: {router_bias_std: 0.5}}", False),
        ("mssp-i", False),  # a zero router
        ("mssp-ii", True),
        ("mssp-iii", False),  # tied experts
        ("complete-mue", True),
    ],
)
@pytest.mark.parametrize("gate", ["sigmoid", "softmax"])
def test_what_is_another_model_at_the_base_runs_there_for_itself(table: str, shared: bool, gate: str) -> None:
    edits = (ONE_SEED, ("[completep-moe, sp]", f"[{table}, sp]"), ("context: 64", f"context: 64\n  gate: {gate}"))
    mine, plain = cells_at(32, *edits)
    assert (mine.trial.id == plain.trial.id) is shared
    assert (mine.trial.parameterization is None) is shared
    assert plain.trial.parameterization is None


def test_structure_is_the_table_s_of_experts_and_a_dense_base_has_none() -> None:
    dense, table = ("num_experts: 4, num_active: 1, expert_ratio: 1", "dense_ratio: 1"), "[mssp-iii, sp]"
    mine, plain = cells_at(32, ONE_SEED, dense, ("[completep-moe, sp]", table))
    assert mine.trial == plain.trial
    mine, plain = cells_at(64, ONE_SEED, ("[completep-moe, sp]", table))
    assert (mine.trial.structure().tied_experts, plain.trial.structure().tied_experts) == (True, False)


def test_the_setting_of_a_trial_follows_its_shape() -> None:
    wsd = ("{decay: constant, warmup: 20}", "{decay: wsd, warmup: 20, decay_length: 50}")
    axes = ("  width: [32, 64]", "  batch: [1024]\n  duration: [400]")
    expansion = expand(edited(ONE_SEED, wsd, axes))
    found = {
        (
            *(cell.axis, cell.trial.setting.batch_tokens, cell.trial.setting.steps, cell.trial.setting.warmup_steps),
            *(cell.trial.setting.decay_steps, cell.trial.setting.final_window_steps),
        )
        for cell in expansion.cells()
    }
    assert found == {
        ("batch", 512, 200, 20, 50, 20),
        ("batch", 1024, 100, 10, 25, 10),
        ("duration", 512, 200, 20, 50, 20),
        ("duration", 512, 400, 40, 100, 40),
    }
    for trial in expansion.trials():
        assert (trial.setting.batch_tokens, trial.setting.steps) == (trial.shape.batch_tokens, trial.shape.steps)
    assert {cell.shape for cell in expansion.cells()} == {
        "w32 d2 E4A1 h32 b512 t200",
        "w32 d2 E4A1 h32 b1024 t100",
        "w32 d2 E4A1 h32 b512 t400",
    }


def test_the_base_s_batch_and_steps_are_part_of_what_a_table_starts_from() -> None:
    table = ("[completep-moe, sp]", "[complete-mue]")
    axis = ("  width: [32, 64]", "  longer: [{steps: 400}]")
    other = ("steps: 200", "steps: 100")
    mine, its = (
        {cell.trial.id: cell.trial for cell in expand(edited(ONE_SEED, table, axis, *more)).cells()}
        for more in ((), (other,))
    )
    at_400 = [next(trial for trial in found.values() if trial.shape.steps == 400) for found in (mine, its)]
    assert at_400[0].id != at_400[1].id
    assert at_400[0].resolved()["attn_q"].lr != at_400[1].resolved()["attn_q"].lr


@given(sweeps())
def test_every_place_of_the_grid_is_one_cell(spec: SweepSpec) -> None:
    expansion = Expansion(spec, DATA)
    counts = [len(values.numbers()) for values in spec.grid.values()]
    lines = 1
    for count in counts:
        lines *= count
    points = lines if spec.product else sum(counts)
    shapes = sum(len(axis.points) for axis in expansion.axes)
    cells = list(expansion.cells())
    assert len(cells) == shapes * len(spec.parameterizations) * points * len(spec.seeds)
    assert {cell.trial.id for cell in cells} == ids(expansion)
    assert {cell.trial.shape for cell in cells} == set(expansion.shapes)
    assert len(list(expansion.trials())) == len(ids(expansion))


@given(sweeps())
def test_equal_ids_mean_equal_trials(spec: SweepSpec) -> None:
    by_id = {}
    for cell in Expansion(spec, DATA).cells():
        assert by_id.setdefault(cell.trial.id, cell.trial) == cell.trial


def test_lines_of_the_grid_run_through_the_base_values() -> None:
    grid = ("  lr: [0.01]", "  lr: [0.5, 0.25]\n  router.lr_mult: [2]")
    spec = parse_sweep(edited(grid, ("router_bias_lr: 0.01", "lr: 0.125")))
    start = base_hps(spec)
    assert (start.lr, start.eps, start.beta2) == (0.125, 1e-12, 0.95)
    assert list(hp_points(spec)) == [
        ("lr", start.with_value("lr", 0.25)),
        ("lr", start.with_value("lr", 0.5)),
        ("router.lr_mult", start.with_value("router.lr_mult", 2.0)),
    ]


def test_a_product_is_every_combination() -> None:
    grid = ("  lr: [0.01]", "  lr: [0.5, 0.25]\n  init_scale: [1, 2]\nproduct: true")
    points = list(hp_points(parse_sweep(edited(grid))))
    assert [(line, hps.lr, hps.init_scale) for line, hps in points] == [
        ("product", 0.25, 1),
        ("product", 0.25, 2),
        ("product", 0.5, 1),
        ("product", 0.5, 2),
    ]


def test_an_enormous_grid_gives_its_first_cells_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[HPs] = []

    def counted(spec: SweepSpec) -> Iterator[tuple[str, HPs]]:
        for line, hps in hp_points(spec):
            assert len(made) < 100, "the expansion is not lazy"
            made.append(hps)
            yield line, hps

    monkeypatch.setattr(trial_module, "hp_points", counted)
    log2 = "{log2: [0, 1.49], step: 0.01}"
    grid = f"  lr: {log2}\n  init_scale: {log2}\nproduct: true"
    expansion = expand(edited(("  lr: [0.01]", grid)))
    assert [len(values.numbers()) for values in expansion.spec.grid.values()] == [150, 150]
    cells = list(itertools.islice(expansion.cells(), 6))  # two seeds: three points
    assert [(cell.trial.hps, cell.trial.seed) for cell in cells] == [(hps, seed) for hps in made for seed in (0, 1)]
    assert len(made) == 3


def test_the_trainers_version_is_part_of_an_id() -> None:
    spec = parse_sweep(edited())
    assert ids(Expansion(spec, DATA)) == ids(Expansion(spec, DATA, TRAINER_VERSION))
    assert ids(Expansion(spec, DATA)).isdisjoint(ids(Expansion(spec, DATA, TRAINER_VERSION - 1)))


def test_a_point_with_its_own_schedule_trains_by_it_and_no_other_id_moves() -> None:
    points = ("  width: [32, 64]", "  long: [{steps: 400}, {steps: 800%s}]")
    own = ", schedule: {decay: cosine, warmup: {fraction: 0.05}, final_fraction: 0.1}"
    plain, with_own = (expand(edited(ONE_SEED, (points[0], points[1] % more))) for more in ("", own))
    settings = {trial.shape.steps: trial.setting for trial in with_own.trials()}
    assert [(it.decay, it.warmup_steps, it.final_fraction) for it in settings.values()] == [
        ("constant", 20, 0.0),
        ("constant", 40, 0.0),
        ("cosine", 40, 0.1),
    ]
    for steps in (200, 400, 800):
        found, expected = (
            {trial.id for trial in expansion.trials() if trial.shape.steps == steps} for expansion in (with_own, plain)
        )
        assert (found == expected) is (steps != 800)
    assert {cell.shape for cell in with_own.cells() if cell.trial.shape.steps == 800} == {
        "w32 d2 E4A1 h32 b512 t800 cosine"
    }
