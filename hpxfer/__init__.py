"""hpxfer: tune the learning rate and the initialization on a small MoE model, prove that they transfer, reuse them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hpxfer.analysis import transfer_report
    from hpxfer.coordinates.checking import check
    from hpxfer.driver import run
    from hpxfer.errors import HpxferError
    from hpxfer.recipe import Recipe, roles, shape_of
    from hpxfer.results import load_results
    from hpxfer.spec import load_sweep

__version__ = "0.1.0"
__all__ = [
    "HpxferError",
    "Recipe",
    "check",
    "load_results",
    "load_sweep",
    "roles",
    "run",
    "shape_of",
    "transfer_report",
]

_HOME = {
    "HpxferError": "hpxfer.errors",
    "Recipe": "hpxfer.recipe",
    "check": "hpxfer.coordinates.checking",
    "load_results": "hpxfer.results",
    "load_sweep": "hpxfer.spec",
    "roles": "hpxfer.recipe",
    "run": "hpxfer.driver",
    "shape_of": "hpxfer.recipe",
    "transfer_report": "hpxfer.analysis",
}


def __getattr__(name: str) -> object:
    """Import a public name on first use: `import hpxfer` stays light."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module 'hpxfer' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
