"""Every command of docs/ runs as it stands, page by page, beside the files that the repository has.

A command that needs what a laptop lacks says so at its end, in a comment that starts with `# needs`. These are parsed
only, as are the commands that install hpxfer, which the tests of packaging run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from docs_markdown import blocks
from fixture_types import Folders

from hpxfer.cli.init import NO_SWEEPS
from hpxfer.spec.yaml_file import read_yaml, write_yaml

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
INSTALLS = re.compile(r"(git clone|make|pip install|\. \.venv)\b")
NEEDS = re.compile(r"\s# needs ")
PUBLISHED = re.compile(r"results/published/\w[\w-]*")
BIN = Path(sys.executable).parent


def lines(page: Path) -> Iterator[str]:
    """Yield the commands of a page, each on one line."""
    for block in blocks(page.read_text(encoding="utf-8"), "sh"):
        yield from filter(None, (line.strip() for line in block.replace("\\\n", " ").splitlines()))


def script(page: Path) -> list[str]:
    """Return the commands of a page that run anywhere. `||` says in the docs that a command is to fail."""
    return [line for line in lines(page) if not NEEDS.search(line) and not INSTALLS.match(line)]


def shrunk(data: Any) -> Any:
    """Return a sweep with few short trials: what it asks stays, and a search has the two seeds that it needs."""
    if isinstance(data, dict):
        small = {key: shrunk(value) for key, value in data.items()}
        if "steps" in small and "schedule" in small:
            small["schedule"] = {key: value for key, value in small["schedule"].items() if key != "warmup"}
        limits = {**SMALL, "seeds": 2} if "search" in data else SMALL
        return {
            key: min(value, limits[key]) if key in limits and isinstance(value, int) else value
            for key, value in small.items()
        }
    return [shrunk(value) for value in data] if isinstance(data, list) else data


SMALL = {"steps": 12, "seeds": 1, "validation_tokens": 512, "final_window_steps": 5, "budget": 10}


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: Folders) -> Path:
    """A folder with what the repository has, where the sweeps are short and the quickstart was run."""
    folder = tmp_path_factory.mktemp("work")
    for name in ("docs", "tests", "kernels", "hpxfer", "README.md", "CONTRIBUTING.md"):
        (folder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "sweeps", folder / "sweeps")
    shrink((folder / "sweeps").rglob("*.yaml"))
    for name in {name for page in PAGES for line in script(page) for name in PUBLISHED.findall(line)}:
        shutil.copytree(ROOT / name, folder / name)
    done = run(folder, "hpxfer run sweeps/quickstart.yaml")
    assert done.returncode == 0, done.stdout
    return folder


def shrink(paths: Iterable[Path]) -> None:
    """Shrink every sweep that is run on a laptop."""
    for path in paths:
        if path.name not in NO_SWEEPS and not path.stem.endswith("-full"):
            path.write_text(write_yaml(shrunk(read_yaml(path).data)))


def run(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in bash, with the programs of this environment first and a browser that does nothing."""
    there = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "BROWSER": "true", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env=there,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        timeout=600,
        check=False,
    )


def files(page: Path) -> dict[str, str]:
    """Return the files that a page shows: blocks whose first line is a comment with a file name."""
    text = page.read_text(encoding="utf-8")
    found = [block for language in ("python", "yaml", "json") for block in blocks(text, language)]
    return {named[1]: block for block in found if (named := re.match(r"# ([\w-]+\.\w+)\n", block))}


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_run(page: Path, workplace: Path) -> None:
    for name, text in files(page).items():
        (workplace / name).write_text(text, encoding="utf-8")
    for line in script(page):
        done = run(workplace, line)
        assert done.returncode == 0, f"{line}\n{done.stdout}"
        if line.startswith("hpxfer init"):
            shrink(workplace / name for name in re.findall(r"^ +(\S+\.yaml)$", done.stdout, re.MULTILINE))


def test_each_command_stands_once_and_those_of_the_readme_among_them() -> None:
    every = [re.sub(r"\s+#.*", "", line) for page in PAGES for line in lines(page) if not NEEDS.search(line)]
    own = [line for line in every if not INSTALLS.match(line)]
    assert sorted({line for line in own if own.count(line) > 1}) == []
    assert len(own) > 60
    readme = [re.sub(r"\s+#.*", "", line) for line in lines(ROOT / "README.md")]
    assert [line for line in readme if line not in every and line != "make test"] == []
