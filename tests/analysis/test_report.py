"""The report: data, text and laws."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from laws import examples
from planted_lines import MOVES, STAYS, line, with_status

from hpxfer.analysis import TransferReport, report_line, transfer_report
from hpxfer.host import scale_text
from hpxfer.search.verdict_rules import rules_of
from hpxfer.spec import SweepSpec, load_sweep
from hpxfer.spec.sweep import RegretLimit
from hpxfer.verdict.findings import Rules, ShapeFinding

QUICKSTART = Path(__file__).parents[2] / "sweeps" / "quickstart.yaml"


def report(frame: pd.DataFrame) -> TransferReport:
    return report_line(frame, sweep="planted", hp="lr")


def messy() -> pd.DataFrame:
    frame = line({**STAYS, **MOVES}, diverges_above=2.0)
    frame = with_status(frame, "missing", parameterization="completep-moe", scale=64.0, value=2.0**-6)
    return with_status(frame, "failed", parameterization="sp", scale=64.0, value=2.0**-9)


@given(seed=st.integers(0, 2**31))
@settings(deadline=None, max_examples=examples(5))
def test_the_order_of_rows_plays_no_part(seed: int) -> None:
    frame = messy()
    assert report(frame.sample(frac=1.0, random_state=seed)) == report(frame)


@given(shift=st.floats(0.0, 4.0))  # a rise that is a larger share of the loss may be one of a training that died
@settings(deadline=None, max_examples=examples(5))
def test_a_constant_on_all_losses_moves_no_optimum_and_no_regret(shift: float) -> None:
    frame = messy()
    for finding, other in zip(
        report(frame).findings, report(frame.assign(loss=frame["loss"] + shift)).findings, strict=True
    ):
        for here, there in zip(finding.shapes, other.shapes, strict=True):
            assert there.optimum.kind == here.optimum.kind
            assert there.optimum.log2_value == pytest.approx(here.optimum.log2_value, abs=1e-6)
            assert there.regret_nats == pytest.approx(here.regret_nats, abs=1e-9)


@given(octaves=st.integers(-8, 8))
@settings(deadline=None, max_examples=examples(5))
def test_scaling_the_hp_changes_no_verdict(octaves: int) -> None:
    frame = messy()
    moved = report(frame.assign(value=frame["value"] * 2.0**octaves))
    for finding, other in zip(report(frame).findings, moved.findings, strict=True):
        assert (other.verdict, other.drift is None) == (finding.verdict, finding.drift is None)
        assert other.base_value == pytest.approx((finding.base_value or 0.0) * 2.0**octaves)


def test_to_dict_is_strict_json_and_tells_divergence_from_missing() -> None:
    data = json.loads(json.dumps(report(messy()).to_dict(), allow_nan=False))
    ours, control = data["findings"]
    assert (ours["parameterization"], control["parameterization"]) == ("completep-moe", "sp")
    assert (ours["shapes"][1]["transferred"], ours["shapes"][1]["regret_nats"]) == ("missing", None)
    assert (control["shapes"][2]["transferred"], control["shapes"][2]["regret_nats"]) == ("diverged", None)
    assert control["shapes"][1]["transferred"] == "measured"
    assert control["shapes"][1]["regret_nats"] > 0.04
    assert math.isfinite(control["drift"]["octaves_per_doubling"])


def test_the_text_says_it_all() -> None:
    text = report(line({**STAYS, **MOVES})).to_text()
    assert "width | completep-moe: transfers (" in text
    assert "width | sp: drifts (0.1" in text
    assert "transferred lr: 2^-6" in text
    assert "octaves per doubling of width (3 shapes)" in text
    rows = [row for row in text.splitlines() if row.startswith("  w")]
    assert len(rows) == 6
    assert "2^-8.2" in rows[-1]
    assert " +- " in rows[-1]
    headings = [row for row in text.splitlines() if row.startswith("  shape")]
    assert len(headings) == 2
    assert [len(row) for row in rows] == [len(heading) for heading in headings for _ in range(3)]


def test_the_text_writes_bounds_as_bounds() -> None:
    assert ">= 2^-4.0" in report(line({"sp": lambda _: -3.0})).to_text()
    assert "<= 2^-9.0" in report(line({"sp": lambda _: -10.0})).to_text()
    beside = report(line(STAYS, diverges_above=0.9))
    at = beside.findings[0].shapes[0].optimum.log2_value
    assert at == pytest.approx(-6.2, abs=0.4)  # the loss was not seen to rise on the side that diverges
    assert f"2^{at:.1f} (next diverges)" in beside.to_text()
    assert "diverges" in report(line(MOVES, diverges_above=2.0)).to_text()


@dataclass
class Stored:
    """Results that remember what they were asked for."""

    spec: SweepSpec
    asked: list[tuple[str, str]]

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def rules(self) -> Rules:
        return rules_of(self.spec)

    def line(self, hp: str, loss: str, /) -> pd.DataFrame:
        self.asked.append((hp, loss))
        return line(STAYS)


def test_transfer_report_judges_what_the_sweep_says_unless_told() -> None:
    stored = Stored(load_sweep(QUICKSTART), [])
    by_default = transfer_report(stored)
    told = transfer_report(stored, hp="init_scale", loss="final_window")
    assert stored.asked == [("lr", "validation"), ("init_scale", "final_window")]
    assert (by_default.sweep, by_default.hp, by_default.loss) == ("quickstart", "lr", "validation")
    assert (told.hp, told.loss) == ("init_scale", "final_window")
    assert "training loss over the last steps" in told.to_text()


@pytest.mark.parametrize(
    ("limit", "share"),
    [({"loss": 0.01}, lambda shape: 0.01 * shape.best_loss), ({"octaves": 1.0}, lambda shape: shape.octave_nats)],
)
def test_a_sweep_says_which_regret_is_none(limit: dict[str, float], share: Callable[[ShapeFinding], float]) -> None:
    """The default is 1% of the loss, so the second case shows that the key reaches the verdict."""
    spec = load_sweep(QUICKSTART)
    judge = spec.judge.model_copy(update={"regret_limit": RegretLimit(**limit)})
    (finding,) = transfer_report(Stored(spec.model_copy(update={"judge": judge}), [])).findings
    assert [shape.limit_nats for shape in finding.shapes] == pytest.approx([share(shape) for shape in finding.shapes])


@pytest.mark.parametrize(
    ("scale", "text"), [(32.0, "32"), (2359296.0, "2359296"), (0.25, "0.25"), (1 / 3, "0.333333"), (3e12, "3e+12")]
)
def test_counts_are_written_in_full(scale: float, text: str) -> None:
    assert scale_text(scale) == text


def test_analysis_imports_neither_torch_nor_ray_nor_matplotlib() -> None:
    code = (
        "import sys, hpxfer.analysis;"
        "bad = [m for m in ('torch', 'ray', 'matplotlib', 'hpxfer.train', 'hpxfer.run') if m in sys.modules];"
        "sys.exit(', '.join(bad) or 0)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True).stderr == ""
