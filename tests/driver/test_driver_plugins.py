"""Plug-ins in a run: rows of a user's file train in workers, and what a worker cannot import is said before."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from driver_cases import Made
from tiny import write_tiny

from hpxfer import load_results, run
from hpxfer.driver import prepare
from hpxfer.errors import HpxferError
from hpxfer.registry import Registry
from hpxfer.scaling.tables import PARAMETERIZATIONS

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


def test_what_a_worker_cannot_import_is_said_before_anything_trains(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        (
            "logits_KTE[:, :1]",
            r"must return float32 of its logits' shape, \[2, 3, 4\], got torch.float32 \[2, 1, 4\]",
        ),
        ("None", "got NoneType"),
        ("logits_KTE.long()", "got torch.int64"),
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
