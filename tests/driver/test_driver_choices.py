"""Ties, the initial draw and plug-ins in a run: other choices are other trials, and mistakes are said before it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fixture_types import Patch
from made_executors import InProcess, Made, trained
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.errors import HpxferError
from hpxfer.registry import Registry
from hpxfer.results import load_results
from hpxfer.scaling.tables import PARAMETERIZATIONS
from hpxfer.spec import load_sweep

TABLES = ("parameterizations: [completep-moe, sp]", "parameterizations: [mssp-i, sp]")


def write(folder: Path, *edits: tuple[str, str], ties: str | None = None) -> Path:
    given = [] if ties is None else [("  context: ", f"  ties: {ties}\n  context: ")]
    return write_tiny(folder, TABLES, *given, *edits)


def test_a_folder_holds_the_value_that_its_trials_have(tmp_path: Path) -> None:
    results = run(write(tmp_path), results=tmp_path, executor=InProcess())
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml", trusted=False).model.ties == {"mssp-i": "random"}
    assert set(results.cells["status"]) == {"finished"}
    start = results.curves.query("metric == 'load_deviation' and step == 0").groupby("trial_id")["value"].max()
    zero = results.trials.query("parameterization == 'mssp-i'")["trial_id"]
    assert start[list(zero)].max() < 0.35  # of 0.5; a fair draw of so few tokens
    again = Made()
    run(write(tmp_path), results=tmp_path, executor=again)
    run(tmp_path / "tiny" / "sweep.yaml", executor=again)
    assert again.given == []
    assert list((tmp_path / "tiny").glob("sweep-*.yaml")) == []


def test_a_value_that_the_file_gives_trains_anew_and_deletes_nothing(tmp_path: Path) -> None:
    run(write(tmp_path, ties="index"), results=tmp_path, executor=Made())
    folder = tmp_path / "tiny"
    before = set(load_results(folder).trials["trial_id"])
    anew = Made()
    run(write(tmp_path, ties="{mssp-i: random}"), results=tmp_path, executor=anew)
    assert {
        trial.parameterization and trial.parameterization.name for stack in anew.given for trial in stack.trials
    } == {"mssp-i"}  # the control's trials stay
    found = load_results(folder)
    assert before < set(found.trials["trial_id"])
    assert set(found.cells["status"]) == {"finished"}
    rows = found.trials.set_index("trial_id").loc[list(set(found.cells["trial_id"]))]
    assert set(rows.query("parameterization == 'mssp-i'")["setting"].str.contains('"ties":"random"')) == {True}


CONTEXT = "  context: "


def with_draw(folder: Path, init_draw: str | None) -> Path:
    return write_tiny(folder, *([] if init_draw is None else [(CONTEXT, f"  init_draw: {init_draw}\n{CONTEXT}")]))


@pytest.mark.slow
def test_each_value_has_trials_of_its_own_and_their_results_are_alike(tmp_path: Path) -> None:
    losses = {}
    for value in (None, "counter"):
        executor = InProcess()
        results = run(with_draw(tmp_path, value), results=tmp_path, executor=executor)
        assert trained(executor) == 30  # the folder had none of them
        assert {trial.setting.init_draw for stack in executor.given for trial in stack.trials} == {value or "generator"}
        assert set(results.cells["status"]) == {"finished"}
        losses[value] = results.cells.set_index("trial_id")["validation_loss_nats"]
    assert set(losses[None].index).isdisjoint(losses["counter"].index)
    first, second = (sorted(found) for found in losses.values())
    assert first != second
    assert sum(first) == pytest.approx(sum(second), rel=0.02)
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml", trusted=False).model.init_draw == "counter"
    plain, written = (prepare(with_draw(tmp_path, value), results=tmp_path / "x") for value in (None, "generator"))
    assert plain.missing == written.missing  # the default may be written out
    again = Made()
    run(with_draw(tmp_path, "counter"), results=tmp_path, executor=again)
    assert again.given == []
    assert set(load_results(tmp_path / "tiny").cells["trial_id"]) == set(losses["counter"].index)


SOURCE = """
import os
import sys
from dataclasses import replace

from hpxfer.model.gates import Gate, register_gate
from hpxfer.scaling import register_parameterization
from hpxfer.scaling.tables import PARAMETERIZATIONS

{first}


def scores(logits_KTE, route_scale_K11):
    return {scores}


register_gate(Gate(name="squared", formula="logit^2", sums_to_one_over=None, scores=scores))
register_parameterization(replace(PARAMETERIZATIONS.get("completep-moe"), name="mine"))
"""
TINY = (
    ("parameterizations: [completep-moe, sp]", "parameterizations: [mine, sp]\nplugins: [./rows.py]"),
    ("  context:", "  gate: squared\n  context:"),
)


def source(first: str = "", scores: str = "logits_KTE.square()") -> str:
    return SOURCE.format(first=first, scores=scores)


def forget_plugins() -> None:
    """Make this process as if it had never imported a plug-in file."""
    for name in [name for name in sys.modules if name.startswith("hpxfer_plugin_")]:
        Registry.remove_module(name)
        del sys.modules[name]


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder with the plug-in rows.py. Afterwards this process has forgotten it."""
    (tmp_path / "rows.py").write_text(source())
    yield tmp_path
    forget_plugins()


@pytest.mark.slow
def test_a_gate_and_a_table_of_a_file_train_in_workers_and_are_read_without_the_file(folder: Path) -> None:
    sweep = write_tiny(folder, *TINY)
    outcome = run(sweep, results=folder)
    assert set(outcome.trials["status"]) == {"finished"}
    assert prepare(sweep, results=folder).plan.num_left == 0
    (folder / "rows.py").unlink()
    code = (
        "import hpxfer; results = hpxfer.load_results('tiny');"
        "print(sorted(set(results.cells['status'])), hpxfer.transfer_report(results).summary())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("['finished']")
    assert "width | mine: " in done.stdout


def test_another_version_of_the_file_is_another_trial_and_said(folder: Path) -> None:
    sweep = write_tiny(folder, *TINY)
    ids = set(run(sweep, results=folder, executor=Made()).trials["trial_id"])
    assert prepare(sweep, results=folder).plan.cautions == prepare(sweep, results=folder / "new").plan.cautions
    forget_plugins()
    (folder / "rows.py").write_text(source("# an edit"))
    edited = prepare(sweep, results=folder)
    assert ids.isdisjoint(trial.id for trial in edited.missing)
    assert any("rows.py: changed since it trained what" in caution for caution in edited.plan.cautions)


def test_what_a_worker_cannot_import_is_said_before_anything_trains(folder: Path, monkeypatch: Patch) -> None:
    (folder / "rows.py").write_text(source("import only_here"))
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "only_here.py").touch()
    monkeypatch.syspath_prepend(str(folder / "elsewhere"))
    with pytest.raises(HpxferError, match=r"No module named 'only_here' \(in a new process"):
        run(write_tiny(folder, *TINY), results=folder)
    assert not (folder / "tiny").exists()


def test_a_row_that_only_this_process_has_is_refused_before_anything_trains(tmp_path: Path) -> None:
    mine = replace(PARAMETERIZATIONS.get("completep-moe"), name="mine")
    sweep = write_tiny(tmp_path, ("parameterizations: [completep-moe, sp]", "parameterizations: [mine, sp]"))
    with PARAMETERIZATIONS.registered(mine):
        with pytest.raises(HpxferError, match=r"parameterization mine: must be registered by a plug-in"):
            run(sweep, results=tmp_path)
        assert not (tmp_path / "tiny").exists()


def test_a_stored_sweep_imports_nothing(folder: Path) -> None:
    outcome = run(write_tiny(folder, *TINY), results=folder, executor=Made())
    (folder / "rows.py").write_text("raise SystemExit('imported')")
    forget_plugins()
    assert len(load_results(outcome.folder).cells) == len(outcome.cells)
    assert "mine" not in PARAMETERIZATIONS


@pytest.mark.first
@pytest.mark.parametrize(
    ("scores", "says"),
    [
        ("logits_KTE[:, :1]", r"must return float32 of its logits' shape, \[2, 3, 4\], got torch.float32 \[2, 1, 4\]"),
        ("logits_KTE.sqrt()", "must be finite for finite logits, got"),
        ("logits_KTE.detach()", "must depend on the logits"),
        ("1 / 0", "got ZeroDivisionError: division by zero"),
    ],
)
def test_a_gate_s_mistake_is_one_message_before_anything_trains(folder: Path, scores: str, says: str) -> None:
    (folder / "rows.py").write_text(source(scores=scores))
    with pytest.raises(HpxferError, match=f"gate squared: scores {says}|gate squared: scores .*{says}"):
        run(write_tiny(folder, *TINY), results=folder)
    assert not (folder / "tiny").exists()
