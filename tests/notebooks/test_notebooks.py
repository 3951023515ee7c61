"""The notebooks run from top to bottom and show what they say. They are stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ALL = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
FLAT, GROWS = 0.15, 0.5


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """Return the executed notebook; what the kernel keeps for itself goes to `folder`."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "jupyter"))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # the kernel's own; what a user would see is not at stake
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(
        notebook, timeout=300, startup_timeout=300, resources={"metadata": {"path": str(path.parent)}}
    ).execute()
    return notebook


def shown(notebook: nbformat.NotebookNode, mime: str) -> list[str]:
    """Return what the cells printed, for text/plain, or displayed."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    if mime == "text/plain":
        return [
            output["text"] for output in outputs if output["output_type"] == "stream" and output["name"] == "stdout"
        ]
    return [output["data"][mime] for output in outputs if mime in output.get("data", {})]


@pytest.mark.parametrize("name", ALL)
def test_a_stored_notebook_is_small_and_holds_no_outputs(name: str) -> None:
    notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
    assert len(notebook.cells) <= 10
    assert notebook.cells[0].cell_type == "markdown"
    assert (NOTEBOOKS / name).stat().st_size < 20_000


def test_the_own_model_is_flat_with_the_recipe_and_grows_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = run(NOTEBOOKS / "own_model.ipynb", tmp_path, monkeypatch)
    printed = "".join(shown(notebook, "text/plain"))
    slopes = re.findall(r"^(with|without) the recipe +(\S.*\S) +slope ([+-]\d\.\d\d)$", printed, re.MULTILINE)
    assert len(slopes) == 8
    for which, _, slope in slopes:
        assert abs(float(slope)) < FLAT if which == "with" else float(slope) > GROWS
    assert "with the recipe the check passes\nwithout the recipe the check fails\n" in printed
    assert "expert_in+expert_gate" in printed
    assert len(shown(notebook, "image/png")) == 1


def test_the_verdict_of_a_stored_sweep_is_inspected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run(NOTEBOOKS / "01_inspect_transfer.ipynb", tmp_path, monkeypatch)
    printed = "".join(shown(notebook, "text/plain"))
    assert "width | completep-moe: transfers" in printed
    assert "width | sp: drifts" in printed
    assert re.search(r"^sp +width 128 +regret 0\.1\d+ nats$", printed, re.MULTILINE)
    assert re.search(r"^report\.html \d+ kB$", printed, re.MULTILINE)
    assert len(shown(notebook, "image/svg+xml")) == 2


def test_a_recipe_is_reused_on_a_wider_model_that_then_learns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run(NOTEBOOKS / "02_reuse_recipe.ipynb", tmp_path, monkeypatch)
    printed = "".join(shown(notebook, "text/plain"))
    (losses,) = re.findall(r"^loss (\d\.\d\d) -> (\d\.\d\d) nats", printed, re.MULTILINE)
    assert float(losses[1]) < float(losses[0]) - 1
    groups = re.findall(r"^lr (\S+) +(.*)$", printed, re.MULTILINE)
    rates = {role: lr for lr, roles in groups for role in roles.split()}
    # 2^-6 at width 32, a quarter of it at width 128.
    assert {rates[role] for role in ("attn_q", "router", "expert_in", "expert_out")} == {"0.003906"}
    assert {rates[role] for role in ("embedding", "position", "readout")} == {"0.01562"}


def test_parameterizations_are_compared_along_the_width(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notebook = run(NOTEBOOKS / "03_compare_parameterizations.ipynb", tmp_path, monkeypatch)
    printed = "".join(shown(notebook, "text/plain"))
    found = dict(re.findall(r"^(\S+) +(transfers|drifts) +drift ", printed, re.MULTILINE))
    assert found == {"completep-moe": "transfers", "sp": "drifts"}
    assert len(shown(notebook, "image/svg+xml")) == 2
    gains = re.findall(r"^(\S+) +width 64 -> 128 +gain ([+-]\d\.\d+) nats$", printed, re.MULTILINE)
    assert {name: float(gain) > 0 for name, gain in gains} == {"completep-moe": True, "sp": False}
