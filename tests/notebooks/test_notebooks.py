"""The notebooks run from top to bottom and show what they say. They are stored without outputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.slow

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
ALL = sorted(path.name for path in NOTEBOOKS.glob("*.ipynb"))
FLAT, GROWS = 0.15, 0.5


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, int]]:
    """Runs a notebook, and returns what it printed and how many images of a kind it showed."""

    def ran(name: str, mime: str = "") -> tuple[str, int]:
        monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))  # the kernel's own files
        monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "jupyter"))
        monkeypatch.setenv("PYTHONWARNINGS", "ignore")  # the kernel's own; what a user would see is not at stake
        notebook = nbformat.read(NOTEBOOKS / name, as_version=4)
        folder = {"metadata": {"path": str(NOTEBOOKS)}}
        NotebookClient(notebook, timeout=300, startup_timeout=300, resources=folder).execute()
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
        printed = [one["text"] for one in outputs if one["output_type"] == "stream" and one["name"] == "stdout"]
        return "".join(printed), sum(mime in one.get("data", {}) for one in outputs)

    return ran


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


def test_the_own_model_is_flat_with_the_recipe_and_grows_without(run: Callable[..., tuple[str, int]]) -> None:
    printed, shown = run("own_model.ipynb", "image/png")
    slopes = re.findall(r"^(with|without) the recipe +(\S.*\S) +slope ([+-]\d\.\d\d)$", printed, re.MULTILINE)
    assert len(slopes) == 8
    for which, _, slope in slopes:
        assert abs(float(slope)) < FLAT if which == "with" else float(slope) > GROWS
    assert "with the recipe the check passes\nwithout the recipe the check fails\n" in printed
    assert "expert_in+expert_gate" in printed
    assert shown == 1


def test_the_verdict_of_a_stored_sweep_is_inspected(run: Callable[..., tuple[str, int]]) -> None:
    printed, shown = run("01_inspect_transfer.ipynb", "image/svg+xml")
    assert "width | completep-moe: transfers" in printed
    assert "width | sp: drifts" in printed
    assert re.search(r"^sp +width 128 +regret 0\.1\d+ nats$", printed, re.MULTILINE)
    assert re.search(r"^report\.html \d+ kB$", printed, re.MULTILINE)
    assert shown == 2


def test_a_recipe_is_reused_on_a_wider_model_that_then_learns(run: Callable[..., tuple[str, int]]) -> None:
    printed, _ = run("02_reuse_recipe.ipynb")
    (losses,) = re.findall(r"^loss (\d\.\d\d) -> (\d\.\d\d) nats", printed, re.MULTILINE)
    assert float(losses[1]) < float(losses[0]) - 1
    groups = re.findall(r"^lr (\S+) +(.*)$", printed, re.MULTILINE)
    rates = {role: lr for lr, roles in groups for role in roles.split()}
    # 2^-6 at width 32, a quarter of it at width 128.
    assert {rates[role] for role in ("attn_q", "router", "expert_in", "expert_out")} == {"0.003906"}
    assert {rates[role] for role in ("embedding", "position", "readout")} == {"0.01562"}


def test_parameterizations_are_compared_along_the_width(run: Callable[..., tuple[str, int]]) -> None:
    printed, shown = run("03_compare_parameterizations.ipynb", "image/svg+xml")
    found = dict(re.findall(r"^(\S+) +(transfers|drifts) +drift ", printed, re.MULTILINE))
    assert found == {"completep-moe": "transfers", "sp": "drifts"}
    assert shown == 2
    gains = re.findall(r"^(\S+) +to width 128 +gain ([+-]\d\.\d+) nats$", printed, re.MULTILINE)
    assert {name: float(gain) > 0 for name, gain in gains} == {"completep-moe": True, "sp": False}
