"""Results of a sweep that used a plug-in are read without its code, from what is stored."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
from landscape import DATA, Landscape
from searched import searched
from sweep_text import SWEEP

from hpxfer.registry import Registry
from hpxfer.results import load_results
from hpxfer.spec import load_sweep
from hpxfer.trial import Expansion

SOURCE = """
from dataclasses import replace

from hpxfer.registry import registry

tables = registry("parameterization")
tables.register(replace(tables.get("completep-moe"), name="my_table"))
"""


def test_a_table_and_its_trials_are_read_as_stored(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SOURCE)
    path = tmp_path / "sweep.yaml"
    text = SWEEP.replace("[completep-moe, sp]", "[my_table, sp]").replace("[0.01]", "{log2: [-9, -4]}")
    path.write_text(f"{text}plugins: [./mine.py]\n")
    expansion = Expansion(load_sweep(path), DATA)
    known = searched(expansion, Landscape(optima={"lr": -6.0}), tmp_path / "results")
    cells = known.cells
    assert set(cells["status"]) == {"finished"}
    for module in [module for module in sys.modules if module.startswith("hpxfer_plugin_")]:
        Registry.remove_module(module)
        del sys.modules[module]
    (tmp_path / "mine.py").unlink()
    results = load_results(tmp_path / "results")
    pd.testing.assert_frame_equal(results.cells, cells)
    assert set(results.line("lr")["parameterization"]) == {"my_table", "sp"}
    (plugin,) = results.spec.plugins or ()
    assert plugin.registers == {"parameterization": ("my_table",)}
    used = {key for trial in expansion.trials() for key, _ in trial.plugins}
    assert used == {"parameterization:my_table"}
