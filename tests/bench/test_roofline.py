"""The roofline: its FLOPs are those of the cost model, its bytes those of a count by hand, its table is honest."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from hpxfer.bench.cases import Case, trials
from hpxfer.bench.roofline import COPY_SHARE, PRODUCT_SHARE, Machine, Part, parts_of, seconds_of
from hpxfer.bench.roofline_table import BASE, CASES, groups_of, measured_groups, roofline_rows, roofline_text
from hpxfer.cli.app import app
from hpxfer.kernels import head_limits
from hpxfer.model.cost import count_params, flops_per_token
from hpxfer.trial import Trial

MACHINE = Machine(flop_per_s=100e12, byte_per_s=1e12)
SMALL = Case(
    width=64, depth=3, num_experts=8, num_active=2, head_dim=32, vocab_size=512, context=64, batch_tokens=256, steps=1
)


def trial_of(case: Case, folder: Path) -> Trial:
    (trial,) = trials(replace(case, steps=1), 1, folder)
    return trial


def named(case: Case, folder: Path) -> dict[str, Part]:
    trial = trial_of(case, folder)
    return {part.name: part for part in parts_of(trial.shape, trial.setting)}


@pytest.mark.parametrize("case", [SMALL, replace(SMALL, dense=True), CASES[BASE], CASES["large"]])
def test_products_have_the_flops_of_the_cost_model(case: Case, tmp_path: Path) -> None:
    trial = trial_of(case, tmp_path)
    parts = parts_of(trial.shape, trial.setting)
    products = sum(part.flops for part in parts if part.name != "attention") / case.batch_tokens
    attention = 12 * case.depth * case.width * case.context
    assert products == flops_per_token(trial.shape, trial.setting) - attention
    (scores,) = (part.flops / case.batch_tokens for part in parts if part.name == "attention")
    assert scores == attention * 7 / 12  # causal, and the scores once more in the backward pass


def test_the_bytes_of_a_case_counted_by_hand(tmp_path: Path) -> None:
    case = CASES[BASE]
    found, trial = named(case, tmp_path), trial_of(case, tmp_path)
    tokens, width, vocab, depth = 32768, 512, 50304, 8
    assert found["cross entropy"].num_bytes == 2 * 2 * tokens * vocab  # bfloat16 logits are read and written once
    assert found["optimizer"].num_bytes == 28 * count_params(trial.shape, trial.setting).total
    row = 2 * tokens * width
    up, down, hidden, dx, dw_in, dw_out = 3, 2, 4, 2, 2, 2  # every tensor of a top-1 layer is as wide as the model
    assert found["experts"].num_bytes == depth * row * (up + down + hidden + dx + dw_in + dw_out)
    assert found["attention projections"].num_bytes == depth * row * ((4 + 2) * 3)


def test_logits_that_are_computed_again_cost_a_product_and_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = named(SMALL, tmp_path)
    monkeypatch.setattr("hpxfer.bench.roofline.KEPT_BYTES", 2 * 256 * 512 - 1)
    again = named(SMALL, tmp_path)
    assert head_limits.KEPT_BYTES > 2 * 256 * 512
    assert again["readout"].flops == kept["readout"].flops * 4 / 3
    assert again["cross entropy"].num_bytes == 2 * kept["cross entropy"].num_bytes


def test_a_part_takes_as_long_as_what_bounds_it() -> None:
    part = Part(name="a", group="a", flops=1e12, num_bytes=1e6)
    assert part.bound(MACHINE) == "products"
    assert part.seconds(MACHINE) == pytest.approx(1e12 / (PRODUCT_SHARE["library"] * 100e12))
    assert replace(part, num_bytes=1e12).bound(MACHINE) == "memory"
    assert replace(part, num_bytes=1e12).seconds(MACHINE) == pytest.approx(1 / COPY_SHARE)
    assert Part(name="a", group="a", flops=0, num_bytes=1, launches=1).bound(MACHINE) == "gaps"


def test_the_predictions_are_those_that_were_derived_by_others(tmp_path: Path) -> None:
    """An estimate that shares no code gives 1.46 M tokens/s and 0.94 of the dense twin, plus or minus 15%."""
    seconds = {}
    for name in (BASE, "twin-32k"):
        trial = trial_of(CASES[name], tmp_path)
        seconds[name] = seconds_of(parts_of(trial.shape, trial.setting), Machine())
    assert 32768 / seconds[BASE] / 1e6 == pytest.approx(1.46, rel=0.15)
    assert seconds["twin-32k"] / seconds[BASE] == pytest.approx(0.94, rel=0.05)


def test_what_nobody_measured_says_so() -> None:
    rows = roofline_rows(BASE, MACHINE, {})
    assert {row[-1] for row in rows} == {"unmeasured"}
    assert [row[0] for row in rows][-1].endswith("predicted")


def test_a_profile_stands_beside_its_parts(tmp_path: Path) -> None:
    kernels = [[8000.0, 6, "nvjet_hsh_128x256"], [1500.0, 2, "cross_entropy_rows_kernel"], [700.0, 8, "up"]]
    kernels += [[100.0, 8, "route"], [50.0, 1, "something_new"], [10.0, 2, "update_all"]]
    assert groups_of(kernels) == {
        "products of a library": 8000.0,
        "cross entropy": 1500.0,
        "experts": 700.0,
        "router": 100.0,
        "others": 60.0,
    }
    lines = [{"of": "p-base-32k", "key": "step-us", "top": top} for top in ([], kernels)]
    (tmp_path / "accept.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = measured_groups(BASE, tmp_path)
    rows = {row[0]: row[-1] for row in roofline_rows(BASE, MACHINE, found)}
    assert rows["readout"] == "8.00 ms"
    assert rows["attention projections"] == "see products of a library"
    assert rows["optimizer"] == "not found"
    assert rows["others"] == "0.06 ms"
    assert "10.36 ms" in roofline_text(BASE, MACHINE, tmp_path).splitlines()[-1]
    assert measured_groups("large", tmp_path) == {}


def test_the_command() -> None:
    done = CliRunner().invoke(app, ["bench", "roofline", "--case", "twin-32k", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["predicted_s"] == pytest.approx(sum(part["predicted_s"] for part in found["parts"]))
    for options, said in (
        (["--case", "twin"], "unknown case 'twin'"),
        (["--tflops", "0"], "--tflops: must be a number above 0, got 0"),
        (["--tb-s", "nan"], "--tb-s: must be a number above 0, got nan"),
    ):
        refused = CliRunner().invoke(app, ["bench", "roofline", *options])
        assert refused.exit_code != 0
        assert said in str(refused.exception) + refused.output
