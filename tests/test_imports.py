"""Imports go one way, and light modules stay light."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from rooms import circle, imports, levels, modules, room_graph

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "ray", "triton")
# Modules and packages that plan, store and judge: they run on machines without a GPU library.
LIGHT = tuple(
    f"hpxfer.{name}"
    for name in (
        *("errors", "registry", "host", "scaling", "storage", "spec", "trial", "data", "store", "search", "plan"),
        *("progress", "results", "analysis", "prediction", "figures", "report", "train.checkpoints"),
    )
)
FOUNDATION = tuple(f"hpxfer.{name}" for name in ("errors", "registry", "host", "scaling", "storage", "spec"))
# What starts trainings; `hpxfer.run` is the driver's function under its public name.
DRIVING = ("hpxfer.train", "hpxfer.driver", "hpxfer.executors", "hpxfer.run")
ABOVE = ("trial", "model", "train", "driver", "executors", "store", "results", "analysis", "recipe", "cli")
WITH_OPTUNA = tuple(f"hpxfer.search.{name}" for name in ("optuna_search", "optuna_study", "export"))
# What talks to Ray. Each imports `ray_session` before ray, or sets Ray's environment itself.
WITH_RAY = tuple(
    f"hpxfer.{name}"
    for name in (
        *(
            "executors.ray",
            "executors.ray_session",
            "executors.ray_cluster",
            "executors.ray_worker",
        ),
        *("executors.asha", "jobs.client", "jobs.answers"),
    )
)
IN_KERNELS = ("torch", "triton", "hpxfer.kernels", *sys.stdlib_module_names)


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Modules `inside` must not import anything `forbidden`, or, where `allowed` is given, anything else than that."""

    inside: tuple[str, ...]
    forbidden: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    but: tuple[str, ...] = ()

    def breaks(self, module: str, imported: str) -> bool:
        if not within(module, self.inside) or within(module, self.but):
            return False
        return within(imported, self.forbidden) or bool(self.allowed and not within(imported, self.allowed))


RULES = (
    Rule(inside=LIGHT, forbidden=HEAVY),
    Rule(inside=("hpxfer.kernels",), allowed=IN_KERNELS),
    Rule(inside=("hpxfer.analysis",), forbidden=DRIVING),
    Rule(inside=("hpxfer.search",), forbidden=DRIVING),
    Rule(inside=("hpxfer.recipe",), forbidden=(*DRIVING, "ray")),
    Rule(inside=("hpxfer",), forbidden=("ray",), but=WITH_RAY),
    Rule(inside=("hpxfer",), forbidden=("optuna", "sqlalchemy"), but=WITH_OPTUNA),
    Rule(inside=FOUNDATION, forbidden=tuple(f"hpxfer.{name}" for name in ABOVE)),
    Rule(inside=("hpxfer", "tests"), forbidden=("kernels",)),
)


# Rooms whose border is their __init__, and what may be imported from inside them all the same: what loads a library for
# the few that need it, and the formats of files, each of which is a name of its own.
BORDERED = tuple(
    f"hpxfer.{name}"
    for name in (
        *("spec", "trial", "plan", "search", "driver", "executors", "progress", "loggers", "trainer", "receipts"),
        *("store", "storage", "data", "outside", "host", "registry", "verdict", "limit"),
        *("recipe", "export", "prediction"),
    )
)
DOORS = (
    "hpxfer.verdict.thresholds",
    *("hpxfer.executors.asha", "hpxfer.executors.ray", "hpxfer.executors.ray_cluster", "hpxfer.executors.ray_session"),
    *("hpxfer.search.export", "hpxfer.search.optuna_search", "hpxfer.search.optuna_study"),
    *("hpxfer.data.readers", "hpxfer.receipts.checks"),
    "hpxfer.recipe.muon",  # an optimizer of torch
    # What reads sweeps and what draws loads pandas; a limit alone needs neither.
    *("hpxfer.limit.figures", "hpxfer.limit.network_file"),
    *("hpxfer.limit.against", "hpxfer.limit.of_trials", "hpxfer.limit.seen"),
)


def crossings(root: Path) -> list[str]:
    """Return `module:line imports name` of every import of a module inside another room that has a border."""
    known = {name for name, _ in modules(root)}
    return [
        f"{module}:{line} imports {imported}"
        for module, path in modules(root)
        for line, imported in imports(module, path)
        if imported in known and within(imported, BORDERED) and imported not in BORDERED
        if not within(imported, DOORS) and not within(module, (".".join(imported.split(".")[:2]),))
        if not gives(root, imported)
    ]


def gives(root: Path, name: str) -> bool:
    """Return whether a name that a module also has is what the room gives, as `receipt` of hpxfer.receipts."""
    room, _, last = name.rpartition(".")
    init = root.joinpath(*room.split("."), "__init__.py")
    return any(imported == f"{name}.{last}" for _, imported in imports(room, init))


def within(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == one or module.startswith(one + ".") for one in packages)


def violations(root: Path, package: str = "hpxfer") -> list[str]:
    """Return `module:line imports name` of every import that breaks a rule."""
    return [
        f"{module}:{line} imports {imported}"
        for module, path in modules(root, package)
        for line, imported in imports(module, path)
        if any(rule.breaks(module, imported) for rule in RULES)
    ]


def loaded_after(statements: str) -> set[str]:
    """Return the top-level modules that a fresh interpreter holds after `statements`."""
    code = f"{statements}\nimport sys\nprint(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("package", ["hpxfer", "tests"])
def test_imports_go_one_way(package: str) -> None:
    assert violations(ROOT, package) == []


def test_a_room_is_entered_by_its_init() -> None:
    assert crossings(ROOT) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from hpxfer.store.rows import f", ["hpxfer.recipe:1 imports hpxfer.store.rows"]),
        ("from hpxfer.store import rows", ["hpxfer.recipe:1 imports hpxfer.store.rows"]),
        ("def f():\n    import hpxfer.store.rows", ["hpxfer.recipe:2 imports hpxfer.store.rows"]),
        ("from hpxfer.store import f", []),
        ("from hpxfer.store import both", []),
        ("from hpxfer.model.gates import f", []),
        ("from hpxfer.executors.ray import f", []),
    ],
)
def test_a_planted_crossing_is_found(tmp_path: Path, text: str, found: list[str]) -> None:
    files = ("store/rows.py", "store/both.py", "model/gates.py", "executors/ray.py", "recipe.py", "store/__init__.py")
    for file in files:
        path = tmp_path / "hpxfer" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("")
    (tmp_path / "hpxfer/store/__init__.py").write_text(
        "from hpxfer.store.both import both\nfrom hpxfer.store.rows import f"
    )
    (tmp_path / "hpxfer/recipe.py").write_text(text)
    assert crossings(tmp_path) == found


def test_rooms_make_no_circle() -> None:
    graph = room_graph()
    assert circle(graph) == []
    assert levels(graph)[0][0] == "errors"


@pytest.mark.parametrize(
    "text",
    [
        "from hpxfer.b.low import x",
        "def f():\n    import hpxfer.b.low",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from hpxfer.b import low",
        "from ..b import low",
    ],
)
def test_a_planted_circle_is_found(tmp_path: Path, text: str) -> None:
    for file, content in (("a/top.py", text), ("b/low.py", "from hpxfer.c import x"), ("c.py", "import hpxfer.a.top")):
        path = tmp_path / "hpxfer" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert circle(room_graph(tmp_path)) == ["a", "b", "c"]
    (tmp_path / "hpxfer/c.py").write_text("import torch")
    assert circle(room_graph(tmp_path)) == []


def test_the_checker_sees_the_whole_package() -> None:
    names = {name for name, _ in modules(ROOT, "hpxfer")}
    assert {"hpxfer", "hpxfer.trial", "hpxfer.spec.load", "hpxfer.scaling.tables", "hpxfer.kernels.routing"} <= names


@pytest.mark.parametrize(
    ("file", "text", "found"),
    [
        ("trial.py", "import torch", ["hpxfer.trial:1 imports torch"]),
        ("spec/load.py", "def f():\n    import torch.nn as nn", ["hpxfer.spec.load:2 imports torch.nn"]),
        ("data/__init__.py", "import triton", ["hpxfer.data:1 imports triton"]),
        ("kernels/a.py", "import numpy", ["hpxfer.kernels.a:1 imports numpy"]),
        (
            "kernels/a.py",
            "from hpxfer.errors import HpxferError",
            ["hpxfer.kernels.a:1 imports hpxfer.errors", "hpxfer.kernels.a:1 imports hpxfer.errors.HpxferError"],
        ),
        (
            "kernels/a.py",
            "from ..errors import X",
            ["hpxfer.kernels.a:1 imports hpxfer.errors", "hpxfer.kernels.a:1 imports hpxfer.errors.X"],
        ),
        ("analysis/a.py", "from hpxfer import run", ["hpxfer.analysis.a:1 imports hpxfer.run"]),
        ("analysis/a.py", "import hpxfer.executors.local", ["hpxfer.analysis.a:1 imports hpxfer.executors.local"]),
        ("analysis/a.py", "import hpxfer.train.step", ["hpxfer.analysis.a:1 imports hpxfer.train.step"]),
        ("recipe/__init__.py", "from .. import train", ["hpxfer.recipe:1 imports hpxfer.train"]),
        ("recipe/a.py", "import ray", ["hpxfer.recipe.a:1 imports ray"]),
        (
            "executors/local.py",
            "from ray import tune",
            ["hpxfer.executors.local:1 imports ray", "hpxfer.executors.local:1 imports ray.tune"],
        ),
        ("spec/a.py", "from hpxfer import trial", ["hpxfer.spec.a:1 imports hpxfer.trial"]),
        ("model/a.py", "import kernels", ["hpxfer.model.a:1 imports kernels"]),
        (
            "model/a.py",
            "from kernels.routing import Groups",
            ["hpxfer.model.a:1 imports kernels.routing", "hpxfer.model.a:1 imports kernels.routing.Groups"],
        ),
        # The twins: the same imports where they belong.
        ("model/a.py", "import torch", []),
        ("executors/ray.py", "import ray", []),
        ("kernels/a.py", "import math, torch, triton.language\nfrom hpxfer.kernels.routing import Groups", []),
        ("kernels/a.py", "from .routing import Groups", []),
        ("recipe/a.py", "import torch", []),
        ("analysis/a.py", "from hpxfer.trial import Cell\nfrom hpxfer.runner import x", []),
    ],
)
def test_a_planted_violation_is_found(tmp_path: Path, file: str, text: str, found: list[str]) -> None:
    path = tmp_path / "hpxfer" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert violations(tmp_path) == found


def test_light_modules_load_nothing_heavy() -> None:
    names = [name for name, _ in modules(ROOT, "hpxfer") if within(name, LIGHT)]
    assert "hpxfer.trial" in names
    assert loaded_after("\n".join(f"import {name}" for name in names)).isdisjoint(HEAVY)


def test_import_hpxfer_loads_next_to_nothing() -> None:
    loaded = loaded_after("import hpxfer")
    assert "hpxfer" in loaded
    assert loaded.isdisjoint({*HEAVY, "matplotlib", "pandas", "pydantic", "numpy", "scipy", "yaml"})


def test_a_limit_is_solved_without_what_reads_sweeps() -> None:
    assert loaded_after("import hpxfer.limit").isdisjoint({"torch", "ray", "matplotlib", "pandas", "pyarrow", "yaml"})


def test_what_a_fresh_interpreter_has_loaded_is_seen() -> None:
    assert {"hpxfer", "pydantic", "yaml"} <= loaded_after("import hpxfer\nhpxfer.load_sweep")
