"""The committed results: whole, of this trainer's sweep files, and saying what the log says.

Their verdicts are in tests/golden.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest
from there import there

from hpxfer.analysis import analyze, transfer_report
from hpxfer.recipe.start import load_sweep
from hpxfer.results import Results, load_results

ROOT = Path(__file__).resolve().parent.parent
PUBLISHED = ROOT / "results" / "published"
# Sweep of the family mlp -> entropy of the gates at the end over log M, at widths 64 and 1024, by table.
ROUTERS = {
    "routers-freeze-soft": {"mup-moe": (0.87, 0.97), "sp": (0.87, 0.06)},
    "routers-freeze-top2": {"mup-moe": (0.69, 0.62), "sp": (0.69, 0.02)},
}
SWEEPS = (
    *("quickstart", "transfer", "lr_init", "mixtral", "mixtral_complete_mue", "qwen3_moe", "mixtral_width"),
    *("mixtral_half", "init_matrices_300", "init_all_300", "init_all_1000", "init_all_const", "init_all_small"),
    *("init_all_wide", "init_all_half", "init_lr_300", "init_lr_1000", "init_lr_const", "init_lr_small"),
    *("init_lr_wide", "mlp-search", "mlp-search-absolute", "mlp-search-onwards", *ROUTERS),
    *("regime-i", "regime-ii", "regime-iii", "softmax-collapse"),
)
# Stored for their verdicts alone.
WITHOUT_CURVES = (
    *("far_axes", "muon_width", "muon_axes", "muon_rms", "muon_original", "muon_adamw_lr", "muon_beside_adamw"),
)


@cache
def published(name: str) -> Results:
    """Return a committed sweep, loaded once. Tests only read it."""
    return load_results(PUBLISHED / name)


@pytest.mark.parametrize("name", SWEEPS)
def test_every_cell_of_a_published_sweep_has_its_result(name: str) -> None:
    results = published(name)
    assert set(results.cells["status"]) <= {"finished", "diverged"}
    assert results.problems == ()


@pytest.mark.parametrize("name", [*SWEEPS, *WITHOUT_CURVES])
def test_a_published_sweep_is_the_committed_sweep_file(name: str) -> None:
    # A file may ask for more seeds than were published, where a verdict of one's own takes them.
    ours, theirs = load_sweep(_file(name)), published(name).spec
    assert theirs.data.source == ours.data.source
    assert set(theirs.seeds) <= set(ours.seeds)
    where = {"resources": ours.resources, "data": ours.data, "seeds": ours.seeds}  # the data, with its digest now
    assert theirs.judged_hp == ours.judged_hp
    assert ours.training.final_window_steps in (None, theirs.training.final_window_steps)
    told = {"judge": {"hp"}, "training": {"final_window_steps"}}  # a file need not name what follows from it
    assert theirs.model_copy(update=where).model_dump(exclude=told) == ours.model_dump(exclude=told)


def _file(name: str) -> Path:
    found = list((ROOT / "sweeps").rglob(f"{name.replace('-', '_')}.yaml"))
    assert len(found) == 1, found
    return found[0]


@pytest.mark.first
@pytest.mark.parametrize("name", ROUTERS)
def test_the_log_says_what_routers_of_the_published_sweeps_do(name: str) -> None:
    frame = analyze(published(name)).found("routers").frame
    at_end = frame["layer"].isna() & (frame["quantity"] == "entropy / log M") & (frame["when"] == "end")
    ends = frame[at_end].groupby("parameterization")["value"]
    assert {table: (means.iloc[0], means.iloc[-1]) for table, means in ends} == {
        table: pytest.approx(expected, abs=0.006) for table, expected in ROUTERS[name].items()
    }


def test_the_log_says_how_regime_ii_tells_the_two_tables_apart() -> None:
    """The optimum under mup-ii surely rises with the width and its gains shrink; mssp-ii gains more at every step."""
    found = {one.parameterization: one for one in transfer_report(published("regime-ii")).findings}
    mup, mssp = found["mup-ii"], found["mssp-ii"]
    assert (there(mup.move).low, there(mup.move).high) == pytest.approx((0.62, 0.89), abs=0.01)
    assert (there(mssp.move).low, there(mssp.move).high) == pytest.approx((0.02, 0.24), abs=0.01)
    losses = {name: [shape.lowest_loss for shape in one.shapes] for name, one in found.items()}
    assert losses["mup-ii"] == pytest.approx([2.346, 2.244, 2.141, 2.139], abs=0.001)
    assert losses["mssp-ii"] == pytest.approx([2.346, 2.168, 2.016, 1.909], abs=0.001)


@pytest.mark.slow
def test_the_docs_say_how_far_apart_the_errors_of_regime_ii_are() -> None:
    said = "top-5 training error of mssp-ii 9.2 +- 0.21 points lower than that of mup-ii at width 512"
    assert analyze(published("regime-ii")).found("errors").title == f"width: {said}"
    assert analyze(published("quickstart")).found("errors").to_dict() == {"title": "", "rows": [], "unknown": []}


def test_the_log_says_what_the_search_of_six_hps_found() -> None:
    """And four other seeds at its best point: the best of 15,625 is lucky too."""
    trials = published("mlp-search").trials
    assert (len(trials), (trials["status"] == "diverged").sum()) == (16361, 6645)
    best = trials.loc[trials["validation_top5_error"].idxmin()]
    assert (best["lr"], best["init_scale"]) == (0.5, 1.0)
    assert best["validation_top5_error"] == pytest.approx(0.207, abs=5e-4)
    multipliers = json.loads(best["multipliers"])
    assert multipliers == {
        "embedding.lr_mult": 0.25,
        "expert_in.lr_mult": 0.25,
        "readout.init_mult": 0.0,
        "readout.lr_mult": 16.0,
        "router.lr_mult": 256.0,
    }
    onwards = published("mlp-search-onwards").trials
    again = onwards[(onwards["width"] == 128) & (onwards["lr"] == 0.5)]
    assert again["validation_top5_error"].mean() == pytest.approx(0.220, abs=5e-4)
    assert {json.loads(each).get("router.lr_mult") for each in onwards["multipliers"]} == {256.0}


def test_the_log_says_what_the_search_of_the_absolute_table_found() -> None:
    relative, absolute = (published(name).trials for name in ("mlp-search", "mlp-search-absolute"))
    assert not set(relative["trial_id"]) & set(absolute["trial_id"])
    assert (len(absolute), (absolute["status"] == "diverged").sum()) == (16361, 6817)
    best = absolute.loc[absolute["validation_top5_error"].idxmin()]
    assert (best["lr"], best["init_scale"]) == (0.25, 1.0)
    assert best["validation_top5_error"] == pytest.approx(0.211, abs=5e-4)
    multipliers = json.loads(best["multipliers"])
    assert (multipliers["router.lr_mult"], multipliers["expert_out.lr_mult"]) == (1024.0, 2.0**-8)


def test_three_tables_are_one_in_regime_i() -> None:
    """With SGD, mup-moe and mup give the bits of mup-i."""
    trials = published("regime-i").trials
    losses = trials.pivot_table(
        index=["width", "lr", "seed"], columns="parameterization", values="validation_loss_nats", observed=True
    ).dropna(subset=["mup-i"])
    assert len(losses) > 100
    assert (losses["mup-moe"] == losses["mup-i"]).all()
    assert (losses["mup"] == losses["mup-i"]).all()


@pytest.mark.parametrize("name", [name for name in SWEEPS if name.startswith("init_lr")])
def test_an_init_sweep_has_the_lr_that_is_best_at_the_base(name: str) -> None:
    trials = published(name).trials
    best = trials.groupby("lr")["validation_loss_nats"].mean().idxmin()
    suffix = name.removeprefix("init_lr_")
    for path in (ROOT / "sweeps" / "studies").glob(f"init_*_{suffix}.yaml"):
        assert "lr" in path.stem or load_sweep(path).hps.lr == best
