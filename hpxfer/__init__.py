"""Tune the learning rate and the initialization on a small MoE model, prove that they transfer, reuse them.

results = hpxfer.run("sweep.yaml")            # or hpxfer.load_results("results/quickstart")
report = hpxfer.transfer_report(results)      # does the HP transfer, and how sure is that?
recipe = hpxfer.Recipe.load("recipe.yaml")    # the tuned HPs, for a model of your own

- Sweeps: `load_sweep`, `run`, `load_results`.
- What was found: `transfer_report` (the verdict), `analyze` (every statistic), `all_figures`, `predict`.
- Runs of other trainers: `judge`.
- A model of your own: `Recipe`, `roles`, `shape_of`, `Shape`, the optimizer `Muon`, `torch_muon` for torch's own, then
  `receipt` and `check_module` to see that it holds.
- Tables on small models: `check`.
- Rows of your own, such as a gate or a statistic: `register_*`, see docs/extend.md.

These names are the public ones. What a notebook calls has an example in its docstring, `check_module` in docs/check.md.
Each name is imported when it is first used, so `import hpxfer` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpxfer.analysis import register_statistic as register_statistic
    from hpxfer.analysis import transfer_report as transfer_report
    from hpxfer.analysis.analyze import analyze as analyze
    from hpxfer.coordinates.checking import check as check
    from hpxfer.coordinates.own.checking import check_module as check_module
    from hpxfer.data import register_data_source as register_data_source
    from hpxfer.data import register_sample_source as register_sample_source
    from hpxfer.driver import run as run
    from hpxfer.errors import HpxferError as HpxferError
    from hpxfer.export import register_export_target as register_export_target
    from hpxfer.figures import all_figures as all_figures
    from hpxfer.loggers import register_logger as register_logger
    from hpxfer.model.families import register_family as register_family
    from hpxfer.model.gates import register_gate as register_gate
    from hpxfer.outside import judge as judge
    from hpxfer.prediction import predict as predict
    from hpxfer.receipts.receipt import receipt as receipt
    from hpxfer.recipe import Recipe as Recipe
    from hpxfer.recipe import load_sweep as load_sweep
    from hpxfer.recipe import roles as roles
    from hpxfer.recipe import shape_of as shape_of
    from hpxfer.recipe.muon import Muon as Muon
    from hpxfer.recipe.muon import torch_muon as torch_muon
    from hpxfer.results import load_results as load_results
    from hpxfer.scaling import register_parameterization as register_parameterization
    from hpxfer.scaling.shape import Shape as Shape
    from hpxfer.search import register_search as register_search

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOME = {
    "HpxferError": "hpxfer.errors",
    "Muon": "hpxfer.recipe.muon",
    "Recipe": "hpxfer.recipe",
    "Shape": "hpxfer.scaling.shape",
    "all_figures": "hpxfer.figures",
    "analyze": "hpxfer.analysis.analyze",
    "check": "hpxfer.coordinates.checking",
    "check_module": "hpxfer.coordinates.own.checking",
    "judge": "hpxfer.outside",
    "load_results": "hpxfer.results",
    "load_sweep": "hpxfer.recipe",
    "predict": "hpxfer.prediction",
    "receipt": "hpxfer.receipts.receipt",
    "register_data_source": "hpxfer.data",
    "register_export_target": "hpxfer.export",
    "register_family": "hpxfer.model.families",
    "register_gate": "hpxfer.model.gates",
    "register_logger": "hpxfer.loggers",
    "register_parameterization": "hpxfer.scaling",
    "register_sample_source": "hpxfer.data",
    "register_search": "hpxfer.search",
    "register_statistic": "hpxfer.analysis",
    "roles": "hpxfer.recipe",
    "run": "hpxfer.driver",
    "shape_of": "hpxfer.recipe",
    "torch_muon": "hpxfer.recipe.muon",
    "transfer_report": "hpxfer.analysis",
}
__all__ = sorted(_HOME)


def __getattr__(name: str) -> object:
    """Import a public name when it is first used."""
    if name not in _HOME:
        raise AttributeError(f"module 'hpxfer' has no attribute {name!r}")
    if name != "HpxferError":
        import hpxfer.host  # noqa: F401 - refuses a system that hpxfer does not run on
    return getattr(importlib.import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
