"""What a stranger installs: the wheel alone, an editable clone of any name, and a Python that is too old."""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

import hpxfer
from hpxfer.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
# What the build reads. The rest of a clone would only be copied.
PARTS = ("hpxfer", "kernels", "sweeps", "pyproject.toml", "README.md", "LICENSE")
LIMIT_S = 300


def output(command: Sequence[object], folder: Path) -> str:
    """Return the stdout of a command, which must succeed."""
    end = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, timeout=LIMIT_S)
    assert end.returncode == 0, end.stderr
    return end.stdout


def cloned(folder: Path) -> Path:
    """Return a copy of the project in a folder."""
    folder.mkdir(parents=True)
    for name in PARTS:
        source = ROOT / name
        if source.is_dir():
            unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(source, folder / name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy2(source, folder / name)
    return folder


def environment(folder: Path) -> Path:
    """Return the `bin` of an environment that has what hpxfer depends on, and no hpxfer."""
    output([sys.executable, "-m", "venv", "--without-pip", folder], folder.parent)
    scheme = {"base": str(folder), "platbase": str(folder)}
    packages = Path(sysconfig.get_path("purelib", vars=scheme))
    # A folder on the path: hooks and .pth files in it, such as those of an editable hpxfer, have no effect.
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the project."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    output([*pip, "--wheel-dir", folder, cloned(folder / "source")], folder)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` of an environment with the wheel in it."""
    folder = tmp_path_factory.mktemp("installed")
    found = environment(folder / "venv")
    output([found / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    return found


def test_the_wheel_holds_what_is_not_python(wheel: Path) -> None:
    with ZipFile(wheel) as file:
        names = set(file.namelist())
        metadata = file.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    wanted = {"py.typed", "kernels/configs.json", "examples/quickstart.yaml", "examples/search/refine.yaml"}
    wanted |= {f"examples/any_trainer/numpy/{name}" for name in ("own_numpy.yaml", "train.py")}
    wanted |= {f"report/templates/{path.name}" for path in (ROOT / "hpxfer" / "report" / "templates").iterdir()}
    wanted |= {f"kernels/{path.name}" for path in (ROOT / "kernels").glob("*.py")}
    assert {f"hpxfer/{name}" for name in wanted} <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {"hpxfer"}
    assert "License-Expression: Apache-2.0\n" in metadata
    assert "Requires-Python: <3.15,>=3.11\n" in metadata  # pip refuses any other before it downloads
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert {f"Provides-Extra: {name}" for name in project["optional-dependencies"]} <= set(metadata.splitlines())


@pytest.mark.slow
def test_the_wheel_alone_is_enough_to_start(installed: Path, tmp_path: Path) -> None:
    file = output([installed / "python", "-c", "import hpxfer; print(hpxfer.__file__)"], tmp_path)
    assert Path(file.strip()).is_relative_to(installed.parent)
    command = installed / "hpxfer"
    assert output([command, "--version"], tmp_path) == f"hpxfer {hpxfer.__version__}\n"
    assert output([command, "init", "smoke"], tmp_path) == "written:\n  smoke.yaml\n"
    assert "54 trials, 0 done" in output([command, "plan", "smoke.yaml"], tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["smoke.yaml"]


def test_versions_extras_and_commands_are_named_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["requires-python"] == ">=3.11,<3.15"
    assert "(3, 11) <= sys.version_info < (3, 15)" in (ROOT / "Makefile").read_text()
    files = [path for name in ("docs", "hpxfer", "kernels") for path in (ROOT / name).rglob("*")]
    texts = [path.read_text() for path in (*files, ROOT / "README.md") if path.suffix in (".md", ".py")]
    for name in project["optional-dependencies"]:
        assert name == "test" or any(f"pip install 'hpxfer[{name}]'" in text for text in texts)
    changes = (ROOT / "CHANGELOG.md").read_text()
    assert all(f"`{name}`" in changes for name in COMMANDS)
    assert f"## [{hpxfer.__version__}]" in changes or f"version {hpxfer.__version__}" in changes


@pytest.mark.parametrize("version", ["3.10.13", "3.15.0"])
def test_make_refuses_a_python_before_it_downloads(version: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, tmp_path / name)
    numbers = tuple(map(int, version.split(".")))
    python = tmp_path / "python"  # runs `-c` as that version would, and nothing else
    python.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --version ] && echo "Python {version}" && exit\n'
        f'[ "$1" = -c ] && exec {sys.executable} -c "import sys; sys.version_info = {numbers}; $2"\n'
        "echo downloads >> log\n"
    )
    python.chmod(0o755)
    command = ["make", f"PYTHON={python}", "quickstart"]
    end = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_S)
    assert end.returncode != 0
    assert end.stderr.splitlines()[0] == (
        f"hpxfer needs Python 3.11 to 3.14, got Python {version}; name another with: make PYTHON=python3.11 quickstart"
    )
    assert not (tmp_path / ".venv").exists()
    assert not (tmp_path / "log").exists()


@pytest.mark.slow
def test_a_clone_called_hpxfer_is_imported_from_the_folder_above(tmp_path: Path) -> None:
    clone = cloned(tmp_path / "above" / "hpxfer")
    found = environment(tmp_path / "venv")
    pip = [found / "python", "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    output([*pip, "--editable", clone], tmp_path)
    code = (
        "import hpxfer, hpxfer.kernels.routing as kernel; print(hpxfer.__version__, hpxfer.__file__, kernel.__file__)"
    )
    version, package, kernel = output([found / "python", "-c", code], tmp_path / "above").split()
    assert version == hpxfer.__version__
    assert Path(package) == clone / "hpxfer" / "__init__.py"
    assert Path(kernel).is_relative_to(clone)
    names = output([found / "hpxfer", "init", "--list"], tmp_path / "above")
    assert "quickstart" in names
