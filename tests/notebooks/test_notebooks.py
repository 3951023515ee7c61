"""The notebooks run from top to bottom and show what they say. They are stored without outputs."""

from __future__ import annotations

import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ALL = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
FLAT, GROWS = 0.15, 0.5


def run(path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> nbformat.NotebookNode:
    """Return the executed notebook; what the kernel keeps for itself goes to `folder`."""
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(folder / "jupyter"))
    monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # the kernel's own; what a user would see is not at stake
    notebook = nbformat.read(path, as_version=4)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(folder)}}).execute()
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
    assert len(notebook.cells) == 10
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
    assert "expert_in+expert_gate" in printed
    assert len(shown(notebook, "image/png")) == 1
