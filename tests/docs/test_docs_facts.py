"""Hand-written tables and numbers of the pages, held against the code that they describe."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
from docs_markdown import without_blocks

import hpxfer
from hpxfer.cli.commands import COMMANDS
from hpxfer.errors import HpxferError
from hpxfer.registry import registry
from hpxfer.scaling.roles import ROLES
from hpxfer.spec import parse_sweep
from hpxfer.spec.axes import DIMENSION
from hpxfer.spec.recipe_file import RECIPE_VERSION
from hpxfer.store.schema import SCHEMA_VERSION

ROOT = Path(__file__).parents[2]


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def first_column(name: str, heading: str) -> list[str]:
    """Return what stands in code font in the first column of the table below a heading."""
    below = page(name).partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [row.split("|")[1] for row in below.splitlines() if row.startswith("| ") and not row.startswith("| ---")]
    return [word for row in rows for word in re.findall(r"`([^`]+)`", row)]


@pytest.mark.parametrize(
    ("name", "heading", "names"),
    [("docs/sweep-file.md", "Axes", list(DIMENSION)), ("docs/parameterizations.md", "Roles", list(ROLES))],
)
def test_a_table_has_every_name_in_order(name: str, heading: str, names: list[str]) -> None:
    assert first_column(name, heading) == names


def test_the_searches_are_all_described() -> None:
    rows = re.findall(r"^\| `([\w-]+)` \| [^|]* \| `sweeps/", page("docs/search.md"), re.MULTILINE)
    assert tuple(rows) == registry("search").names()


def project() -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(page("pyproject.toml"))["project"]
    return found


def test_the_versions_are_those_of_the_package() -> None:
    found = project()
    low, high = re.fullmatch(r">=(3\.\d+),<3\.(\d+)", found["requires-python"]).groups()  # type: ignore[union-attr]
    pythons = f"{low} to 3.{int(high) - 1}"
    for name in ("README.md", "docs/quickstart.md", "docs/compatibility.md"):
        assert pythons in page(name), name
    assert f"hpxfer-{hpxfer.__version__}-py3-none-any.whl" in page("docs/quickstart.md")
    text = page("docs/compatibility.md")
    needed = dict(re.findall(r'"(\w+)(?:\[[\w,]+\])?>=([\d.]+)', str(found["dependencies"]).replace("'", '"')))
    assert f"| torch | {needed['torch']} to " in text
    assert f"| Ray | {needed['ray']} and later |" in text
    assert f"`hpxfer.schema` in the metadata of each file | {SCHEMA_VERSION} |" in text
    assert f"`hpxfer_recipe` | {RECIPE_VERSION} |" in text


def test_every_extra_that_the_docs_name_exists() -> None:
    extras = set(project()["optional-dependencies"])
    named = {
        word
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        for word in re.findall(r"hpxfer\[(\w+)\]", path.read_text(encoding="utf-8"))
    }
    assert named <= extras
    assert {"hf", "s3", "wandb", "docs", "notebooks"} <= named


def test_every_word_of_the_glossary_stands_once() -> None:
    words = re.findall(r"^### (.+)$", page("docs/glossary.md"), re.MULTILINE)
    assert len(set(words)) == len(words) > 40
    asked = [
        *("stack", "shape", "kappa", "octave", "arm", "cell", "control", "regret", "edge"),
        *("parameterization", "convention", "base", "trial", "role", "axis", "HP", "recipe", "drift", "verdict"),
    ]
    assert [word for word in asked if word not in words] == []


def test_the_message_of_a_mistake_is_the_one_that_is_shown() -> None:
    text = page("sweeps/quickstart.yaml").replace("num_experts:", "num_expert:")
    with pytest.raises(HpxferError) as caught:
        parse_sweep(text, "quickstart.yaml")
    assert f"\nhpxfer: {caught.value}\n" in page("docs/sweep-file.md")


def test_the_readme_counts_the_planted_sweeps_of_the_report() -> None:
    table = page("docs/report.md").partition("<!-- error_rates:begin -->")[2].partition("<!-- error_rates:end -->")[0]
    worlds = table.partition("\n| group | world | ")[2]
    rows = [line for line in worlds.splitlines() if line.startswith("| ") and "%" in line]
    assert f"on {len(rows)} kinds of planted sweeps" in page("README.md")


def test_the_table_of_commands_has_every_command() -> None:
    rows = re.findall(r"^\| `hpxfer ([\w-]+)` \|", page("README.md"), re.MULTILINE)
    assert rows == list(COMMANDS)


def test_no_page_has_an_open_end() -> None:
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        assert "TODO" not in text, path.name
        split = [line for line in without_blocks(text).splitlines() if line.count("`") % 2]
        assert split == [], f"{path.name}: a code word is cut by the end of a line"
        assert text.count("\n```") % 2 == 0, path.name
        fences = set(re.findall(r"^```(.*)$", text, re.MULTILINE))
        assert fences <= {"", "sh", "text", "yaml", "python", "json"}, path.name
        assert "—" not in without_blocks(text), path.name
