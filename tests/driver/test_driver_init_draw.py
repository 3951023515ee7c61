"""`model.init_draw` from the sweep file to the results: other trials, close results, and no value of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import hpxfer
from driver_cases import InProcess, Made, trained
from tiny import write_tiny

from hpxfer.driver import prepare, run
from hpxfer.results import load_results
from hpxfer.spec import load_sweep

CONTEXT = "  context: "


def write(folder: Path, init_draw: str | None) -> Path:
    return write_tiny(folder, *([] if init_draw is None else [(CONTEXT, f"  init_draw: {init_draw}\n{CONTEXT}")]))


@pytest.mark.slow
def test_each_value_has_trials_of_its_own_and_their_results_are_alike(tmp_path: Path) -> None:
    losses = {}
    for value in (None, "counter"):
        executor = InProcess()
        results = run(write(tmp_path, value), results=tmp_path, executor=executor)
        assert trained(executor) == 30  # the folder had none of them
        assert {trial.setting.init_draw for stack in executor.given for trial in stack.trials} == {value or "generator"}
        assert set(results.cells["status"]) == {"finished"}
        losses[value] = results.cells.set_index("trial_id")["validation_loss_nats"]
    assert set(losses[None].index).isdisjoint(losses["counter"].index)
    first, second = (sorted(found) for found in losses.values())
    assert first != second
    assert sum(first) == pytest.approx(sum(second), rel=0.02)
    assert load_sweep(tmp_path / "tiny" / "sweep.yaml", trusted=False).model.init_draw == "counter"
    again = Made()
    run(write(tmp_path, "counter"), results=tmp_path, executor=again)
    assert again.given == []
    assert set(load_results(tmp_path / "tiny").cells["trial_id"]) == set(losses["counter"].index)


def test_the_default_may_be_written_out(tmp_path: Path) -> None:
    plain = {trial.id for trial in prepare(write(tmp_path, None), results=tmp_path).missing}
    assert {trial.id for trial in prepare(write(tmp_path, "generator"), results=tmp_path).missing} == plain


@pytest.mark.parametrize("value", ["fast", "true", "{sp: counter}"])
@pytest.mark.parametrize("command", ["plan", "run"])
def test_another_value_is_an_error(
    command: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, value)
    code, _, err = hpxfer(capsys, command, path)
    assert code == 2
    assert f"{path}:5: model.init_draw: must be 'generator' or 'counter', got " in err
